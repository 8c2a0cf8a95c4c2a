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
