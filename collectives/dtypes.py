"""The element types: NumPy's on one side, the engine's numbers (``native/engine_abi.h``) on the other."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

# By NumPy name: bfloat16 is a type of the package ml_dtypes, which is recognised without being imported.
_CODES: dict[str, int] = {
    "bool": 0,
    "uint8": 1,
    "int8": 2,
    "uint16": 3,
    "int16": 4,
    "uint32": 5,
    "int32": 6,
    "uint64": 7,
    "int64": 8,
    "float16": 9,
    "bfloat16": 10,
    "float32": 11,
    "float64": 12,
    "complex64": 13,
    "complex128": 14,
}
_NAMES = {code: name for name, code in _CODES.items()}
_REDUCIBLE = {"float16", "bfloat16", "float32", "float64", "int32", "int64"}
_INTEGERS = {"int32", "int64"}


# The names of types are slow to make and every call asks for one; there are few types.
@functools.lru_cache(maxsize=256)
def dtype_code(dtype: np.dtype[Any]) -> int:
    """Return the engine's number of a NumPy type.

    Raises:
        TypeError: the type cannot be sent.
    """
    name = dtype.name
    if name not in _CODES:
        raise TypeError(f"arrays of type {name} cannot be sent; the types are {', '.join(_CODES)}")
    return _CODES[name]


def dtype_name(code: int) -> str:
    """Return NumPy's name of an engine type."""
    return _NAMES[code]


@functools.lru_cache(maxsize=256)
def check_reducible(dtype: np.dtype[Any], op: int, scaled: bool) -> None:
    """Raise TypeError unless arrays of this type can be reduced, and scaled if `scaled`."""
    name = dtype.name
    if name not in _REDUCIBLE:
        raise TypeError(
            f"an allreduce of type {name} is not possible; it works for {', '.join(sorted(_REDUCIBLE))}. "
            "Cast the array first."
        )
    if scaled and name in _INTEGERS:
        raise TypeError(f"prescale_factor and postscale_factor need a floating type, and the array is {name}")


def as_sendable(value: npt.ArrayLike) -> np.ndarray[Any, Any]:
    """Return `value` as a contiguous array in this machine's byte order, copying only if needed."""
    array = np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = array.copy(order="C")  # unlike ascontiguousarray this keeps a scalar a scalar
    dtype_code(array.dtype)
    return array
