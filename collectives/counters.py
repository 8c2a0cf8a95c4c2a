"""What a rank counts: the native counters in the forms that programs and people read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sirtaki.kinds import OF_THE_JOB, Kind

_NANOSECONDS = 1e-9


@dataclass(frozen=True)
class Straggler:
    """A rank that others have waited for.

    Attributes:
        rank: its global rank.
        seconds: how long tensors waited for this rank alone, everybody else having submitted them. Moments in which
            several tensors waited count once.
        times: for how many tensors it came last.
    """

    rank: int
    seconds: float
    times: int

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.seconds:.3f} s, last for {self.times} tensors"


def ranking(raw: Mapping[str, Any]) -> list[Straggler]:
    """Return the stragglers in the native counters."""
    pairs = enumerate(zip(raw["waited_for_ns"], raw["times_last"], strict=True))
    found = [Straggler(rank, ns * _NANOSECONDS, times) for rank, (ns, times) in pairs if times > 0]
    return sorted(found, key=lambda s: (-s.seconds, -s.times, s.rank))


def as_metrics(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the native counters in the form of `sirtaki.metrics`."""
    kinds: Sequence[tuple[int, int, int]] = raw["kinds"]
    collectives = {
        kind.label: dict(zip(("calls", "tensors", "bytes"), kinds[kind], strict=True))
        for kind in Kind
        if kind not in OF_THE_JOB
    }
    return {
        "collectives": collectives,
        "batches": sum(raw["batches"]),
        "tensors_per_batch": {2**i: count for i, count in enumerate(raw["batches"]) if count},
        "cache_hits": raw["cache_hits"],
        "cache_misses": raw["cache_misses"],
        "data_wait_seconds": {rank: ns * _NANOSECONDS for rank, ns in enumerate(raw["data_wait_ns"]) if ns},
        "stragglers": ranking(raw),
    }


def summary(found: Sequence[Straggler], most: int = 8) -> str:
    """Return the ranking as a text of one line.

    Example:
        >>> summary([Straggler(3, 1.5, 10)])
        'the job has waited for rank 3: 1.500 s, last for 10 tensors'
    """
    shown = "; ".join(map(str, found[:most]))
    return f"the job has waited for {shown}" + (f"; and {len(found) - most} more" if len(found) > most else "")
