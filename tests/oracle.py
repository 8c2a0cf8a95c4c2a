"""What collectives must give, computed by NumPy alone. Knows the documented order of additions, not the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_SIXTEEN_BITS = ("float16", "bfloat16")


def _accumulate(values: Sequence[Array]) -> Array:
    total = values[0].copy()
    with np.errstate(over="ignore"):
        for value in values[1:]:
            total = total + value
    return total


def allreduce(values: Sequence[Array], host_of: Sequence[int], average: bool) -> Array:
    """Return the exact result: first the ranks of each host in order, then the hosts in order.

    16-bit floats are added as float32 and rounded once, integers are divided towards zero.
    """
    dtype = values[0].dtype
    wide = [v.astype(np.float32) if dtype.name in _SIXTEEN_BITS else v for v in values]
    hosts = sorted(set(host_of))
    total = _accumulate([_accumulate([wide[r] for r in range(len(wide)) if host_of[r] == h]) for h in hosts])
    if average and np.issubdtype(dtype, np.integer):
        quotient = np.abs(total) // len(values) * np.sign(total)
        return np.asarray(quotient).astype(dtype)
    if average:
        total = total / total.dtype.type(len(values))
    return np.asarray(total).astype(dtype)


def sample(shape: tuple[int, ...], dtype: Any, rank: int, salt: int = 0) -> Array:
    """Return a rank's input: reproducible, with rounding in every addition."""
    generator = np.random.default_rng([rank, salt])
    if np.issubdtype(np.dtype(dtype), np.integer):
        return generator.integers(-1000, 1000, shape).astype(dtype)
    return generator.normal(size=shape).astype(dtype)


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
