"""Reductions of tensors: allreduce and reducescatter.

They work eagerly and inside `tf.function`, run asynchronously on TensorFlow's side, and reuse the input's
buffer for the result where nobody else holds it. Gradients are in `gradients.py`; the rules for `name` are
in `names.py`.

All collectives raise `tf.errors.FailedPreconditionError` on every rank where the ranks disagree about a tensor
or the job is not initialised, `tf.errors.InvalidArgumentError` for a wrong argument or a name that is in
flight already, and `tf.errors.AbortedError` when a rank has died, or has shut down and is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sirtaki
import tensorflow as tf
from sirtaki import ProcessSet, global_process_set
from sirtaki.kinds import Kind
from sirtaki.reduce_ops import Adasum, Average, ReduceOp, Sum, resolve
from sirtaki.tensorflow import calls, names
from sirtaki.tensorflow import compression as compressors
from sirtaki.tensorflow.arguments import (
    TensorLike,
    check_reducible,
    convert,
    name_of_part,
    number_of,
    place_in,
    positions_by_type,
    rows_of_members,
)
from sirtaki.tensorflow.call_description import CallDescription
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.exchanges import allgather


def allreduce(
    tensor: TensorLike,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks of a process set; every rank gets the same bits.

    Args:
        tensor: of the same shape and type on every rank. Which types go with which operation, and what each pair
            means, is a table in ``docs/types.md``. A `tf.IndexedSlices` is reduced by gathering the slices of all
            ranks.
        average: Horovod's old spelling: True for `op=Average`, False for `op=Sum`.
        device_dense, device_sparse, ignore_name_scope: Horovod's; they change nothing here.
        compression: see `Compression`.
        op: `Average` (the default), `Sum`, `Min`, `Max`, `Product` or `Adasum`.
        prescale_factor: multiplies this rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: the same on every rank; see `sirtaki.tensorflow.names` for unnamed calls.
        process_set: the ranks that take part.

    Returns:
        A tensor like the input, or for `tf.IndexedSlices` the slices of all ranks in rank order, divided
        by the number of ranks for `Average`. (As with one process and the whole batch, a row may occur
        in several slices.)

    Raises:
        TypeError: the type does not go with the operation or with a factor.
        ValueError: `op` is unknown, or given together with `average`, or not possible for `tf.IndexedSlices`.

    Example:
        >>> mean_loss = hvd.allreduce(loss)
    """
    reduction = resolve(average, op)
    compressors.check(compression)
    number = number_of(process_set, "allreduce")
    if isinstance(tensor, tf.IndexedSlices):
        factor = prescale_factor * postscale_factor
        return _allreduce_slices(tensor, reduction, compression, factor, name, process_set)
    tensor, context = compression.compress(convert("allreduce", tensor, name))
    check_reducible(tensor.dtype, reduction, prescale_factor, postscale_factor)
    description = CallDescription(
        function="allreduce",
        kind=Kind.ALLREDUCE,
        name=name or names.automatic("allreduce"),
        process_set=number,
        reduce_op=reduction,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    return compression.decompress(calls.allreduce(description, [tensor])[0], context)


def grouped_allreduce(
    tensors: Sequence[TensorLike],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces tensors that belong together: they are ready together, and all or none of them fail.

    Args:
        tensors: as for `allreduce`; different types make one group each, and each `tf.IndexedSlices` travels by
            itself.

    Other arguments are those of `allreduce`.

    Returns:
        The reduced tensors, in order.

    Raises:
        TypeError, ValueError: as for `allreduce`.

    Example:
        >>> total, count = hvd.grouped_allreduce([total, count], op=hvd.Sum)
    """
    reduction = resolve(average, op)
    compressors.check(compression)
    number = number_of(process_set, "grouped_allreduce")
    base = name or (names.automatic("grouped_allreduce") if tensors else "")
    results: list[Any] = [None] * len(tensors)
    dense = []
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            factor = prescale_factor * postscale_factor
            part = base and f"{base}.{i}"
            results[i] = _allreduce_slices(tensor, reduction, compression, factor, part, process_set)
        else:
            dense.append(i)
    packed = [compression.compress(convert("grouped_allreduce", tensors[i], name)) for i in dense]
    for tensor, _ in packed:
        check_reducible(tensor.dtype, reduction, prescale_factor, postscale_factor)
    by_type = positions_by_type([tensor for tensor, _ in packed])
    for dtype, positions in by_type.items():
        description = CallDescription(
            function="grouped_allreduce",
            kind=Kind.ALLREDUCE,
            name=name_of_part(base, dtype, len(by_type)),
            process_set=number,
            reduce_op=reduction,
            prescale=prescale_factor,
            postscale=postscale_factor,
        )
        reduced = calls.allreduce(description, [packed[position][0] for position in positions])
        for position, tensor in zip(positions, reduced, strict=True):
            results[dense[position]] = compression.decompress(tensor, packed[position][1])
    return results


def reducescatter(
    tensor: TensorLike,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over all ranks and returns this rank's share of the rows.

    The rows, along the first dimension, are shared out in rank order: as many to each rank as go evenly, and
    one more to each of the first ranks while there is a remainder.

    Args:
        tensor: at least one dimension, the same shape on all ranks.
        op: as for `allreduce`, without Adasum.

    Other arguments, and the errors, are those of `allreduce`.

    Example:
        >>> own_rows = hvd.reducescatter(table, op=hvd.Sum)
    """
    return _reducescatter(
        *("reducescatter", [tensor], compression, op, name, process_set, prescale_factor, postscale_factor)
    )[0]


def grouped_reducescatter(
    tensors: Sequence[TensorLike],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Reduces and shares out several tensors as one; each one's rows are shared out as by `reducescatter`.

    Example:
        >>> own_kernel, own_table = hvd.grouped_reducescatter([kernel, table], op=hvd.Sum)
    """
    return _reducescatter(
        *("grouped_reducescatter", tensors, compression, op, name, process_set, prescale_factor, postscale_factor)
    )


def _reducescatter(
    function: str,
    tensors: Sequence[TensorLike],
    compression: Any,
    op: int,
    name: str | None,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> list[Any]:
    reduction = resolve(None, op)
    if reduction == Adasum:
        raise ValueError("Adasum exists for allreduce only; choose another op for a reducescatter")
    compressors.check(compression)
    number = number_of(process_set, function)
    base = name or (names.automatic(function) if tensors else "")
    packed = [compression.compress(convert(function, tensor, name)) for tensor in tensors]
    for tensor, _ in packed:
        check_reducible(tensor.dtype, reduction, prescale_factor, postscale_factor)
    results: list[Any] = [None] * len(packed)
    by_type = positions_by_type([tensor for tensor, _ in packed])
    for dtype, positions in by_type.items():
        inputs = [packed[position][0] for position in positions]
        description = CallDescription(
            function=function,
            kind=Kind.REDUCESCATTER,
            name=name_of_part(base, dtype, len(by_type)),
            process_set=number,
            reduce_op=reduction,
            prescale=prescale_factor,
            postscale=postscale_factor,
        )
        rows = [_own_rows(tensor, number) for tensor in inputs]
        shares = calls.reducescatter(description, inputs, rows)
        for position, tensor, share, count in zip(positions, inputs, shares, rows, strict=True):
            if count is not None:
                share.set_shape([count, *tensor.shape[1:]])
            results[position] = compression.decompress(share, packed[position][1])
    return results


def _own_rows(whole: Any, process_set: int) -> int | None:
    """How many rows this rank gets, if the tracer can know it."""
    if tf.executing_eagerly() or not sirtaki.is_initialized():
        return None
    shares = rows_of_members(whole, process_set)
    index, _ = place_in(process_set)
    return None if shares is None or index < 0 else shares[index]


def _allreduce_slices(
    slices: tf.IndexedSlices,
    op: ReduceOp,
    compression: Any,
    factor: float,
    name: str | None,
    process_set: ProcessSet,
) -> tf.IndexedSlices:
    if op not in (Average, Sum):
        raise ValueError(
            f"op={op.name} is not possible for tf.IndexedSlices, whose rows may occur several times: use Average or "
            "Sum, or make it dense with tf.convert_to_tensor (sparse_as_dense=True in an optimizer or a tape)"
        )
    base = name or names.automatic("allreduce_slices")
    # The values have the name that a dense gradient would have: if a rank has one, that is a mismatch and not a wait.
    # The indices come after them, so that nothing is in flight any more once the mismatch is known.
    packed, context = compression.compress(slices.values)
    values = compression.decompress(allgather(packed, name=base, process_set=process_set), context)
    with tf.control_dependencies([values]):
        indices = allgather(slices.indices, name=base and f"{base}.indices", process_set=process_set)
    if op == Average:
        factor /= process_set.size()
    if factor != 1.0:
        values *= tf.cast(factor, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
