"""Process sets, join, and the collectives beyond allreduce, allgather and broadcast, on real ranks."""

import pytest
from harness import TESTS, run_ranks

PROGRAM = TESTS / "engine_programs" / "sets_and_joins.py"


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (2, 1), (3, 1), (4, 2), (3, 3)])
def test_results_equal_numpy(ranks, hosts):
    env = {"SIRTAKI_CACHE_CAPACITY": "64"}
    result = run_ranks(ranks, PROGRAM, [ranks, hosts], hosts=hosts, env=env, timeout=200)
    assert all("all well" in result.stdout(rank) for rank in range(ranks))


@pytest.mark.parametrize(("ranks", "hosts"), [(3, 2)])
def test_small_slots_and_threshold_give_the_same_results(ranks, hosts):
    env = {"SIRTAKI_SLOT_BYTES": "4096", "SIRTAKI_FUSION_THRESHOLD": "1000", "SIRTAKI_SPIN_US": "0"}
    run_ranks(ranks, PROGRAM, [ranks, hosts], hosts=hosts, env=env, timeout=200)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (3, 2)])
def test_join_ends_when_a_rank_shuts_down_instead(ranks, hosts):
    program = """
        import sirtaki
        sirtaki.init()
        sirtaki.barrier()
        if sirtaki.rank() == 0:
            sirtaki.shutdown()
        else:
            try:
                sirtaki.join()
            except sirtaki.errors.RankLeftError as error:
                assert "shut down without joining" in str(error), error
                print("told")
    """
    result = run_ranks(ranks, program, hosts=hosts)
    assert all("told" in result.stdout(rank) for rank in range(1, ranks))
