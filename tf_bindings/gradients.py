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
from dataclasses import replace
from typing import Any

import tensorflow as tf
from sirtaki.kinds import Kind
from sirtaki.reduce_ops import Adasum, Average, Product, ReduceOp, Sum
from sirtaki.tensorflow import calls, names, xla_calls
from sirtaki.tensorflow.arguments import place_in, rows_of_members
from sirtaki.tensorflow.call_description import CallDescription

# Each gradient takes the forward call, its inputs and outputs, how many rows each member has given (of those that
# gather), and the gradients by the outputs; it returns those by the inputs.


def _name(forward: CallDescription, part: str = "") -> str:
    """The name of one of the gradient's own calls."""
    return names.of_gradient(f"{forward.name}.{part}" if part and forward.name else forward.name, "gradient")


def _factor(forward: CallDescription) -> float:
    return forward.prescale * forward.postscale


def _complete(gradients: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Every rank must bring the whole group, whatever its own loss depends on."""
    return [
        tf.zeros_like(output) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, output in zip(gradients, outputs, strict=True)
    ]


# ---- The calls that gradients are made of


def _reduce(
    forward: CallDescription, tensors: Sequence[Any], name: str, op: ReduceOp = Sum, factor: float = 1.0
) -> list[Any]:
    call = replace(forward, kind=Kind.ALLREDUCE, name=name, reduce_op=op, prescale=1.0, postscale=factor)
    return calls.allreduce(call, tensors)


def _gather(
    forward: CallDescription, tensors: Sequence[Any], name: str, rows: Sequence[Sequence[int]] | None
) -> list[Any]:
    return calls.allgather(replace(forward, kind=Kind.ALLGATHER, name=name), tensors, rows)[0]


# ---- Allreduce and reducescatter


def _check_differentiable(forward: CallDescription) -> None:
    if forward.reduce_op == Adasum:
        raise LookupError(f"{forward.function} with op=Adasum has no gradient: use Average or Sum where one is needed")


def _allreduce_gradient(
    forward: CallDescription,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    _rows: Sequence[Any],
    gradients: Sequence[Any],
) -> list[Any]:
    _check_differentiable(forward)
    complete = _complete(gradients, outputs)
    if forward.reduce_op in (Average, Sum):
        return _reduce(forward, complete, _name(forward), forward.reduce_op, _factor(forward))
    totals = _reduce(forward, complete, _name(forward))
    return _through_choice(forward, inputs, totals, outputs)


def _reducescatter_gradient(
    forward: CallDescription,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    _rows: Sequence[Any],
    gradients: Sequence[Any],
) -> list[Any]:
    _check_differentiable(forward)
    shares = [rows_of_members(tensor, forward.process_set) for tensor in inputs]
    known = [share for share in shares if share is not None]
    by_member = known if len(known) == len(shares) else None
    totals = _gather(forward, _complete(gradients, outputs), _name(forward), by_member)
    factor = _factor(forward)
    if forward.reduce_op in (Average, Sum):
        if forward.reduce_op == Average:
            factor /= place_in(forward.process_set)[1]
        results = totals if factor == 1.0 else [total * tf.cast(factor, total.dtype) for total in totals]
    else:
        wholes = _gather(forward, outputs, _name(forward, "outputs"), by_member)
        results = _through_choice(forward, inputs, totals, wholes)
    for result, tensor in zip(results, inputs, strict=True):
        if not tf.executing_eagerly():
            result.set_shape(tensor.shape)
    return results


def _through_choice(
    forward: CallDescription, inputs: Sequence[Any], totals: Sequence[Any], outputs: Sequence[Any]
) -> list[Any]:
    """The gradients of Min, Max and Product.

    Args:
        inputs: this rank's.
        totals: the gradients by the whole results, summed over the ranks.
        outputs: the whole results.
    """
    factor = _factor(forward)
    scaled = [
        tensor if forward.prescale == 1.0 else tensor * tf.cast(forward.prescale, tensor.dtype) for tensor in inputs
    ]
    if forward.reduce_op == Product:
        locals_ = [_product_of_others(forward, tensor) for tensor in scaled]
    else:
        extremes = list(outputs)
        if factor != 1.0:  # the results are of other bits than what was compared
            extremes = _reduce(forward, scaled, _name(forward, "extremes"), forward.reduce_op)
        chosen = [tf.cast(a == b, a.dtype) for a, b in zip(scaled, extremes, strict=True)]
        counts = _reduce(forward, chosen, _name(forward, "counts"))
        locals_ = [mask / count for mask, count in zip(chosen, counts, strict=True)]
    return [total * local * tf.cast(factor, total.dtype) for total, local in zip(totals, locals_, strict=True)]


def _product_of_others(forward: CallDescription, tensor: Any) -> Any:
    """The product of the other ranks' tensors, without a division that zeros would spoil."""
    index, size = place_in(forward.process_set)
    stacked = _gather(forward, [tensor[None]], _name(forward, "factors"), [[1] * size])[0]
    others = [stacked[member] for member in range(size) if member != index]
    # Not tf.reduce_prod, whose second derivative is wrong for complex numbers.
    product = functools.reduce(operator.mul, others, tf.ones_like(tensor))
    return tf.math.conj(product) if product.dtype.is_complex else product


# ---- The exchanges


def _allgather_gradient(
    forward: CallDescription,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    rows: Sequence[Any],
    gradients: Sequence[Any],
) -> list[Any]:
    totals = _reduce(forward, _complete(gradients, outputs), _name(forward))
    index, _ = place_in(forward.process_set)
    results = []
    for total, numbers, tensor in zip(totals, rows, inputs, strict=True):
        begin = sum(numbers[:index]) if isinstance(numbers, list) else tf.reduce_sum(numbers[:index])
        own = total[begin : begin + numbers[index]]
        if not tf.executing_eagerly():
            own.set_shape(tensor.shape)
        results.append(own)
    return results


def _broadcast_gradient(
    forward: CallDescription,
    _inputs: Sequence[Any],
    outputs: Sequence[Any],
    _rows: Sequence[Any],
    gradients: Sequence[Any],
) -> list[Any]:
    total = _reduce(forward, _complete(gradients, outputs), _name(forward))[0]
    # The root's rank is its rank in the job. On the others too the result depends on the sum, so that they take part in
    # its own gradient.
    return [tf.where(place_in(0)[0] == forward.root_rank, total, tf.zeros_like(total))]


def _alltoall_gradient(
    forward: CallDescription,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    rows: Sequence[Any],
    gradients: Sequence[Any],
) -> list[Any]:
    """The rows go back to where they came from."""
    complete = _complete(gradients, outputs)[0]
    returned, _ = calls.alltoall(replace(forward, name=_name(forward)), complete, rows[0])
    if not tf.executing_eagerly():
        returned.set_shape(inputs[0].shape)
    return [returned]


def _register(operation: str, gradient: xla_calls.Gradient) -> None:
    """Registers the gradient of an operation with kernels; what it has beside tensors and results are rows."""

    def of_operation(op: Any, *gradients: Any) -> Any:
        forward = calls.describe(op)
        num_results = 1 if operation == "SirtakiAlltoall" else len(op.inputs)
        inputs, outputs, rows = op.inputs[:num_results], op.outputs[:num_results], op.outputs[num_results:]
        results = gradient(forward, list(inputs), list(outputs), list(rows), gradients[:num_results])
        complete = [*results, *[None] * (len(op.inputs) - len(results))]
        return complete if len(complete) > 1 else complete[0]

    tf.RegisterGradient(operation)(of_operation)


for _kind, _operations, _gradient in (
    (Kind.ALLREDUCE, ("SirtakiAllreduce", "SirtakiGroupedAllreduce"), _allreduce_gradient),
    (Kind.REDUCESCATTER, ("SirtakiReducescatter",), _reducescatter_gradient),
    (Kind.ALLGATHER, ("SirtakiAllgather",), _allgather_gradient),
    (Kind.BROADCAST, ("SirtakiBroadcast",), _broadcast_gradient),
    (Kind.ALLTOALL, ("SirtakiAlltoall",), _alltoall_gradient),
):
    xla_calls.register_gradient(_kind, _gradient)
    for _operation in _operations:
        _register(_operation, _gradient)
for _operation in ("SirtakiBarrier", "SirtakiJoin", "SirtakiPosition"):
    tf.no_gradient(_operation)
