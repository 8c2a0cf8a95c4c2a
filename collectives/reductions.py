"""Reductions of NumPy arrays: allreduce and reducescatter.

All ranks make the same calls. A call is recognised by its name or, without one, by being the n-th unnamed call
of the process in its process set, so unnamed calls must come in the same order everywhere; asynchronous calls
from several threads need names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sirtaki import _native, job
from sirtaki.dtypes import as_sendable, check_reducible, dtype_code
from sirtaki.engine import Engine
from sirtaki.errors import InvalidArgumentError
from sirtaki.handles import Handle
from sirtaki.kinds import Kind
from sirtaki.process_sets import ProcessSet, global_process_set, number_of
from sirtaki.reduce_ops import ReduceOp, resolve
from sirtaki.requests import check_in_place, check_name, group_by_type, submit_by_type

Array = np.ndarray[Any, Any]


def allreduce(
    tensor: npt.ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Return the reduction of an array over all ranks of a process set.

    Args:
        tensor: any shape, the same on all ranks. Which types go with which operation, and what each pair means,
            is a table in ``docs/types.md``. 16-bit floats are added in 32 bits.
        average: Horovod's older way to choose between Average and Sum.
        name: the same on all ranks; default: the next unnamed call.
        op: `sirtaki.Average` (default), `Sum`, `Min`, `Max`, `Product` or `Adasum`.
        prescale_factor: multiplies each rank's values before they are combined; floating and complex types.
        postscale_factor: multiplies the result; floating and complex types.
        process_set: the ranks that take part.

    Returns:
        A new array of the same shape and type, with the same bits on all ranks: values are combined in the
        order of ranks.

    Raises:
        TypeError: the type does not go with the operation, or with a factor.
        MismatchError: the ranks disagree about shape, type, operation or factors.
        DuplicateNameError: the name is in flight already.
        InvalidArgumentError: this rank is not in the process set.
        RanksFailedError, RankLeftError: a rank died, or has shut down.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> x = sirtaki.allreduce(np.full(3, sirtaki.rank()), op=sirtaki.Sum)
        >>> int(x[0]) == sum(range(sirtaki.size()))
        True
    """
    return _allreduce_one(tensor, average, name, op, prescale_factor, postscale_factor, process_set, True).result()


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    check_in_place(tensor)
    return _allreduce_one(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, True, in_place=True
    ).result()


def allreduce_async(
    tensor: npt.ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    return _allreduce_one(tensor, average, name, op, prescale_factor, postscale_factor, process_set, False)


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """Start an `allreduce_` and return its handle. The array must not be touched before the handle is done.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> x = np.ones(3)
        >>> sirtaki.allreduce_async_(x).result() is x
        True
    """
    check_in_place(tensor)
    return _allreduce_one(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, False, in_place=True
    )


def grouped_allreduce(
    tensors: Sequence[npt.ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several arrays as one: none is reduced before all of its type are there on all ranks.

    Args:
        tensors: at least one array, in the same order on all ranks; types may differ.

    Other arguments, the results' properties and errors are those of `allreduce`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> [a.dtype.name for a in sirtaki.grouped_allreduce([np.ones(2), np.ones(3, np.float32)])]
        ['float64', 'float32']
    """
    return grouped_allreduce_async(tensors, average, name, op, prescale_factor, postscale_factor, process_set).result()


def grouped_allreduce_async(
    tensors: Sequence[npt.ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array]]:
    """Start a `grouped_allreduce` and return its handle.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> [a.tolist() for a in sirtaki.grouped_allreduce_async([np.ones(2), np.ones(1)]).result()]
        [[1.0, 1.0], [1.0]]
    """
    return _allreduce_group(tensors, average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Like `grouped_allreduce`, but put the results in place of the inputs and return them.

    Raises:
        ValueError: an array is not writable and contiguous, in this machine's byte order.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> x = np.ones(3)
        >>> sirtaki.grouped_allreduce_([x])[0] is x
        True
    """
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).result()


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array]]:
    """Start a `grouped_allreduce_` and return its handle. The arrays must not be touched before the handle is done.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> x = np.ones(3)
        >>> sirtaki.grouped_allreduce_async_([x]).result()[0] is x
        True
    """
    for tensor in tensors:
        check_in_place(tensor)
    return _allreduce_group(tensors, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True)


def reducescatter(
    tensor: npt.ArrayLike,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Return this rank's share of the rows of an array's reduction over all ranks.

    The rows, along the first dimension, are shared out in rank order: as many to each rank as go evenly, and
    one more to each of the first ranks while there is a remainder.

    Args:
        tensor: at least one dimension, the same shape on all ranks.
        op: as for `allreduce`, without Adasum.

    Other arguments are those of `allreduce`. The values have the same bits as an allreduce's.

    Raises:
        InvalidArgumentError: the array is a scalar, or this rank is not in the process set.
        ValueError: the operation is Adasum.
        RankJoinedError: a rank has joined, so its share would be lost.
        TypeError, MismatchError, DuplicateNameError, RanksFailedError, RankLeftError: as for `allreduce`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> rows = sirtaki.reducescatter(np.ones((2 * sirtaki.size(), 3)), op=sirtaki.Sum)
        >>> rows.shape == (2, 3) and float(rows[0, 0]) == sirtaki.size()
        True
    """
    return grouped_reducescatter([tensor], op, name, prescale_factor, postscale_factor, process_set)[0]


def reducescatter_async(
    tensor: npt.ArrayLike,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """Start a `reducescatter` and return its handle.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> sirtaki.reducescatter_async(np.ones(sirtaki.size())).result().tolist()
        [1.0]
    """
    engine, natives, finish = _reducescatter([tensor], op, name, prescale_factor, postscale_factor, process_set)
    return Handle(engine, natives, lambda: finish()[0])


def grouped_reducescatter(
    tensors: Sequence[npt.ArrayLike],
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce and share out several arrays as one; each array's rows are shared out as by `reducescatter`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> n = sirtaki.size()
        >>> [a.shape for a in sirtaki.grouped_reducescatter([np.ones(n), np.ones((2 * n, 3))])]
        [(1,), (2, 3)]
    """
    return grouped_reducescatter_async(tensors, op, name, prescale_factor, postscale_factor, process_set).result()


def grouped_reducescatter_async(
    tensors: Sequence[npt.ArrayLike],
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array]]:
    """Start a `grouped_reducescatter` and return its handle.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> [a.tolist() for a in sirtaki.grouped_reducescatter_async([np.ones(sirtaki.size())]).result()]
        [[1.0]]
    """
    return Handle(*_reducescatter(tensors, op, name, prescale_factor, postscale_factor, process_set))


def _allreduce_one(
    tensor: npt.ArrayLike,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wait: bool,
    in_place: bool = False,
) -> Handle[Array]:
    check_name(name)
    engine = job.current("allreduce").engine
    reduce_op = resolve(average, op)
    array = as_sendable(tensor)
    check_reducible(array.dtype, reduce_op, prescale != 1.0 or postscale != 1.0)
    output = array if in_place else np.empty_like(array)
    native = engine.submit(
        Kind.ALLREDUCE,
        [array],
        [output],
        dtype=dtype_code(array.dtype),
        name=name,
        reduce_op=reduce_op,
        process_set=number_of(process_set, engine),
        prescale=prescale,
        postscale=postscale,
        wait=wait,
    )
    return Handle(engine, (native,), lambda: output)


def _allreduce_group(
    tensors: Sequence[npt.ArrayLike],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool = False,
) -> Handle[list[Array]]:
    check_name(name)
    engine = job.current("grouped_allreduce").engine
    reduce_op = resolve(average, op)
    arrays, groups = group_by_type(tensors, "reduce")
    for array in arrays:
        check_reducible(array.dtype, reduce_op, prescale != 1.0 or postscale != 1.0)
    outputs = arrays if in_place else [np.empty_like(a) for a in arrays]
    natives = submit_by_type(
        *(engine, Kind.ALLREDUCE, arrays, outputs, groups, name),
        reduce_op=reduce_op,
        process_set=number_of(process_set, engine),
        prescale=prescale,
        postscale=postscale,
    )
    return Handle(engine, natives, lambda: outputs)


def _reducescatter(
    tensors: Sequence[npt.ArrayLike],
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> tuple[Engine, list[_native.Handle], Any]:
    check_name(name)
    engine = job.current("reducescatter").engine
    reduce_op = resolve(None, op)
    if reduce_op == ReduceOp.Adasum:
        raise ValueError("Adasum exists for allreduce only; choose another op for a reducescatter")
    arrays, groups = group_by_type(tensors, "reduce")
    for array in arrays:
        if array.ndim == 0:
            raise InvalidArgumentError("a scalar has no rows to share out: give it a dimension")
        check_reducible(array.dtype, reduce_op, prescale != 1.0 or postscale != 1.0)
    number = number_of(process_set, engine)
    # A rank outside the set gets the engine's error.
    index, size = process_set.rank() or 0, process_set.size()
    outputs = [np.empty((len(a) // size + (index < len(a) % size), *a.shape[1:]), a.dtype) for a in arrays]
    natives = submit_by_type(
        *(engine, Kind.REDUCESCATTER, arrays, outputs, groups, name),
        reduce_op=reduce_op,
        process_set=number,
        prescale=prescale,
        postscale=postscale,
    )
    return engine, natives, lambda: outputs
