"""Collectives inside functions that XLA compiles (`jit_compile=True`).

XLA knows no kernels, so a collective becomes a call of our custom-call target (``native/tensorflow/xla_calls.cc``),
with everything there is to know written into the program.

  * XLA puts calls that do not depend on each other in any order, and a call blocks its thread: two ranks that begin
    with different calls would wait for each other for ever. So each call takes a result of the one before it as an
    operand that nobody reads, and all calls of a trace are one chain. Control flow that contains calls is a link of
    the chain as well.
  * Results must have shapes that are known when the function is traced.
  * A call has the gradient of its operation, from the same table (`gradients.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sirtaki.dtypes
import tensorflow as tf
from sirtaki.errors import MissingDependencyError
from sirtaki.kinds import Kind
from sirtaki.tensorflow._library import library
from sirtaki.tensorflow.call_description import CallDescription
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_custom_call_v2
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

_TARGET = "sirtaki_collective"
_VERSION = 1
_FLOW = (control_flow.CondBranchFuncGraph, control_flow.WhileCondFuncGraph, control_flow.WhileBodyFuncGraph)

# How to differentiate: (description, inputs, outputs, rows, gradients by the outputs) -> gradients by the inputs.
Gradient = Callable[[CallDescription, Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]]
_gradients: dict[Kind, Gradient] = {}


def register_gradient(kind: Kind, gradient: Gradient) -> None:
    """Says how calls of a kind are differentiated."""
    _gradients[kind] = gradient


def is_tracing() -> bool:
    """Whether XLA will compile what is being traced."""
    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf_ops.get_default_graph())


def refuse(function: str, why: str) -> NotImplementedError:
    """Returns the error for a collective that XLA cannot compile."""
    return NotImplementedError(
        f"sirtaki.tensorflow.{function} cannot be compiled by XLA: {why}. Call it outside of the function with "
        "jit_compile=True, or compile without it (model.compile(jit_compile=False))"
    )


def call(
    description: CallDescription, tensors: Sequence[Any], rows_by_member: Sequence[Sequence[Any]] | None = None
) -> list[Any]:
    """Emits a collective.

    Args:
        description: what is to be done.
        tensors: this rank's, all of one type; their shapes must be known.
        rows_by_member: for each tensor the numbers of rows that its result is made of, if it has not as many as the
            tensor.

    Returns:
        The results. A barrier and a join have one, an int32 scalar.

    Raises:
        NotImplementedError: a shape is not known.
        MissingDependencyError: this TensorFlow cannot do it.
    """
    problem = library.sirtaki_ops_xla_problem().decode()
    if problem:
        raise MissingDependencyError(
            f"collectives cannot be compiled by XLA with TensorFlow {tf.__version__}: {problem}. Compile with "
            "jit_compile=False"
        )
    for tensor in tensors:
        if not tensor.shape.is_fully_defined():
            raise refuse(
                description.function,
                f"the shape of {description.name or 'an unnamed tensor'}, {tensor.shape}, is not known when "
                "the function is traced, and XLA needs it",
            )
    if rows_by_member is None:
        rows_by_member = [[tensor.shape[0] if tensor.shape.rank else 0] for tensor in tensors]
    rows = [sum(numbers) for numbers in rows_by_member]
    if not tensors:
        return _emit(description, [], [tf.int32], [[]], [])

    def differentiable(*inputs: Any) -> Any:
        shapes = [
            [count, *tensor.shape[1:]] if tensor.shape.rank else [] for count, tensor in zip(rows, inputs, strict=True)
        ]
        outputs = _emit(description, list(inputs), [tensor.dtype for tensor in inputs], shapes, rows)

        def gradient(*by_outputs: Any) -> Any:
            found = list(_gradients[description.kind](description, inputs, outputs, rows_by_member, by_outputs))
            return found[0] if len(found) == 1 else found

        return (outputs[0] if len(outputs) == 1 else outputs), gradient

    result = tf.custom_gradient(differentiable)(*tensors)
    return [result] if len(tensors) == 1 else list(result)


def _emit(
    description: CallDescription, inputs: list[Any], types: list[Any], shapes: list[Any], rows: Sequence[int]
) -> list[Any]:
    graph = tf_ops.get_default_graph()
    chain = _chain_of(graph)
    outputs = xla_custom_call_v2(
        operands=[*inputs, *chain.ends()],
        call_target_name=_TARGET,
        backend_config=_as_text(description, inputs, rows),
        has_side_effect=True,
        result_dtypes=types,
        result_shapes=[tf.TensorShape(shape) for shape in shapes],
    )
    chain.go_on(outputs[0])
    return list(outputs)


def _as_text(description: CallDescription, inputs: list[Any], rows: Sequence[int]) -> str:
    """What the target parses; see there."""
    code = sirtaki.dtypes.dtype_code(np.dtype(inputs[0].dtype.as_numpy_dtype)) if inputs else 0
    name = description.name
    numbers = [
        *(_VERSION, int(description.kind), int(description.reduce_op), code, description.root_rank),
        *(description.process_set, description.prescale_bits, description.postscale_bits),
        *(len(inputs), len(name.encode())),
    ]
    for tensor, count in zip(inputs, rows, strict=True):
        numbers += [count, tensor.shape.rank, *tensor.shape.as_list()]
    return " ".join(map(str, numbers)) + "\n" + name


@dataclass
class _Chain:
    """The calls of one graph so far.

    Attributes:
        graph: the graph.
        last: a result of its last call, None before the first.
        seen: how many operations of the graph have been looked at for control flow with calls.
    """

    graph: Any
    last: Any = None
    seen: int = 0
    flows: list[Any] = field(default_factory=list)

    def ends(self) -> list[Any]:
        """What the next call must come after."""
        operations = self.graph.get_operations()
        for operation in operations[self.seen :]:
            if operation.outputs and _contains_calls(self.graph, operation):
                self.flows.append(operation.outputs[0])
        self.seen = len(operations)
        found = [*([] if self.last is None else [self.last]), *self.flows]
        if not found and isinstance(self.graph, _FLOW):
            # The first call in a branch or a loop comes after those before it: the graph takes them in.
            return list(_chain_of(self.graph.outer_graph).ends())
        return [end for end in found if end.dtype != tf.resource and end.dtype != tf.variant]

    def go_on(self, result: Any) -> None:
        """Makes a call's result the end of the chain."""
        self.last = result
        self.flows = []


_chains: weakref.WeakKeyDictionary[Any, _Chain] = weakref.WeakKeyDictionary()


def _chain_of(graph: Any) -> _Chain:
    if graph not in _chains:
        _chains[graph] = _Chain(weakref.proxy(graph))
    return _chains[graph]


_functions_with_calls: dict[str, bool] = {}  # by function name, which TensorFlow gives only once


def _contains_calls(graph: Any, operation: Any) -> bool:
    """Whether an operation is control flow, or a call of a function, that contains a collective."""
    names = [
        operation.get_attr(attribute).name
        for attribute in ("f", "body", "cond", "then_branch", "else_branch")
        if attribute in operation.node_def.attr and operation.node_def.attr[attribute].func.name
    ]
    return any(_function_contains_calls(graph, name) for name in names)


def _function_contains_calls(graph: Any, name: str) -> bool:
    if name not in _functions_with_calls:
        _functions_with_calls[name] = False  # ends the walk of a function that calls itself
        found = graph._get_function(name)
        definition = None if found is None else getattr(found, "cached_definition", None) or found.definition
        _functions_with_calls[name] = definition is not None and any(
            (node.op == "XlaCustomCallV2" and node.attr["call_target_name"].s == _TARGET.encode())
            or any(
                attribute.func.name and _function_contains_calls(graph, attribute.func.name)
                for attribute in node.attr.values()
            )
            for node in definition.node_def
        )
    return _functions_with_calls[name]
