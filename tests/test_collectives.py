"""The NumPy collectives on real ranks, on one host and on several."""

import re

import pytest
from harness import TESTS, run_ranks

PROGRAMS = TESTS / "engine_programs"
LAYOUTS = [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (3, 3)]


@pytest.mark.parametrize(("ranks", "hosts"), LAYOUTS)
def test_results_equal_numpy(ranks, hosts):
    run_ranks(ranks, PROGRAMS / "collectives.py", [ranks, hosts], hosts=hosts, timeout=240)


@pytest.mark.parametrize(("ranks", "hosts"), [(3, 1), (3, 2), (4, 3)])
def test_small_slots_and_threshold_give_the_same_results(ranks, hosts):
    env = {"SIRTAKI_SLOT_BYTES": "4096", "SIRTAKI_FUSION_THRESHOLD": "10000", "SIRTAKI_SPIN_US": "0"}
    run_ranks(ranks, PROGRAMS / "collectives.py", [ranks, hosts], hosts=hosts, env=env, timeout=240)


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (2, 1), (3, 1), (4, 2), (3, 3)])
def test_every_type_with_every_operation(ranks, hosts):
    result = run_ranks(ranks, PROGRAMS / "type_table.py", [ranks, hosts], hosts=hosts, timeout=200)
    assert all("all cells" in result.stdout(rank) for rank in range(ranks))


@pytest.mark.parametrize(("ranks", "hosts"), [(3, 1), (4, 2)])
def test_bits_do_not_depend_on_fusion(ranks, hosts):
    digests = set()
    for threshold in ("0", "100000", "67108864"):
        for slot in ("4096", "1048576"):
            env = {"SIRTAKI_FUSION_THRESHOLD": threshold, "SIRTAKI_SLOT_BYTES": slot}
            result = run_ranks(ranks, PROGRAMS / "fusion_bits.py", hosts=hosts, env=env)
            digests.update(re.findall(r"digest (\w+)", result.output))
            batches = int(re.search(r"batches (\d+)", result.output)[1])
            assert batches == 60 if threshold == "0" else batches <= 60
    assert len(digests) == 1


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (3, 1), (4, 2), (3, 3)])
def test_ranks_that_disagree_get_the_same_error(ranks, hosts):
    run_ranks(ranks, PROGRAMS / "disagreement.py", hosts=hosts)


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (2, 1), (4, 2)])
def test_children_threads_and_full_rings(ranks, hosts):
    run_ranks(ranks, PROGRAMS / "processes.py", hosts=hosts)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (4, 2)])
def test_application_uses_mpi_beside_the_engine(ranks, hosts):
    run_ranks(ranks, PROGRAMS / "beside_mpi.py", hosts=hosts)
