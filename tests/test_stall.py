"""Tensors that wait for ranks: when it is said, to whom, and when the job ends."""

import re

import pytest
from harness import run_ranks
from sirtaki.stall import Limits, StallInspector


def report(inspector, now, incomplete):
    inspector.look(now, incomplete)
    return inspector.warning(now, incomplete)


def test_stall_is_reported_once_per_limit_and_forgotten_when_it_ends():
    inspector = StallInspector(Limits(10.0, 0.0))
    waits = [(1, "w", [0, 2], [1])]
    assert report(inspector, 0.0, waits) is None
    assert report(inspector, 9.0, waits) is None
    text = report(inspector, 10.0, waits)
    assert text is not None and "'w' for 10 s: submitted by ranks 0, 2, missing from rank 1" in text
    assert report(inspector, 12.0, waits) is None
    assert report(inspector, 13.0, []) is None
    assert report(inspector, 20.0, [(2, "w", [0], [1])]) is None
    assert report(inspector, 30.0, [(2, "w", [0], [1]), (3, "v", [1], [0])]) is not None
    assert "missing from rank 0" not in (report(inspector, 41.0, [(2, "w", [0], [1])]) or "")


def test_verdict_counts_from_the_same_beginning_as_the_warning():
    inspector = StallInspector(Limits(10.0, 30.0))
    waits = [(1, "w", [0], [1])]
    for now in (0.0, 10.0, 20.0, 29.0):
        inspector.look(now, waits)
        assert inspector.verdict(now, waits) is None
    inspector.look(30.0, waits)
    assert "'w' for 30 s: submitted by rank 0, missing from rank 1" in (inspector.verdict(30.0, waits) or "")


@pytest.mark.parametrize(
    ("limits", "period"),
    [(Limits(60.0, 0.0), 15.0), (Limits(60.0, 40.0), 10.0), (Limits(0.0, 8.0), 2.0), (Limits(0.0, 0.0), None)],
)
def test_period_fits_the_shorter_limit(limits, period):
    assert limits.period == period


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (3, 2)])
@pytest.mark.parametrize("warning", ["60", "0"])
def test_second_limit_ends_the_job_with_the_warnings_text_on_all_ranks(ranks, hosts, warning):
    program = """
        import numpy as np
        import sirtaki
        sirtaki.init()
        sirtaki.barrier()
        try:
            sirtaki.allreduce(np.ones(3), name="one" if sirtaki.rank() == 0 else "other")
        except sirtaki.errors.StalledError as error:
            print("told", str(error).replace("\\n", "|"), flush=True)
            raise
    """
    env = {"SIRTAKI_STALL_CHECK_TIME_SECONDS": warning, "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "0.4"}
    result = run_ranks(ranks, program, hosts=hosts, env=env, expect_failure=True)
    texts = set()
    for rank in range(ranks):
        match = re.search("told (Tensors have waited for more than 0.4 seconds.*)", result.stdout(rank))
        assert match, result.output
        texts.add(match[1])
    (text,) = texts
    assert re.search(r"'one' for \d+ s: submitted by rank 0, missing from rank", text)
    assert re.search(r"'other' for \d+ s: submitted by ranks? [12, ]+, missing from rank 0", text)
    # Nobody is to blame for another's failure.
    assert result.returncode == 1
    assert "because another rank was gone" not in result.launcher_output
