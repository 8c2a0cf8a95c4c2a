"""How a job ends: which signals the ranks get and when, and what the exit code says. Pure, no I/O."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from .process_control import signal_name
from .protocol import ENDED_BY_ANOTHER_EXIT_CODE, Exit

# Time between SIGTERM and SIGKILL, and between SIGKILL and giving up on hosts that do not answer. With
# the default grace period a job is over within 10 s of the first failure.
TERM_SECONDS = 2.0
KILL_SECONDS = 1.0


class Ending:
    """The plan by which the ranks are ended, once there is a reason.

    Attributes:
        interrupt: the first signal that the launcher got, or 0.
        abandoned: the plan is used up: ranks that have not reported by now never will.
    """

    def __init__(self, grace_period: float) -> None:
        self.interrupt = 0
        self.abandoned = False
        self._grace_period = grace_period
        self._steps: list[tuple[float, int]] = []

    @property
    def begun(self) -> bool:
        """Whether there is a reason to end the job."""
        return bool(self._steps) or self.abandoned

    @property
    def deadline(self) -> float | None:
        """The time of the next step, or None if there is none."""
        return self._steps[0][0] if self._steps else None

    def on_failure(self, now: float) -> None:
        """A rank has failed: the others may speak for the grace period. Later failures change nothing."""
        if not self.begun:
            self._plan(now + self._grace_period, signal.SIGTERM, signal.SIGKILL)

    def on_mpi_gave_up(self, now: float) -> None:
        """MPI has ended the ranks' anchors. A rank in MPI_Abort waits to be killed: be quicker than usual."""
        self.on_failure(now)
        start = now + min(self._grace_period, TERM_SECONDS)
        numbers = [number for _time, number in self._steps if number]
        if numbers and not self.interrupt and self._steps[0][0] > start:
            self._plan(start, *numbers)

    def on_signal(self, number: int, now: float) -> None:
        """The launcher was told to end. The first signal is passed on, a second one kills."""
        if self.interrupt:
            self._plan(now, signal.SIGKILL)
        else:
            # Ctrl-C lets a Python program clean up. A closed terminal or pipe is nothing to the ranks.
            first = number if number == signal.SIGINT else signal.SIGTERM
            later = (signal.SIGTERM, signal.SIGKILL) if first == signal.SIGINT else (signal.SIGKILL,)
            self._plan(now + self._grace_period, *later)
            self._steps.insert(0, (now, first))
            self.interrupt = number

    def due(self, now: float) -> list[int]:
        """Returns the signals to send now, and forgets them."""
        numbers = []
        while self._steps and self._steps[0][0] <= now:
            number = self._steps.pop(0)[1]
            if number:
                numbers.append(number)
            else:
                self.abandoned = True
        return numbers

    def _plan(self, start: float, *numbers: int) -> None:
        self._steps = [(start + TERM_SECONDS * index, number) for index, number in enumerate(numbers)]
        self._steps.append((self._steps[-1][0] + KILL_SECONDS, 0))


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended, in the order in which the launcher heard of it.

    Attributes:
        rank: the rank.
        host: its host's name.
        exit: its supervisor's report; None if the connection closed without one.
    """

    rank: int
    host: str
    exit: Exit | None

    @property
    def failed(self) -> bool:
        """Whether it ended other than with code 0."""
        return self.exit is None or self.exit.code != 0

    @property
    def by_itself(self) -> bool:
        """Whether nobody had asked it to end, and no other rank's failure was its reason."""
        return self.exit is None or not (self.exit.asked or self.exit.code == ENDED_BY_ANOTHER_EXIT_CODE)

    @property
    def did_not_answer(self) -> bool:
        """Whether it had to be killed: it was stopped or hung, which may be why the others have ended."""
        return self.exit is not None and self.exit.asked and self.exit.signal == signal.SIGKILL

    @property
    def code(self) -> int:
        """The exit code that stands for it."""
        if self.exit is None:
            return 1
        return 128 + self.exit.signal if self.exit.code is None else self.exit.code

    def __str__(self) -> str:
        where = f"rank {self.rank} on host {self.host}"
        if self.exit is None:
            return f"{where} was lost: the connection to its supervisor closed"
        if self.exit.error:
            return f"{where} could not start {self.exit.error}"
        if self.did_not_answer:
            return f"{where} did not answer and was killed by SIGKILL"
        if self.exit.code is None:
            return f"{where} was killed by {signal_name(self.exit.signal)}"
        if self.exit.code == ENDED_BY_ANOTHER_EXIT_CODE:
            return f"{where} ended because another rank was gone (code {self.exit.code})"
        return f"{where} exited with code {self.exit.code}"


def first_failure(ends: Iterable[RankEnd]) -> RankEnd | None:
    """Returns the rank to blame: the first that failed by itself; if none did, the first that did not answer, else
    the first that failed at all."""
    failures = [end for end in ends if end.failed]
    by_itself = [end for end in failures if end.by_itself]
    silent = [end for end in failures if end.did_not_answer]
    return next(iter([*by_itself, *silent, *failures]), None)


def name_ranks(ranks: Iterable[int]) -> str:
    """Returns "rank 3" or "ranks 0-2, 5"."""
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    names = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return f"rank {names}" if len(ordered) == 1 else f"ranks {names}"
