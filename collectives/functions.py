"""The collectives on NumPy arrays.

All ranks make the same calls. A call is recognised by its name or, without one, by being the n-th unnamed call
of the process, so unnamed calls must come in the same order everywhere; asynchronous calls from several threads
need names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sirtaki import job
from sirtaki.dtypes import as_sendable, check_reducible, dtype_code
from sirtaki.engine import ALLGATHER, ALLREDUCE, BARRIER, BROADCAST
from sirtaki.handles import Handle
from sirtaki.reduce_ops import resolve

Array = np.ndarray[Any, Any]


def allreduce(
    tensor: npt.ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Return the average or sum of an array over all ranks.

    Args:
        tensor: any shape, the same on all ranks; float16, bfloat16, float32, float64, int32 or int64. 16-bit
            floats are added in 32 bits.
        average: Horovod's older way to choose between Average and Sum.
        name: the same on all ranks; default: the next unnamed call.
        op: `sirtaki.Average` (default) or `sirtaki.Sum`. The average of integers is cut off towards zero; sums of
            them wrap around.
        prescale_factor: multiplies each rank's values before they are added; floating types only.
        postscale_factor: multiplies the result; floating types only.

    Returns:
        A new array of the same shape and type, with the same bits on all ranks: values are added in the order
        of ranks.

    Raises:
        TypeError: the type cannot be reduced or scaled.
        MismatchError: the ranks disagree about shape, type, operation or factors.
        DuplicateNameError: the name is in flight already.
        RanksFailedError, RankLeftError: a rank died, or has shut down.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> x = sirtaki.allreduce(np.full(3, sirtaki.rank()), op=sirtaki.Sum)
        >>> int(x[0]) == sum(range(sirtaki.size()))
        True
    """
    ((_, handle),) = _allreduce([tensor], average, name, op, prescale_factor, postscale_factor, wait=True)
    return handle.result()[0]


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Like `allreduce`, but put the result in place of the input and return it.

    Saves the allocation of a result, which for large arrays costs as much as the reduction. If the job fails
    meanwhile, the array's contents are undefined.

    Raises:
        ValueError: the array is not writable and contiguous, in this machine's byte order.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> x = np.ones(3)
        >>> sirtaki.allreduce_(x) is x
        True
    """
    if not (tensor.flags.c_contiguous and tensor.flags.writeable and tensor.dtype.isnative):
        raise ValueError("an array that is reduced in place must be writable, contiguous, in native byte order")
    ((_, handle),) = _allreduce(
        [tensor], average, name, op, prescale_factor, postscale_factor, wait=True, in_place=True
    )
    return handle.result()[0]


def allreduce_async(
    tensor: npt.ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Array]:
    """Start an `allreduce` and return its handle; `synchronize` gives the result.

    The array must not be changed before the handle is done. Tensors that are in flight together may travel
    together.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> handles = [sirtaki.allreduce_async(np.ones(2), name=f"w{i}") for i in range(3)]
        >>> [sirtaki.synchronize(h).tolist() for h in handles]
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    ((_, handle),) = _allreduce([tensor], average, name, op, prescale_factor, postscale_factor, wait=False)
    return handle.map(lambda arrays: arrays[0])


def grouped_allreduce(
    tensors: Sequence[npt.ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reduce several arrays as one: none is reduced before all of them are there on all ranks.

    Args:
        tensors: at least one array, in the same order on all ranks; types may differ.

    Other arguments, the results' properties and errors are those of `allreduce`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> [a.dtype.name for a in sirtaki.grouped_allreduce([np.ones(2), np.ones(3, np.float32)])]
        ['float64', 'float32']
    """
    placed: dict[int, Array] = {}
    for positions, handle in _allreduce(tensors, average, name, op, prescale_factor, postscale_factor, wait=True):
        placed.update(zip(positions, handle.result(), strict=True))
    return [placed[i] for i in range(len(placed))]


def allgather(tensor: npt.ArrayLike, name: str | None = None) -> Array:
    """Return all ranks' arrays joined along their first dimension, in the order of ranks.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others may not.
        name: the same on all ranks; default: the next unnamed call.

    Raises:
        InvalidArgumentError: the array is a scalar.
        MismatchError, DuplicateNameError, RanksFailedError, RankLeftError: as for `allreduce`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> sirtaki.allgather(np.zeros((2, 3))).shape == (2 * sirtaki.size(), 3)
        True
    """
    return gather_with_rows(tensor, name)[0]


def gather_with_rows(tensor: npt.ArrayLike, name: str | None = None) -> tuple[Array, list[int]]:
    """Like `allgather`, with the number of rows that each rank has given."""
    _check_name(name)
    engine = job.current("allgather").engine
    array = as_sendable(tensor)
    handle = engine.submit(ALLGATHER, [array], [], dtype=dtype_code(array.dtype), name=name, wait=True)
    engine.raise_for(handle)
    rows = handle.rows
    joined = handle.take_gathered().view(array.dtype).reshape((sum(rows), *array.shape[1:]))
    return joined, rows


def broadcast(tensor: npt.ArrayLike, root_rank: int, name: str | None = None) -> Array:
    """Return the root rank's array on all ranks.

    Args:
        tensor: any shape and type, the same on all ranks; the values count on the root only.
        root_rank: the rank whose values all get.
        name: the same on all ranks; default: the next unnamed call.

    Raises:
        InvalidArgumentError: there is no such root rank.
        MismatchError, DuplicateNameError, RanksFailedError, RankLeftError: as for `allreduce`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> int(sirtaki.broadcast(np.array(sirtaki.rank()), root_rank=0))
        0
    """
    _check_name(name)
    root_rank = operator.index(root_rank)
    engine = job.current("broadcast").engine
    array = as_sendable(tensor)
    output = np.empty_like(array)
    handle = engine.submit(
        BROADCAST, [array], [output], dtype=dtype_code(array.dtype), name=name, root_rank=root_rank, wait=True
    )
    engine.raise_for(handle)
    return output


def barrier(name: str | None = None) -> None:
    """Return once all ranks have called it.

    Raises:
        RanksFailedError, RankLeftError: a rank died, or has shut down.
    """
    _check_name(name)
    engine = job.current("barrier").engine
    engine.raise_for(engine.submit(BARRIER, [], [], name=name, wait=True))


def _allreduce(
    tensors: Sequence[npt.ArrayLike],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    wait: bool,
    in_place: bool = False,
) -> list[tuple[list[int], Handle[list[Array]]]]:
    """Submit one request per element type; return each with the positions of its tensors."""
    _check_name(name)
    engine = job.current("allreduce").engine
    reduce_op = resolve(average, op)
    arrays = [as_sendable(t) for t in tensors]
    if not arrays:
        raise ValueError("give at least one array to reduce")
    positions: dict[np.dtype[Any], list[int]] = {}
    for i, array in enumerate(arrays):
        check_reducible(array.dtype, scaled=prescale != 1.0 or postscale != 1.0)
        positions.setdefault(array.dtype, []).append(i)
    requests = []
    for dtype, members in positions.items():
        outputs = [arrays[i] if in_place else np.empty_like(arrays[i]) for i in members]
        native = engine.submit(
            ALLREDUCE,
            [arrays[i] for i in members],
            outputs,
            dtype=dtype_code(dtype),
            name=name if name is None or len(positions) == 1 else f"{name}/{dtype.name}",
            reduce_op=reduce_op,
            prescale=prescale,
            postscale=postscale,
            wait=wait and len(positions) == 1,
        )
        requests.append((members, Handle(engine, native, _constant(outputs))))
    return requests


def _check_name(name: str | None) -> None:
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


def _constant(value: list[Array]) -> Callable[[object], list[Array]]:
    return lambda _: value
