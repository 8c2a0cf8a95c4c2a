"""Exchanges of NumPy arrays: allgather, broadcast and alltoall. They move any type and change no value.

Names, and the order of unnamed calls, are as for the reductions (`sirtaki.reductions`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sirtaki import job
from sirtaki.dtypes import as_sendable, dtype_code
from sirtaki.errors import InvalidArgumentError
from sirtaki.handles import Handle
from sirtaki.kinds import Kind
from sirtaki.process_sets import ProcessSet, global_process_set, number_of
from sirtaki.requests import check_in_place, check_name, gathered, group_by_type, submit_by_type

Array = np.ndarray[Any, Any]


def allgather(tensor: npt.ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Return all ranks' arrays joined along their first dimension, in the order of ranks.

    Args:
        tensor: at least one dimension; the first may differ between ranks, also be 0, the others may not.
        name: the same on all ranks; default: the next unnamed call.
        process_set: the ranks that take part.

    Raises:
        InvalidArgumentError: the array is a scalar, or this rank is not in the process set.
        OutOfMemoryError: the result could not be allocated here; the other ranks have theirs.
        MismatchError, DuplicateNameError, RanksFailedError, RankLeftError: as for `allreduce`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> sirtaki.allgather(np.zeros((2, 3))).shape == (2 * sirtaki.size(), 3)
        True
    """
    return gather_with_rows(tensor, name, process_set)[0]


def allgather_async(
    tensor: npt.ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array]:
    """Start an `allgather` and return its handle.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> sirtaki.allgather_async(np.zeros((1, 2))).result().shape == (sirtaki.size(), 2)
        True
    """
    handle = _allgather([tensor], name, process_set)
    return Handle(handle._engine, handle._natives, lambda: handle.result()[0][0])


def grouped_allgather(
    tensors: Sequence[npt.ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Gather several arrays as one; each is joined as by `allgather`.

    Args:
        tensors: at least one array, in the same order on all ranks; types may differ.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> n = sirtaki.size()
        >>> [a.shape == (n * rows,) for rows, a in enumerate(sirtaki.grouped_allgather([[], [1.0]]))]
        [True, True]
    """
    return grouped_allgather_async(tensors, name, process_set).result()


def grouped_allgather_async(
    tensors: Sequence[npt.ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[Array]]:
    """Start a `grouped_allgather` and return its handle.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> len(sirtaki.grouped_allgather_async([np.ones(1), np.ones(2)]).result())
        2
    """
    handle = _allgather(tensors, name, process_set)
    return Handle(handle._engine, handle._natives, lambda: [joined for joined, _ in handle.result()])


def gather_with_rows(
    tensor: npt.ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Array, list[int]]:
    """Like `allgather`, with the number of rows that each rank has given."""
    return _allgather([tensor], name, process_set).result()[0]


def broadcast(
    tensor: npt.ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Return the root rank's array on all ranks.

    Args:
        tensor: any shape and type, the same on all ranks; the values count on the root only.
        root_rank: the global rank whose values all get; it is in the process set.
        name: the same on all ranks; default: the next unnamed call.
        process_set: the ranks that take part.

    Raises:
        InvalidArgumentError: the root is not in the process set, or this rank is not.
        RankJoinedError: the root has joined.
        MismatchError, DuplicateNameError, RanksFailedError, RankLeftError: as for `allreduce`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> int(sirtaki.broadcast(np.array(sirtaki.rank()), root_rank=0))
        0
    """
    array = as_sendable(tensor)
    return _broadcast(array, np.empty_like(array), root_rank, name, process_set, wait=True).result()


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Like `broadcast`, but put the root's values into the array itself and return it.

    Raises:
        ValueError: the array is not writable and contiguous, in this machine's byte order.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> x = np.full(3, sirtaki.rank())
        >>> sirtaki.broadcast_(x, root_rank=0) is x and x.tolist() == [0, 0, 0]
        True
    """
    check_in_place(tensor)
    return _broadcast(tensor, tensor, root_rank, name, process_set, wait=True).result()


def broadcast_async(
    tensor: npt.ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array]:
    """Start a `broadcast` and return its handle.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> sirtaki.broadcast_async(np.ones(2), root_rank=0).result().tolist()
        [1.0, 1.0]
    """
    array = as_sendable(tensor)
    return _broadcast(array, np.empty_like(array), root_rank, name, process_set, wait=False)


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array]:
    """Start a `broadcast_` and return its handle. The array must not be touched before the handle is done.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> x = np.ones(2)
        >>> sirtaki.broadcast_async_(x, root_rank=0).result() is x
        True
    """
    check_in_place(tensor)
    return _broadcast(tensor, tensor, root_rank, name, process_set, wait=False)


def alltoall(
    tensor: npt.ArrayLike,
    splits: npt.ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, Array]:
    """Give each rank a part of this rank's rows, and return the rows that all ranks have given to this one.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others may not.
        splits: how many rows go to each rank of the set, in rank order: as many whole numbers as there are
            ranks, which add up to the rows. Default: the same number to each.
        name: the same on all ranks; default: the next unnamed call.
        process_set: the ranks that take part.

    Returns:
        The received rows, in the order of the ranks that gave them, and how many each gave (int32, as many as
        there are ranks).

    Raises:
        InvalidArgumentError: the splits do not fit; without splits, the rows cannot be shared out evenly; the
            array is a scalar; this rank is not in the process set.
        RankJoinedError: a rank has joined.
        OutOfMemoryError, MismatchError, DuplicateNameError, RanksFailedError, RankLeftError: as for `allgather`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> rows, given = sirtaki.alltoall(np.full(sirtaki.size(), sirtaki.rank()))
        >>> rows.tolist() == list(range(sirtaki.size())) and given.tolist() == [1] * sirtaki.size()
        True
    """
    return alltoall_async(tensor, splits, name, process_set).result()


def alltoall_async(
    tensor: npt.ArrayLike,
    splits: npt.ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Array, Array]]:
    """Start an `alltoall` and return its handle.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> len(sirtaki.alltoall_async(np.ones(sirtaki.size())).result()[0]) == sirtaki.size()
        True
    """
    check_name(name)
    engine = job.current("alltoall").engine
    number = number_of(process_set, engine)
    array = as_sendable(tensor)
    if array.ndim == 0:
        raise InvalidArgumentError("a scalar has no rows to give away: give it a dimension")
    native = engine.submit(
        Kind.ALLTOALL,
        [array],
        [],
        dtype=dtype_code(array.dtype),
        name=name,
        process_set=number,
        values=_splits(array, splits, process_set.size()),
    )

    def finish() -> tuple[Array, Array]:
        rows, given = gathered(native, 0, array)
        return rows, np.array(given, np.int32)

    return Handle(engine, (native,), finish)


def _splits(array: Array, splits: npt.ArrayLike | None, size: int) -> list[int]:
    if splits is None:
        if len(array) % size != 0:
            raise InvalidArgumentError(
                f"the {len(array)} rows of the array cannot be shared out evenly to {size} ranks: give splits"
            )
        return [len(array) // size] * size
    given = np.asarray(splits)
    if given.ndim != 1 or (given.size > 0 and not np.issubdtype(given.dtype, np.integer)):
        raise InvalidArgumentError(f"splits must be a list of whole numbers, one per rank, not {splits!r}")
    return [int(n) for n in given]


def _allgather(
    tensors: Sequence[npt.ArrayLike], name: str | None, process_set: ProcessSet
) -> Handle[list[tuple[Array, list[int]]]]:
    """Submit one request per element type; the results are those of `gathered`."""
    check_name(name)
    engine = job.current("allgather").engine
    number = number_of(process_set, engine)
    arrays, groups = group_by_type(tensors, "gather")
    natives = submit_by_type(engine, Kind.ALLGATHER, arrays, [], groups, name, process_set=number)

    def finish() -> list[tuple[Array, list[int]]]:
        placed = {
            i: gathered(native, tensor, arrays[i])
            for positions, native in zip(groups, natives, strict=True)
            for tensor, i in enumerate(positions)
        }
        return [placed[i] for i in range(len(arrays))]

    return Handle(engine, natives, finish)


def _broadcast(
    array: Array, output: Array, root_rank: int, name: str | None, process_set: ProcessSet, wait: bool
) -> Handle[Array]:
    check_name(name)
    engine = job.current("broadcast").engine
    native = engine.submit(
        Kind.BROADCAST,
        [array],
        [output],
        dtype=dtype_code(array.dtype),
        name=name,
        root_rank=operator.index(root_rank),
        process_set=number_of(process_set, engine),
        wait=wait,
    )
    return Handle(engine, (native,), lambda: output)
