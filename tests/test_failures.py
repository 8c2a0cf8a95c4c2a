"""A rank that fails ends the job: the others are told who and why, and nothing is left."""

import re

import pytest
from harness import TESTS, run_ranks

PROGRAM = TESTS / "engine_programs" / "failing_rank.py"


@pytest.mark.parametrize("when", ["computing", "reducing"])
@pytest.mark.parametrize(("ranks", "hosts", "victim"), [(2, 1, 1), (2, 1, 0), (4, 2, 3), (4, 2, 2), (4, 2, 0)])
def test_killed_rank_is_named_on_all_others(ranks, hosts, victim, when):
    result = run_ranks(ranks, PROGRAM, ["kill", victim, when], hosts=hosts, expect_failure=True)
    texts = set()
    for rank in set(range(ranks)) - {victim}:
        output = result.stdout(rank)
        match = re.search(rf"RanksFailedError \({victim},\) (rank {victim} .*)", output)
        assert match, f"rank {rank} printed {output!r}; all:\n{result.output}"
        texts.add(match[1])
        assert "and again" in output
    assert len(texts) == 1


@pytest.mark.parametrize(("ranks", "hosts", "victim"), [(2, 1, 1), (4, 2, 0), (4, 2, 3)])
def test_uncaught_exception_reaches_all_others_and_the_screen(ranks, hosts, victim):
    result = run_ranks(ranks, PROGRAM, ["raise", victim, "computing"], hosts=hosts, expect_failure=True)
    assert "ValueError: no more of this" in result.stderr(victim)
    for rank in set(range(ranks)) - {victim}:
        assert f"rank {victim} raised ValueError: no more of this" in result.stdout(rank)


def test_exit_without_leaving_is_a_failure():
    result = run_ranks(2, PROGRAM, ["os-exit", 1, "computing"], expect_failure=True)
    assert "RanksFailedError (1,)" in result.stdout(0)
    assert result.returncode == 3


@pytest.mark.parametrize(("ranks", "hosts", "victim"), [(2, 1, 1), (2, 1, 0), (4, 2, 2)])
def test_rank_that_leaves_early_is_named(ranks, hosts, victim):
    result = run_ranks(ranks, PROGRAM, ["exit", victim, "computing"], hosts=hosts)
    for rank in set(range(ranks)) - {victim}:
        assert re.search(rf"RankLeftError .*ranks? [\d, ]*\b{victim}\b[\d, ]* ha(s|ve) shut down", result.stdout(rank))


@pytest.mark.parametrize(
    ("variable", "values", "words"),
    [
        ("SIRTAKI_FUSION_THRESHOLD", ("abc", "abc"), "SIRTAKI_FUSION_THRESHOLD='abc'"),
        ("SIRTAKI_FUSION_TRESHOLD", ("1", "1"), "unknown setting SIRTAKI_FUSION_TRESHOLD"),
        ("SIRTAKI_FUSION_THRESHOLD", ("1000", "2000"), "is 1000 on rank 0 and 2000 on rank 1"),
    ],
)
def test_settings_that_cannot_be_are_named_at_init(variable, values, words):
    program = f"""
        import os
        rank = int(os.environ["PMI_RANK"])
        os.environ[{variable!r}] = {values!r}[rank]
        import sirtaki
        sirtaki.init()
    """
    result = run_ranks(2, program, expect_failure=True)
    assert "ConfigError" in result.output
    assert words in result.output


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (3, 2)])
def test_exit_code_of_a_rank_that_exits_early_is_the_jobs(ranks, hosts):
    program = """
        import sys
        import sirtaki
        sirtaki.init()
        sirtaki.barrier()
        if sirtaki.rank() == 1:
            sys.exit(3)
        sirtaki.barrier()
    """
    result = run_ranks(ranks, program, hosts=hosts, expect_failure=True)
    assert result.returncode == 3
    assert "rank 1 on host" in result.launcher_output and "exited with code 3" in result.launcher_output
    assert "SIGTERM" not in result.launcher_output
    assert "RankLeftError" in result.stderr(0)


@pytest.mark.parametrize(
    "error",
    ["ValueError('\\udcff')", "Unspeakable()", "ValueError('\u00fc' * 5001)", "ValueError('x' + '\u00fc' * 5001)"],
)
def test_failure_is_announced_whatever_its_text(error):
    program = f"""
        import sirtaki
        class Unspeakable(Exception):
            def __str__(self):
                raise RuntimeError("no text")
        sirtaki.init()
        if sirtaki.rank() == 1:
            raise {error}
        try:
            sirtaki.barrier()
        except sirtaki.errors.RanksFailedError as error:
            print("told", error.ranks)
    """
    result = run_ranks(2, program, expect_failure=True)
    assert "told (1,)" in result.stdout(0)
    assert result.returncode == 1
    assert "rank 1 on host" in result.launcher_output


def test_rank_that_never_calls_init_is_noticed():
    program = """
        import os, signal
        if os.environ["PMI_RANK"] == "1":
            signal.pause()
        import sirtaki
        sirtaki.init()
    """
    env = {"SIRTAKI_START_TIMEOUT": "1"}
    options = ["--grace-period", "0"]
    result = run_ranks(2, program, env=env, launcher_options=options, expect_failure=True)
    assert "has waited in init() for 1 seconds" in result.stderr(0)


@pytest.mark.parametrize("spin", ["0", "1000"])
def test_signals_reach_a_rank_that_waits(spin):
    run_ranks(2, PROGRAM.with_name("signals.py"), env={"SIRTAKI_SPIN_US": spin})


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (2, 1), (4, 2)])
def test_several_threads_may_shut_down_at_once(ranks, hosts):
    program = """
        import threading
        import sirtaki
        for _ in range(5):
            sirtaki.init()
            sirtaki.barrier()
            threads = [threading.Thread(target=sirtaki.shutdown) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not sirtaki.is_initialized()
    """
    run_ranks(ranks, program, hosts=hosts)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (3, 2)])
def test_ranks_that_wait_for_different_tensors_are_told(ranks, hosts):
    program = """
        import logging, os, signal, sys
        import numpy as np
        import sirtaki

        class TellAndRelease(logging.Handler):
            def emit(self, record):
                print(record.getMessage(), flush=True)
                if "have waited" in record.getMessage():
                    os.kill(os.getpid(), signal.SIGINT)

        logging.getLogger("sirtaki").addHandler(TellAndRelease())
        sirtaki.init()
        try:
            sirtaki.allreduce(np.ones(3), name="one" if sirtaki.rank() == 0 else "other")
        except KeyboardInterrupt:
            sys.exit(5)
    """
    env = {"SIRTAKI_STALL_CHECK_TIME_SECONDS": "0.2"}
    result = run_ranks(ranks, program, hosts=hosts, env=env, expect_failure=True)
    assert "'one' for" in result.stdout(0) and "submitted by rank 0, missing from rank" in result.stdout(0)
    assert "'other' for" in result.stdout(0)
    assert result.returncode == 5
