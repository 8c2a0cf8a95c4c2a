"""Tells when tensors wait long for ranks that do not submit them. The rules are pure; `watch` adds the clock.

Ranks that call different collectives wait for each other for ever, and only rank 0, where all submissions meet,
can say who waits for what. It warns after one limit; after a second, if there is one, the job ends.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence

_log = logging.getLogger("sirtaki")

# serial, name, ranks that have submitted, ranks that have not
Incomplete = tuple[int, str, Sequence[int], Sequence[int]]

_MOST_SHOWN = 12
# A tensor is reported at most this part of the limit late.
_CHECKS_PER_LIMIT = 4


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds that a tensor may wait; 0: for ever.

    Attributes:
        warning: until it is reported, and again after as many.
        shutdown: until the job ends.
    """

    warning: float
    shutdown: float

    @property
    def period(self) -> float | None:
        """Seconds between two looks at what waits, None if there is no limit."""
        limits = [limit for limit in (self.warning, self.shutdown) if limit > 0]
        return min(limits) / _CHECKS_PER_LIMIT if limits else None


class StallInspector:
    """Remembers since when tensors wait."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._since: dict[int, float] = {}
        self._reported: dict[int, float] = {}

    def look(self, now: float, incomplete: Sequence[Incomplete]) -> None:
        """Take note of what waits at a time, in seconds of any clock that only grows."""
        self._since = {entry[0]: self._since.get(entry[0], now) for entry in incomplete}
        self._reported = {serial: at for serial, at in self._reported.items() if serial in self._since}

    def warning(self, now: float, incomplete: Sequence[Incomplete]) -> str | None:
        """Return the warning that is due, None if there is none.

        Example:
            >>> inspector = StallInspector(Limits(warning=60.0, shutdown=0.0))
            >>> inspector.look(0.0, [(1, "w", [0], [1])])
            >>> print(inspector.warning(61.0, [(1, "w", [0], [1])]))
            Tensors have waited for more than 60 seconds for ranks that do not submit them:
              'w' for 61 s: submitted by rank 0, missing from rank 1
            All ranks must call the same collectives; in fit, they need equally many batches. Ranks that compute \
for long are no error: raise SIRTAKI_STALL_CHECK_TIME_SECONDS then.
        """
        limit = self._limits.warning
        stalled = self._waiting_for(limit, now, incomplete)
        if not any(now - self._reported.get(e[0], float("-inf")) >= limit for e in stalled):
            return None
        self._reported.update((e[0], now) for e in stalled)
        return self._text(limit, now, stalled, "SIRTAKI_STALL_CHECK_TIME_SECONDS")

    def verdict(self, now: float, incomplete: Sequence[Incomplete]) -> str | None:
        """Return why the job has to end, None if it may go on.

        Example:
            >>> inspector = StallInspector(Limits(warning=0.0, shutdown=600.0))
            >>> inspector.look(0.0, [(1, "w", [0], [1])])
            >>> inspector.verdict(599.0, [(1, "w", [0], [1])]) is None
            True
            >>> inspector.verdict(600.0, [(1, "w", [0], [1])]).splitlines()[1]
            "  'w' for 600 s: submitted by rank 0, missing from rank 1"
        """
        limit = self._limits.shutdown
        stalled = self._waiting_for(limit, now, incomplete)
        return self._text(limit, now, stalled, "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS") if stalled else None

    def _waiting_for(self, limit: float, now: float, incomplete: Sequence[Incomplete]) -> list[Incomplete]:
        return [e for e in incomplete if limit > 0 and now - self._since[e[0]] >= limit]

    def _text(self, limit: float, now: float, stalled: Sequence[Incomplete], setting: str) -> str:
        lines = [
            f"  '{name[:200]}' for {now - self._since[serial]:.0f} s: submitted by {_ranks(submitted)}, "
            f"missing from {_ranks(missing)}"
            for serial, name, submitted, missing in stalled[:_MOST_SHOWN]
        ]
        if len(stalled) > _MOST_SHOWN:
            lines.append(f"  and {len(stalled) - _MOST_SHOWN} more")
        return "\n".join(
            [
                f"Tensors have waited for more than {limit:g} seconds for ranks that do not submit them:",
                *lines,
                "All ranks must call the same collectives; in fit, they need equally many batches. Ranks that compute "
                f"for long are no error: raise {setting} then.",
            ]
        )


def watch(
    limits: Limits,
    incomplete: Callable[[], Sequence[Incomplete]],
    end_job: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Log warnings until `stop` is set, or call `end_job` with the reason and return.

    Wakes up a few times per limit, which costs nothing that can be measured. Time during which this process was
    stopped does not count: the others' submissions could not be seen.
    """
    period = limits.period
    assert period is not None
    inspector = StallInspector(limits)
    now, last = 0.0, time.monotonic()
    while not stop.wait(period):
        clock = time.monotonic()
        now += min(clock - last, 2 * period)
        last = clock
        waiting = incomplete()
        inspector.look(now, waiting)
        warning = inspector.warning(now, waiting)
        if warning is not None:
            _log.warning(warning)
        verdict = inspector.verdict(now, waiting)
        if verdict is not None:
            end_job(verdict)
            return


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
