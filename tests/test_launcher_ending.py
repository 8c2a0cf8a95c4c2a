"""When the ranks of a job get which signal, and whose exit code counts: the plan, without processes."""

from __future__ import annotations

import signal

import pytest
from sirtaki.launcher.ending import Ending, RankEnd, first_failure, name_ranks
from sirtaki.launcher.protocol import Exit

TERM, KILL, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGINT


def play(ending: Ending) -> list[tuple[float, int]]:
    """Returns all that the plan sends, with its times."""
    sent = []
    while ending.deadline is not None:
        now = ending.deadline
        sent += [(now, number) for number in ending.due(now)]
    return sent


def test_failure_gives_the_others_the_grace_period_and_is_over_within_ten_seconds() -> None:
    ending = Ending(5.0)
    assert not ending.begun
    ending.on_failure(100.0)
    ending.on_failure(101.0)
    assert play(ending) == [(105.0, TERM), (107.0, KILL)]
    assert ending.abandoned and ending.begun


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (INT, [(100.0, INT), (105.0, TERM), (107.0, KILL)]),
        (TERM, [(100.0, TERM), (105.0, KILL)]),
        (signal.SIGHUP, [(100.0, TERM), (105.0, KILL)]),
    ],
)
def test_signal_is_passed_on_at_once(number: int, expected: list[tuple[float, int]]) -> None:
    ending = Ending(5.0)
    ending.on_signal(number, 100.0)
    assert ending.interrupt == number
    assert play(ending) == expected


def test_second_signal_kills() -> None:
    ending = Ending(5.0)
    ending.on_signal(INT, 100.0)
    assert ending.due(100.0) == [INT]
    ending.on_signal(INT, 101.0)
    assert play(ending) == [(101.0, KILL)]
    assert ending.interrupt == INT


def test_aborted_job_does_not_wait_as_long() -> None:
    ending = Ending(60.0)
    ending.on_failure(100.0)
    ending.on_mpi_gave_up(100.0)
    assert play(ending) == [(102.0, TERM), (104.0, KILL)]


def test_aborted_job_does_not_extend_what_was_planned() -> None:
    ending = Ending(5.0)
    ending.on_failure(100.0)
    ending.on_mpi_gave_up(104.0)
    assert play(ending) == [(105.0, TERM), (107.0, KILL)]


def test_mpi_may_give_up_when_all_signals_have_been_sent() -> None:
    ending = Ending(0.0)
    ending.on_failure(100.0)
    assert ending.due(102.0) == [TERM, KILL]
    ending.on_mpi_gave_up(102.0)
    assert play(ending) == []
    assert ending.abandoned


def test_first_failure_is_the_first_that_nobody_asked_for() -> None:
    ended = RankEnd(0, "a", Exit(signal=TERM, asked=True))
    good = RankEnd(1, "a", Exit(code=0))
    killed = RankEnd(2, "b", Exit(signal=KILL))
    failed = RankEnd(3, "b", Exit(code=3))
    assert first_failure([good]) is None
    assert first_failure([good, ended]) is ended
    assert first_failure([ended, good, killed, failed]) is killed
    assert (killed.code, failed.code) == (137, 3)
    assert str(killed) == "rank 2 on host b was killed by SIGKILL"
    assert str(RankEnd(0, "a", None)) == "rank 0 on host a was lost: the connection to its supervisor closed"


@pytest.mark.parametrize(
    ("ranks", "name"), [([3], "rank 3"), ([2, 0, 1], "ranks 0-2"), ([0, 1, 5, 7, 8], "ranks 0-1, 5, 7-8")]
)
def test_names_of_ranks(ranks: list[int], name: str) -> None:
    assert name_ranks(ranks) == name
