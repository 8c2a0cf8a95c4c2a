"""What the collectives on arrays have in common: names checked, arrays grouped by type, requests made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sirtaki import _native
from sirtaki.dtypes import as_sendable, dtype_code
from sirtaki.engine import Engine
from sirtaki.kinds import Kind

Array = np.ndarray[Any, Any]


def check_name(name: str | None) -> None:
    """Raise unless `name` can be the name of a tensor.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, has a NUL character, or cannot be encoded.
    """
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"a name is text, and name={name!r} is not")
    if not name or "\0" in name or not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"name={name!r} cannot be encoded as UTF-8") from None
        if not name or "\0" in name:
            raise ValueError(f"name={name!r} cannot be used: a name is not empty and has no NUL character")


def check_in_place(tensor: Array) -> None:
    """Raise ValueError unless results can be written into `tensor`."""
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"only an array can be changed in place, not a {type(tensor).__name__}")
    if not (tensor.flags.c_contiguous and tensor.flags.writeable and tensor.dtype.isnative):
        raise ValueError("an array that is changed in place must be writable, contiguous, in native byte order")


def group_by_type(tensors: Sequence[npt.ArrayLike], what: str) -> tuple[list[Array], list[list[int]]]:
    """Return the tensors as arrays, and their positions grouped by element type: one request has one type.

    Raises:
        ValueError: there is no tensor.
    """
    arrays = [as_sendable(t) for t in tensors]
    if not arrays:
        raise ValueError(f"give at least one array to {what}")
    positions: dict[np.dtype[Any], list[int]] = {}
    for i, array in enumerate(arrays):
        positions.setdefault(array.dtype, []).append(i)
    return arrays, list(positions.values())


def _name_of_part(name: str | None, dtype: np.dtype[Any], num_parts: int) -> str | None:
    """Return the name of the request for one type of a group."""
    return name if name is None or num_parts == 1 else f"{name}/{dtype.name}"


def submit_by_type(
    engine: Engine,
    kind: Kind,
    arrays: Sequence[Array],
    outputs: Sequence[Array],
    groups: Sequence[Sequence[int]],
    name: str | None,
    **arguments: Any,
) -> list[_native.Handle]:
    """Submit one request per element type.

    Args:
        arrays: all inputs; groups: their positions, by type (see `group_by_type`).
        outputs: as many as inputs, or none if the engine makes them.
        arguments: the other arguments of `Engine.submit`.
    """
    handles = []
    for positions in groups:
        dtype = arrays[positions[0]].dtype
        handles.append(
            engine.submit(
                kind,
                [arrays[i] for i in positions],
                [outputs[i] for i in positions] if outputs else [],
                dtype=dtype_code(dtype),
                name=_name_of_part(name, dtype, len(groups)),
                **arguments,
            )
        )
    return handles


def gathered(native: _native.Handle, tensor: int, like: Array) -> tuple[Array, list[int]]:
    """Return a result whose size the engine has found out, and how many rows each member has given."""
    rows = native.rows(tensor)
    joined = native.take_gathered(tensor).view(like.dtype).reshape((sum(rows), *like.shape[1:]))
    return joined, rows
