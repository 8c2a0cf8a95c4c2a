"""Gradients of the collective operations.

Each rank has a loss of its own, and what is differentiated is the sum of all ranks' losses, except that an
averaging allreduce also averages the gradient, so that "average the loss, then differentiate" and
"differentiate, then average" give the same (Horovod's convention).
"""

from __future__ import annotations

import struct
from typing import Any

import sirtaki
import tensorflow as tf
from sirtaki.tensorflow import names, ops


def _name(op: Any) -> str:
    return str(tf.compat.as_str(op.get_attr("tensor_name")))


def _factor(op: Any, attr: str) -> float:
    return float(struct.unpack("<d", struct.pack("<q", op.get_attr(attr)))[0])


def _reduction(op: Any) -> dict[str, Any]:
    """The same reduction as the forward op's."""
    return {
        "op": op.get_attr("reduce_op"),
        "prescale_factor": _factor(op, "prescale_bits"),
        "postscale_factor": _factor(op, "postscale_bits"),
    }


def _allreduce_gradient(op: Any, gradient: Any) -> Any:
    name = names.of_gradient(_name(op), "allreduce")
    return ops.allreduce(tf.convert_to_tensor(gradient), name=name, **_reduction(op))


def _grouped_allreduce_gradient(op: Any, *gradients: Any) -> list[Any]:
    # Every rank must bring the whole group, whatever its own loss depends on.
    complete = [
        tf.zeros_like(output) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, output in zip(gradients, op.outputs, strict=True)
    ]
    name = names.of_gradient(_name(op), "grouped_allreduce")
    return ops.grouped_allreduce(complete, name=name, **_reduction(op))


def _allgather_gradient(op: Any, gradient: Any, _rows_gradient: Any) -> Any:
    name = names.of_gradient(_name(op), "allreduce")
    reduced = ops.allreduce(tf.convert_to_tensor(gradient), op=sirtaki.Sum, name=name)
    rows = op.outputs[1]
    rank = sirtaki.rank()
    begin = tf.reduce_sum(rows[:rank])
    own = reduced[begin : begin + rows[rank]]
    own.set_shape(op.inputs[0].shape)
    return own


def _broadcast_gradient(op: Any, gradient: Any) -> Any:
    name = names.of_gradient(_name(op), "allreduce")
    reduced = ops.allreduce(tf.convert_to_tensor(gradient), op=sirtaki.Sum, name=name)
    return reduced if sirtaki.rank() == op.get_attr("root_rank") else tf.zeros_like(reduced)


tf.RegisterGradient("SirtakiAllreduce")(_allreduce_gradient)
tf.RegisterGradient("SirtakiGroupedAllreduce")(_grouped_allreduce_gradient)
tf.RegisterGradient("SirtakiAllgather")(_allgather_gradient)
tf.RegisterGradient("SirtakiBroadcast")(_broadcast_gradient)
