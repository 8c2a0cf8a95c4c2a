"""What collectives must give, computed by NumPy alone. Knows the documented order of additions, not the engine."""

from __future__ import annotations

import functools
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


def reduce_cell(values: Sequence[Array], host_of: Sequence[int], op: str) -> Array:
    """Return the result of any operation but Adasum, by the documented order and precision."""
    dtype = values[0].dtype
    wide = [v.astype(np.float32) if dtype.name in _SIXTEEN_BITS else v for v in values]
    if op == "Average" and dtype.kind in "iu":
        # Whole numbers of Python: exact, unless the documented 64 bits wrap.
        total = sum(v.astype(object) if dtype.itemsize < 8 else v for v in values)
        quotients = [abs(int(t)) // len(values) * (1 if t >= 0 else -1) for t in np.asarray(total).ravel()]
        return np.array(quotients, dtype).reshape(values[0].shape)
    step = {"Sum": np.add, "Average": np.add, "Product": _product, "Min": _least, "Max": _greatest}[op]
    partials = []
    with np.errstate(all="ignore"):
        for host in sorted(set(host_of)):
            members = [wide[r] for r in range(len(wide)) if host_of[r] == host]
            partials.append(functools.reduce(step, members))
        total = functools.reduce(step, partials)
        if op == "Average" and dtype.kind == "c":
            real, imaginary = total.real / len(values), total.imag / len(values)
            total = np.empty_like(total)
            total.real, total.imag = real, imaginary
        elif op == "Average":
            total = total / total.dtype.type(len(values))
        return np.asarray(total).astype(dtype)


def _product(a: Array, b: Array) -> Array:
    if a.dtype.kind != "c":
        return np.logical_and(a, b) if a.dtype == bool else np.multiply(a, b)
    out = np.empty_like(a)
    out.real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real
    return out


def _ordered(a: Array, b: Array, takes_a: Array) -> Array:
    """Choose by `takes_a`, unless one is NaN; of two zeros the caller has chosen."""
    out = np.where(takes_a, a, b)
    if a.dtype.kind == "f":
        out = np.where(np.isnan(a), a, np.where(np.isnan(b), b, out))
    return out.astype(a.dtype)


def _least(a: Array, b: Array) -> Array:
    tie = np.signbit(a) if a.dtype.kind == "f" else True
    return _ordered(a, b, (a < b) | ((a == b) & tie))


def _greatest(a: Array, b: Array) -> Array:
    tie = ~np.signbit(a) if a.dtype.kind == "f" else True
    return _ordered(a, b, (a > b) | ((a == b) & tie))


def extremes(dtype: Any, rank: int) -> Array:
    """Return values of every awkward kind that the type has, in a different order on each rank."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        values = np.array([False, True, True, False, True])
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        values = np.array([info.min, info.max, 0, 1, info.max // 2 + 1, info.min // 2, 7], dtype)
    else:
        special = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 6e-8, 1e-40, 3e38, 60000.0]
        with np.errstate(all="ignore"):
            values = np.array(special).astype(np.float32).astype(dtype)
            if dtype.name in ("float64", "complex128"):
                values = np.append(values, [5e-324, -1e-310, 1.7e308]).astype(dtype)
            if dtype.kind == "c":
                values = values + np.roll(values, 3) * dtype.type(1j)
    return np.roll(np.tile(values, 3), rank * 2 + 1)


def same_values(a: Array, b: Array) -> bool:
    """Whether two arrays have the same type, shape and bits; any NaN is as good as another."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "c":
        return same_values(a.real.copy(), b.real.copy()) and same_values(a.imag.copy(), b.imag.copy())
    if a.dtype.kind in "iub":
        return same_bits(a, b)
    nan = np.isnan(a)
    return bool((nan == np.isnan(b)).all()) and same_bits(np.where(nan, 0, a), np.where(nan, 0, b))


def sample(shape: tuple[int, ...], dtype: Any, rank: int, salt: int = 0) -> Array:
    """Return a rank's input: reproducible, with rounding in every addition."""
    generator = np.random.default_rng([rank, salt])
    if np.issubdtype(np.dtype(dtype), np.integer):
        return generator.integers(-1000, 1000, shape).astype(dtype)
    return generator.normal(size=shape).astype(dtype)


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
