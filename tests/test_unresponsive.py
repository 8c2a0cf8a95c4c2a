"""A rank that is stopped, or whose network is dead, is told from one that computes for long, and named."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from harness import SIRTAKIRUN, TESTS, WATCHDOG_VARIABLE, Result, run_ranks

PROGRAMS = TESTS / "engine_programs"
STOPPED = PROGRAMS / "stopped_rank.py"
LIMIT = {"SIRTAKI_UNRESPONSIVE_TIME_SECONDS": "1"}
# After the first of them the survivors end at once; the stopped rank is then killed without much ado.
SHORT = ["--grace-period", "1"]


@pytest.mark.parametrize("when", ["computing", "reducing"])
@pytest.mark.parametrize(
    ("ranks", "hosts", "victim"), [(2, 1, 0), (3, 1, 2), (2, 2, 0), (4, 2, 0), (4, 2, 2), (4, 2, 3)]
)
def test_stopped_rank_is_named_on_all_others_and_ended_by_the_launcher(ranks, hosts, victim, when):
    args = ["stop", victim, when]
    result = run_ranks(ranks, STOPPED, args, hosts=hosts, env=LIMIT, launcher_options=SHORT, expect_failure=True)
    texts = set()
    for rank in set(range(ranks)) - {victim}:
        match = re.search(rf"UnresponsiveError \({victim},\) (rank {victim} .*)", result.stdout(rank))
        assert match, f"rank {rank} printed {result.stdout(rank)!r}; all:\n{result.output}"
        texts.add(match[1])
    assert len(texts) == 1, texts
    assert "more than 1 seconds" in texts.pop()
    assert f"rank {victim} on host" in result.launcher_output and "did not answer" in result.launcher_output
    assert result.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(("ranks", "hosts", "victim"), [(2, 1, 0), (2, 1, 1), (4, 2, 0), (4, 2, 2), (4, 2, 3)])
def test_stopped_rank_that_goes_on_raises_too(ranks, hosts, victim):
    args = ["stop-and-continue", victim, "reducing"]
    result = run_ranks(ranks, STOPPED, args, hosts=hosts, env=LIMIT, expect_failure=True)
    for rank in range(ranks):
        assert f"UnresponsiveError ({victim},) rank {victim} " in result.stdout(rank), result.output


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (4, 2)])
def test_job_that_was_stopped_as_a_whole_goes_on(ranks, hosts):
    args = ["stop-all", 0, "computing"]
    result = run_ranks(ranks, STOPPED, args, hosts=hosts, env=LIMIT)
    for rank in range(ranks):
        assert "went on" in result.stdout(rank)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (2, 2)])
def test_rank_that_computes_without_the_gil_or_leaves_is_not_unresponsive(ranks, hosts):
    # The last rank holds the GIL in C for three limits, then all but the first leave while it lives on.
    program = """
        import ctypes, time
        import sirtaki
        sirtaki.init()
        sirtaki.barrier()
        if sirtaki.rank() == sirtaki.size() - 1:
            ctypes.PyDLL(None).usleep(900_000)
        sirtaki.barrier()
        if sirtaki.rank() != 0:
            sirtaki.shutdown()
            ctypes.PyDLL(None).usleep(900_000)
    """
    run_ranks(ranks, program, hosts=hosts, env={"SIRTAKI_UNRESPONSIVE_TIME_SECONDS": "0.3"})


@pytest.mark.parametrize(("ranks", "hosts", "catch"), [(2, 1, False), (3, 2, False), (2, 1, True)])
def test_stopped_rank_is_ended_although_all_others_end_well(ranks, hosts, catch):
    # Without `catch` the failure comes while the others are at their end already; no call is left to raise it.
    program = f"""
        import os, signal
        import sirtaki
        sirtaki.init()
        sirtaki.barrier()
        if sirtaki.rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if {catch}:
            try:
                sirtaki.barrier()
            except sirtaki.errors.UnresponsiveError:
                print("caught")
    """
    result = run_ranks(ranks, program, hosts=hosts, env=LIMIT, launcher_options=SHORT, expect_failure=True)
    for rank in set(range(ranks)) - {1}:
        if catch:
            assert result.stdout(rank) == "caught\n" and not result.stderr(rank)
        else:
            assert "job failed while this rank waited for the others to end: rank 1" in result.stderr(rank)
    assert "rank 1 on host" in result.launcher_output
    assert result.returncode == 128 + signal.SIGKILL


def test_rank_that_is_stopped_in_init_is_noticed():
    program = """
        import os, signal
        import sirtaki
        from sirtaki import bootstrap
        if os.environ["PMI_RANK"] == "1":
            bootstrap.check_agreement = lambda everybody: os.kill(os.getpid(), signal.SIGSTOP)
        sirtaki.init()
    """
    env = {"SIRTAKI_START_TIMEOUT": "2"}
    result = run_ranks(2, program, env=env, launcher_options=SHORT, expect_failure=True)
    assert "has waited in init() for 2 seconds for ranks that have called it" in result.stderr(0)


def test_zero_is_never():
    args = ["stop-for", 1, "computing"]
    env = {"SIRTAKI_UNRESPONSIVE_TIME_SECONDS": "0"}
    result = run_ranks(2, STOPPED, args, env=env)
    assert "went on" in result.stdout(0) and "went on" in result.stdout(1)


def _has_network_namespaces():
    unshare, ip = shutil.which("unshare"), shutil.which("ip")
    if unshare is None or ip is None:
        return False
    return subprocess.run([unshare, "-rn", ip, "link", "set", "lo", "up"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _has_network_namespaces(), reason="network namespaces cannot be made here")
@pytest.mark.parametrize(
    ("limit", "error", "text"),
    [("1", "UnresponsiveError", "network to it hangs"), ("60", "RanksFailedError", "cannot be reached any more")],
)
def test_dead_network_between_hosts_is_noticed(limit, error, text, tmp_path):
    # Both hosts and the launcher live in a network of their own, whose only interface the program shuts down.
    os.mkfifo(tmp_path / "raised")
    program = [sys.executable, str(TESTS / "rank_main.py"), str(PROGRAMS / "dead_network.py"), str(tmp_path / "raised")]
    launcher = [*SIRTAKIRUN, "-np", "2", "--simulate-hosts", "2", *program]
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *launcher],
        env={**os.environ, WATCHDOG_VARIABLE: "60", "SIRTAKI_UNRESPONSIVE_TIME_SECONDS": limit},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    result = Result(done.returncode, done.stdout + done.stderr)
    for rank in range(2):
        assert re.search(rf"{error} \({1 - rank},\) rank {1 - rank} .*{text}", result.stdout(rank)), result.output


IN_BATCH = {"SIRTAKI_UNRESPONSIVE_TIME_SECONDS": "0"}


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (2, 2)])
@pytest.mark.parametrize("how", ["timeout", "interrupt-healthy", "own-handler"])
def test_wait_in_the_midst_of_a_batch_leaves_the_engine_usable(ranks, hosts, how):
    result = run_ranks(ranks, PROGRAMS / "wait_in_batch.py", [how], hosts=hosts, env=IN_BATCH)
    assert "came back" in result.stdout(0)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (2, 2)])
def test_interrupt_in_the_midst_of_a_batch_with_a_stopped_peer_gives_the_job_up(ranks, hosts):
    result = run_ranks(
        ranks, PROGRAMS / "wait_in_batch.py", ["interrupt"], hosts=hosts, env=IN_BATCH, expect_failure=True
    )
    assert "came back" in result.stdout(0), result.output
    for rank in range(2):
        assert "RanksFailedError (0,) rank 0 was interrupted" in result.stdout(rank), result.output
