"""Tells when tensors wait long for ranks that do not submit them. The rules are pure; `watch` adds the clock.

Ranks that call different collectives wait for each other for ever, and only rank 0, where all submissions meet,
can say who waits for what.
"""

from __future__ import annotations

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


class StallInspector:
    """Remembers since when tensors wait."""

    def __init__(self, limit: float) -> None:
        """Args: limit: seconds after which a tensor is reported, and again after as many."""
        self._limit = limit
        self._since: dict[int, float] = {}
        self._reported: dict[int, float] = {}

    def report(self, now: float, incomplete: Sequence[Incomplete]) -> str | None:
        """Return the warning that is due, None if there is none.

        Example:
            >>> inspector = StallInspector(60.0)
            >>> inspector.report(0.0, [(1, "w", [0], [1])])
            >>> print(inspector.report(61.0, [(1, "w", [0], [1])]))
            Tensors have waited for more than 60 seconds for ranks that do not submit them:
              'w' for 61 s: submitted by rank 0, missing from rank 1
            All ranks must call the same collectives; in fit, they need equally many batches. Ranks that compute \
for long are no error: raise SIRTAKI_STALL_CHECK_TIME_SECONDS then.
        """
        waiting = {entry[0] for entry in incomplete}
        self._since = {serial: self._since.get(serial, now) for serial in waiting}
        self._reported = {serial: at for serial, at in self._reported.items() if serial in waiting}
        stalled = [e for e in incomplete if now - self._since[e[0]] >= self._limit]
        if not any(now - self._reported.get(e[0], float("-inf")) >= self._limit for e in stalled):
            return None
        self._reported.update((e[0], now) for e in stalled)
        lines = [
            f"  '{name[:200]}' for {now - self._since[serial]:.0f} s: submitted by {_ranks(submitted)}, "
            f"missing from {_ranks(missing)}"
            for serial, name, submitted, missing in stalled[:_MOST_SHOWN]
        ]
        if len(stalled) > _MOST_SHOWN:
            lines.append(f"  and {len(stalled) - _MOST_SHOWN} more")
        return "\n".join(
            [
                f"Tensors have waited for more than {self._limit:g} seconds for ranks that do not submit them:",
                *lines,
                "All ranks must call the same collectives; in fit, they need equally many batches. Ranks that compute "
                "for long are no error: raise SIRTAKI_STALL_CHECK_TIME_SECONDS then.",
            ]
        )


def watch(limit: float, incomplete: Callable[[], Sequence[Incomplete]], stop: threading.Event) -> None:
    """Log warnings until `stop` is set. Wakes up a few times per limit, which costs nothing that can be measured."""
    inspector = StallInspector(limit)
    while not stop.wait(limit / _CHECKS_PER_LIMIT):
        text = inspector.report(time.monotonic(), incomplete())
        if text is not None:
            _log.warning(text)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
