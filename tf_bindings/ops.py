"""The collective operations on tensors.

They work eagerly and inside `tf.function`, run asynchronously on TensorFlow's side, and reuse the input's
buffer for the result where nobody else holds it. Gradients are in `gradients.py`; the rules for `name` are
in `names.py`.

All of them raise `tf.errors.FailedPreconditionError` on every rank where the ranks disagree about a tensor
or the job is not initialised, `tf.errors.InvalidArgumentError` for a wrong argument or a name that is in
flight already, and `tf.errors.AbortedError` when a rank has died, or has shut down and is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import sirtaki
import tensorflow as tf
from sirtaki.tensorflow import names
from sirtaki.tensorflow._library import raw_ops
from sirtaki.tensorflow.operations import check_reducible, resolve
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util

# A NumPy array, a Keras or TensorFlow variable, or anything else that `tf.convert_to_tensor` takes.
TensorLike = Any

REDUCIBLE = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
MOVABLE = (
    *REDUCIBLE,
    *(tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.uint64, tf.complex64, tf.complex128),
)


def allreduce(
    tensor: TensorLike,
    average: bool | None = None,
    *,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """Reduces a tensor over all ranks; every rank gets the same bits.

    Args:
        tensor: of the same shape and type on every rank: float16, bfloat16, float32, float64, int32 or
            int64. A `tf.IndexedSlices` is reduced by gathering the slices of all ranks.
        average: Horovod's old spelling: True for `op=Average`, False for `op=Sum`.
        op: `Average` (the default) or `Sum`.
        prescale_factor: multiplies this rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: the same on every rank; see `sirtaki.tensorflow.names` for unnamed calls.

    Returns:
        A tensor like the input, or for `tf.IndexedSlices` the slices of all ranks in rank order, divided
        by the number of ranks for `Average`. (As with one process and the whole batch, a row may occur
        in several slices.)

    Raises:
        TypeError: the type cannot be reduced.
        ValueError: `op` is unknown, or given together with `average`.

    Example:
        >>> mean_loss = hvd.allreduce(loss)
    """
    reduction = resolve(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices(tensor, reduction, prescale_factor * postscale_factor, name)
    tensor = _convert("allreduce", tensor, REDUCIBLE, name)
    check_reducible(tensor.dtype, reduction, prescale_factor, postscale_factor)
    return raw_ops.sirtaki_allreduce(
        tensor,
        reduce_op=int(reduction),
        prescale_bits=double_bits(prescale_factor),
        postscale_bits=double_bits(postscale_factor),
        tensor_name=name or names.automatic("allreduce"),
    )


def grouped_allreduce(
    tensors: Sequence[TensorLike],
    average: bool | None = None,
    *,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Reduces tensors that belong together: they are ready together, and all or none of them fail.

    Args:
        tensors: as for `allreduce`, but no `tf.IndexedSlices`; different types make one group each.
        average, op, prescale_factor, postscale_factor, name: as for `allreduce`.

    Returns:
        The reduced tensors, in order.

    Raises:
        TypeError, ValueError: as for `allreduce`.

    Example:
        >>> total, count = hvd.grouped_allreduce([total, count], op=hvd.Sum)
    """
    reduction = resolve(average, op)
    converted = [_convert("grouped_allreduce", tensor, REDUCIBLE, name) for tensor in tensors]
    base = name or (names.automatic("grouped_allreduce") if converted else "")
    by_dtype: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(converted):
        check_reducible(tensor.dtype, reduction, prescale_factor, postscale_factor)
        by_dtype.setdefault(tensor.dtype, []).append(position)
    results: list[Any] = [None] * len(converted)
    for dtype, positions in by_dtype.items():
        reduced = raw_ops.sirtaki_grouped_allreduce(
            [converted[position] for position in positions],
            reduce_op=int(reduction),
            prescale_bits=double_bits(prescale_factor),
            postscale_bits=double_bits(postscale_factor),
            tensor_name=f"{base}.{dtype.name}" if base and len(by_dtype) > 1 else base,
        )
        for position, tensor in zip(positions, reduced, strict=True):
            results[position] = tensor
    return results


def allgather(tensor: TensorLike, name: str | None = None) -> Any:
    """Concatenates the tensors of all ranks along their first dimension, in rank order.

    Args:
        tensor: at least one-dimensional, of the same type and the same shape but for the first dimension;
            all types of numbers and bool.
        name: as for `allreduce`.

    Returns:
        A tensor of the input's type and shape, with as many rows as all ranks' tensors have together.

    Raises:
        TypeError: the type cannot be sent, such as string.
        ValueError, tf.errors.InvalidArgumentError: the tensor is a scalar.

    Example:
        >>> all_scores = hvd.allgather(scores)  # shape (5, 2) and (3, 2) give (8, 2)
    """
    return gather_with_rows(tensor, name or names.automatic("allgather"))[0]


def broadcast(tensor: TensorLike, root_rank: int, name: str | None = None) -> Any:
    """Gives every rank the tensor of the rank `root_rank`.

    Args:
        tensor: of the same shape and type on every rank; all types of numbers and bool. Its values
            matter on the root only.
        root_rank: from 0 to `size() - 1`.
        name: as for `allreduce`.

    Returns:
        A tensor like the root's.

    Raises:
        TypeError: the type cannot be sent, such as string.

    Example:
        >>> permutation = hvd.broadcast(tf.random.shuffle(tf.range(1000)), root_rank=0)
    """
    tensor = _convert("broadcast", tensor, MOVABLE, name)
    return raw_ops.sirtaki_broadcast(tensor, root_rank=root_rank, tensor_name=name or names.automatic("broadcast"))


def gather_with_rows(tensor: TensorLike, name: str) -> tuple[Any, Any]:
    """What `allgather` returns, and how many rows each rank has contributed, as an int64 vector."""
    tensor = _convert("allgather", tensor, MOVABLE, name)
    gathered, rows = raw_ops.sirtaki_allgather(tensor, tensor_name=name)
    return gathered, rows


def double_bits(value: float) -> int:
    """A float64 as the integer with the same bits; how scale factors travel in an op's attributes."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _allreduce_slices(slices: tf.IndexedSlices, op: int, factor: float, name: str | None) -> tf.IndexedSlices:
    base = name or names.automatic("allreduce_slices")
    # The values have the name that a dense gradient would have: if a rank has one, that is a mismatch and not a wait.
    # The indices come after them, so that nothing is in flight any more once the mismatch is known.
    values = allgather(slices.values, name=base)
    with tf.control_dependencies([values]):
        indices = allgather(slices.indices, name=base and f"{base}.indices")
    if op == sirtaki.Average:
        factor /= sirtaki.size()
    if factor != 1.0:
        values *= tf.cast(factor, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _convert(function: str, value: TensorLike, types: tuple[tf.DType, ...], name: str | None) -> tf.Tensor:
    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf_ops.get_default_graph()):
        raise NotImplementedError(
            f"sirtaki.tensorflow.{function} cannot be compiled by XLA yet: compile the model with "
            "jit_compile=False, or take jit_compile=True off the tf.function that calls it"
        )
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in types:
        known = ", ".join(dtype.name for dtype in types)
        raise TypeError(
            f"{function} of {name or 'an unnamed tensor'}: type {tensor.dtype.name} is not among those it "
            f"can take ({known}); cast the tensor first"
        )
    return tensor
