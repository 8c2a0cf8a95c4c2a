"""Joining a job of some of the launched ranks, and with process sets."""

import pytest
from harness import TESTS, run_ranks

PROGRAM = TESTS / "engine_programs" / "init_comm.py"


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("case", ["halves", "communicators", "errors", "process sets", "bystander"])
def test_job_of_given_ranks(case, ranks, hosts):
    run_ranks(ranks, PROGRAM, [case], hosts=hosts)


@pytest.mark.parametrize("what", ["order", "sets"])
def test_ranks_that_name_different_jobs_are_told_which_they_wait_for(what):
    options = ["--grace-period", "10"]
    env = {"SIRTAKI_START_TIMEOUT": "4"}
    arguments = ["contradictions", what]
    result = run_ranks(3, PROGRAM, arguments, env=env, launcher_options=options, expect_failure=True)
    assert "world ranks [0, 1, 2], given as its comm" in result.stderr(0)
    assert f"world ranks {[1, 2, 0] if what == 'order' else [1, 2]}, given as its comm" in result.stderr(1)
    assert "joined" not in result.stdout(0) + result.stdout(1)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (2, 2)])
def test_rounds_do_not_use_up_communicators(ranks, hosts):
    run_ranks(ranks, PROGRAM, ["many rounds", 1100], hosts=hosts, timeout=120)


def test_launched_rank_that_uses_nothing_ends_normally():
    run_ranks(2, "import sirtaki\nassert not sirtaki.is_initialized()\n")


def test_rank_that_fails_before_the_job_stands_ends_it():
    program = """
        import os
        if os.environ["PMI_RANK"] == "0":
            os.environ["SIRTAKI_NETWORK_INTERFACE"] = "no-such"
        import sirtaki
        sirtaki.init()
    """
    result = run_ranks(2, program, hosts=2, launcher_options=["--grace-period", "0"], expect_failure=True)
    assert "SIRTAKI_NETWORK_INTERFACE='no-such'" in result.stderr(0)
    assert "rank 0 on host" in result.launcher_output
