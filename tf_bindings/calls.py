"""Hands collectives to TensorFlow: as operations with kernels of our own, or to XLA where that compiles.

Between the public functions and gradients, which know what a collective means, and `_library` and `xla_calls`, which
know how it gets done. Everything here is checked and converted already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from sirtaki.kinds import Kind
from sirtaki.reduce_ops import ReduceOp
from sirtaki.tensorflow import xla_calls
from sirtaki.tensorflow._library import raw_ops
from sirtaki.tensorflow.call_description import CallDescription, double_of_bits

_KINDS = {
    "SirtakiAllreduce": Kind.ALLREDUCE,
    "SirtakiGroupedAllreduce": Kind.ALLREDUCE,
    "SirtakiReducescatter": Kind.REDUCESCATTER,
    "SirtakiAllgather": Kind.ALLGATHER,
    "SirtakiBroadcast": Kind.BROADCAST,
    "SirtakiAlltoall": Kind.ALLTOALL,
}


def describe(op: Any) -> CallDescription:
    """Returns what one of our operations does."""
    kind = _KINDS[op.type]
    reduces = kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER)
    return CallDescription(
        function=kind.label,
        kind=kind,
        name=str(tf.compat.as_str(op.get_attr("tensor_name"))),
        process_set=op.get_attr("process_set"),
        reduce_op=ReduceOp(op.get_attr("reduce_op")) if reduces else ReduceOp.Sum,
        prescale=double_of_bits(op.get_attr("prescale_bits")) if reduces else 1.0,
        postscale=double_of_bits(op.get_attr("postscale_bits")) if reduces else 1.0,
        root_rank=op.get_attr("root_rank") if kind == Kind.BROADCAST else 0,
    )


def allreduce(description: CallDescription, tensors: Sequence[Any]) -> list[Any]:
    """Reduces tensors of one type."""
    if xla_calls.is_tracing():
        return xla_calls.call(description, tensors)
    if len(tensors) == 1:
        return [raw_ops.sirtaki_allreduce(tensors[0], **_reduction(description))]
    return list(raw_ops.sirtaki_grouped_allreduce(list(tensors), **_reduction(description)))


def reducescatter(description: CallDescription, tensors: Sequence[Any], rows: Sequence[int | None]) -> list[Any]:
    """Reduces and shares out tensors of one type.

    Args:
        rows: how many of each this rank gets, as far as that is known.
    """
    if xla_calls.is_tracing():
        if any(number is None for number in rows):
            raise xla_calls.refuse(description.function, "how many rows this rank gets is not known")
        return xla_calls.call(description, tensors, [[number] for number in rows])
    return list(raw_ops.sirtaki_reducescatter(list(tensors), **_reduction(description)))


def allgather(
    description: CallDescription, tensors: Sequence[Any], rows: Sequence[Sequence[int]] | None = None
) -> tuple[list[Any], list[Any]]:
    """Concatenates tensors of one type.

    Args:
        rows: how many of each tensor every member has, if that is known beforehand.

    Returns:
        The results, and for each a vector with the number of rows from every member.
    """
    if xla_calls.is_tracing():
        if rows is None:
            raise xla_calls.refuse(
                description.function, "its result has as many rows as the ranks turn out to have, and XLA needs to know"
            )
        return xla_calls.call(description, tensors, rows), [tf.constant(numbers, tf.int64) for numbers in rows]
    gathered, counts = raw_ops.sirtaki_allgather(list(tensors), **_plain(description))
    return list(gathered), list(counts)


def broadcast(description: CallDescription, tensor: Any) -> Any:
    """Gives every rank the root's tensor."""
    if xla_calls.is_tracing():
        return xla_calls.call(description, [tensor])[0]
    return raw_ops.sirtaki_broadcast(tensor, root_rank=description.root_rank, **_plain(description))


def alltoall(description: CallDescription, tensor: Any, splits: Any) -> tuple[Any, Any]:
    """Exchanges rows; returns them, and how many each member has given."""
    if xla_calls.is_tracing():
        raise xla_calls.refuse(
            description.function, "its result has as many rows as the ranks turn out to give, and XLA needs to know"
        )
    received, rows = raw_ops.sirtaki_alltoall(tensor, splits, **_plain(description))
    return received, rows


def barrier(description: CallDescription) -> Any:
    """Waits for all members."""
    if xla_calls.is_tracing():
        return xla_calls.call(description, [])[0].op
    return raw_ops.sirtaki_barrier(**_plain(description))


def join(description: CallDescription) -> Any:
    """Waits until all ranks have joined; returns the last."""
    if xla_calls.is_tracing():
        return xla_calls.call(description, [])[0]
    return raw_ops.sirtaki_join()


def _plain(description: CallDescription) -> dict[str, Any]:
    return {"process_set": description.process_set, "tensor_name": description.name}


def _reduction(description: CallDescription) -> dict[str, Any]:
    return {
        **_plain(description),
        "reduce_op": int(description.reduce_op),
        "prescale_bits": description.prescale_bits,
        "postscale_bits": description.postscale_bits,
    }
