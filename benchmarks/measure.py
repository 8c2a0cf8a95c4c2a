"""Timing of calls that all ranks make together, side by side in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import sirtaki

# Long enough for a median that the next run finds again, short enough for a table in a minute.
_SECONDS_PER_CANDIDATE = 0.4
_FEWEST, _MOST = 5, 2000
_ROUNDS = 5


def medians(candidates: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median seconds of one call of each candidate.

    Candidates take turns in rounds, so that a change of the machine's mood meets all of them. The time of a
    call is that of the slowest rank.
    """
    counts = [_count(candidate) for candidate in candidates]
    samples: list[list[float]] = [[] for _ in candidates]
    for _ in range(_ROUNDS):
        for candidate, count, into in zip(candidates, counts, samples, strict=True):
            sirtaki.barrier()
            for _ in range(max(1, count // _ROUNDS)):
                start = time.perf_counter()
                candidate()
                into.append(time.perf_counter() - start)
    result = []
    for own in samples:
        slowest = sirtaki.allgather(np.array([own])).max(axis=0)
        result.append(float(np.median(slowest)))
    return result


def _count(candidate: Callable[[], object]) -> int:
    """Return how often to call the candidate; the same on all ranks."""
    candidate()
    start = time.perf_counter()
    candidate()
    once = sirtaki.allgather(np.array([time.perf_counter() - start])).max()
    return int(np.clip(_SECONDS_PER_CANDIDATE / once, _FEWEST, _MOST))


def bus_bandwidth(num_bytes: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Return the algorithm and bus bandwidth of an allreduce in GB/s, as nccl-tests defines them.

    Algorithm bandwidth is bytes over time; bus bandwidth is that times 2 (n - 1) / n, which makes jobs of
    different sizes comparable with the speed of the hardware.

    Example:
        >>> bus_bandwidth(10**9, 1.0, 4)
        (1.0, 1.5)
    """
    algorithm = num_bytes / seconds / 1e9
    return algorithm, algorithm * 2 * (ranks - 1) / ranks
