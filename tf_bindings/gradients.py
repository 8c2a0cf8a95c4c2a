"""Gradients of the collective operations.

Each rank has a loss of its own, and what is differentiated is the sum of all ranks' losses: so the gradient of an
Average is the average of the gradients, that of a Sum their sum, and that of a Max goes to the ranks that had the
largest value (in equal parts, as `tf.reduce_max` does it). All are made of collectives that have gradients
themselves. Adasum has none: it is not a function of sums.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from sirtaki.reduce_ops import Adasum, Average, Product, ReduceOp, Sum
from sirtaki.tensorflow import names
from sirtaki.tensorflow._library import raw_ops
from sirtaki.tensorflow.arguments import double_bits, double_of_bits, place_in


class _Forward:
    """What the forward op was given."""

    def __init__(self, op: Any, function: str) -> None:
        self.reduce_op = ReduceOp(op.get_attr("reduce_op"))
        self.prescale = double_of_bits(op.get_attr("prescale_bits"))
        self.postscale = double_of_bits(op.get_attr("postscale_bits"))
        self.set = op.get_attr("process_set")
        self._name = _name(op)
        if self.reduce_op == Adasum:
            raise LookupError(f"{function} with op=Adasum has no gradient: use Average or Sum where one is needed")

    def name(self, part: str = "") -> str:
        """The name of one of the gradient's own calls."""
        return names.of_gradient(f"{self._name}.{part}" if part and self._name else self._name, "gradient")

    def scaled(self, tensor: Any) -> Any:
        """The tensor as the ranks combine it."""
        return tensor if self.prescale == 1.0 else tensor * tf.cast(self.prescale, tensor.dtype)

    @property
    def factor(self) -> float:
        return self.prescale * self.postscale


def _name(op: Any) -> str:
    return str(tf.compat.as_str(op.get_attr("tensor_name")))


def _complete(gradients: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Every rank must bring the whole group, whatever its own loss depends on."""
    return [
        tf.zeros_like(output) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, output in zip(gradients, outputs, strict=True)
    ]


# ---- The calls that gradients are made of, by the number of the process set


def _reduce(tensors: Sequence[Any], process_set: int, name: str, op: ReduceOp = Sum, factor: float = 1.0) -> list[Any]:
    reduced: list[Any] = raw_ops.sirtaki_grouped_allreduce(
        list(tensors),
        reduce_op=int(op),
        prescale_bits=double_bits(1.0),
        postscale_bits=double_bits(factor),
        process_set=process_set,
        tensor_name=name,
    )
    return reduced


def _gather(tensors: Sequence[Any], process_set: int, name: str) -> list[Any]:
    gathered, rows = raw_ops.sirtaki_allgather(list(tensors), process_set=process_set, tensor_name=name)
    del rows
    return list(gathered)


# ---- Allreduce and reducescatter


def _allreduce_gradient(op: Any, *gradients: Any) -> Any:
    forward = _Forward(op, "allreduce")
    complete = _complete(gradients, op.outputs)
    if forward.reduce_op in (Average, Sum):
        results = _reduce(complete, forward.set, forward.name(), forward.reduce_op, forward.factor)
    else:
        totals = _reduce(complete, forward.set, forward.name())
        results = _through_choice(forward, op.inputs, totals, list(op.outputs))
    return results if len(results) > 1 else results[0]


def _reducescatter_gradient(op: Any, *gradients: Any) -> Any:
    forward = _Forward(op, "reducescatter")
    totals = _gather(_complete(gradients, op.outputs), forward.set, forward.name())
    factor = forward.factor
    if forward.reduce_op in (Average, Sum):
        if forward.reduce_op == Average:
            factor /= place_in(forward.set)[1]
        results = totals if factor == 1.0 else [total * tf.cast(factor, total.dtype) for total in totals]
    else:
        wholes = _gather(op.outputs, forward.set, forward.name("outputs"))
        results = _through_choice(forward, op.inputs, totals, wholes)
    for result, tensor in zip(results, op.inputs, strict=True):
        if not tf.executing_eagerly():
            result.set_shape(tensor.shape)
    return results if len(results) > 1 else results[0]


def _through_choice(
    forward: _Forward, inputs: Sequence[Any], totals: Sequence[Any], outputs: Sequence[Any]
) -> list[Any]:
    """The gradients of Min, Max and Product.

    Args:
        inputs: this rank's.
        totals: the gradients by the whole results, summed over the ranks.
        outputs: the whole results.
    """
    scaled = [forward.scaled(tensor) for tensor in inputs]
    if forward.reduce_op == Product:
        locals_ = [_product_of_others(forward, tensor) for tensor in scaled]
    else:
        extremes = list(outputs)
        if forward.factor != 1.0:  # the results are of other bits than what was compared
            extremes = _reduce(scaled, forward.set, forward.name("extremes"), forward.reduce_op)
        chosen = [tf.cast(a == b, a.dtype) for a, b in zip(scaled, extremes, strict=True)]
        counts = _reduce(chosen, forward.set, forward.name("counts"))
        locals_ = [mask / count for mask, count in zip(chosen, counts, strict=True)]
    return [total * local * tf.cast(forward.factor, total.dtype) for total, local in zip(totals, locals_, strict=True)]


def _product_of_others(forward: _Forward, tensor: Any) -> Any:
    """The product of the other ranks' tensors, without a division that zeros would spoil."""
    stacked = _gather([tensor[None]], forward.set, forward.name("factors"))[0]
    index = place_in(forward.set)[0]
    others = [stacked[member] for member in range(place_in(forward.set)[1]) if member != index]
    # Not tf.reduce_prod, whose second derivative is wrong for complex numbers.
    product = functools.reduce(operator.mul, others, tf.ones_like(tensor))
    return tf.math.conj(product) if product.dtype.is_complex else product


# ---- The exchanges


def _allgather_gradient(op: Any, *gradients: Any) -> Any:
    count = len(op.inputs)
    process_set = op.get_attr("process_set")
    name = names.of_gradient(_name(op), "gradient")
    totals = _reduce(_complete(gradients[:count], op.outputs[:count]), process_set, name)
    index, _ = place_in(process_set)
    results = []
    for total, rows, tensor in zip(totals, op.outputs[count:], op.inputs, strict=True):
        begin = tf.reduce_sum(rows[:index])
        own = total[begin : begin + rows[index]]
        if not tf.executing_eagerly():
            own.set_shape(tensor.shape)
        results.append(own)
    return results if count > 1 else results[0]


def _broadcast_gradient(op: Any, gradient: Any) -> Any:
    name = names.of_gradient(_name(op), "gradient")
    process_set = op.get_attr("process_set")
    total = _reduce([tf.convert_to_tensor(gradient)], process_set, name)[0]
    # The root's rank is its rank in the job. On the others too the result depends on the sum, so that they take part in
    # its own gradient.
    return tf.where(place_in(0)[0] == op.get_attr("root_rank"), total, tf.zeros_like(total))


def _alltoall_gradient(op: Any, gradient: Any, _rows_gradient: Any) -> tuple[Any, None]:
    """The rows go back to where they came from."""
    returned, _ = raw_ops.sirtaki_alltoall(
        tf.convert_to_tensor(gradient),
        op.outputs[1],
        process_set=op.get_attr("process_set"),
        tensor_name=names.of_gradient(_name(op), "gradient"),
    )
    if not tf.executing_eagerly():
        returned.set_shape(op.inputs[0].shape)
    return returned, None


for _operation, _gradient in {
    "SirtakiAllreduce": _allreduce_gradient,
    "SirtakiGroupedAllreduce": _allreduce_gradient,
    "SirtakiReducescatter": _reducescatter_gradient,
    "SirtakiAllgather": _allgather_gradient,
    "SirtakiBroadcast": _broadcast_gradient,
    "SirtakiAlltoall": _alltoall_gradient,
}.items():
    tf.RegisterGradient(_operation)(_gradient)
for _operation in ("SirtakiBarrier", "SirtakiJoin", "SirtakiPosition"):
    tf.no_gradient(_operation)
