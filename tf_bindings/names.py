"""Names for calls that were given none: the same on every rank, without the ranks talking about it.

A tensor meets its counterparts on the other ranks by name. The rules:

* Eagerly, an unnamed call stays unnamed and the engine numbers it: the n-th unnamed allreduce of one
  process meets the n-th of the others. Only where a gradient tape is recording does the call get a name
  here, because its gradient must find one too.
* Inside a `tf.function` ops run in no particular order, so the name is given while tracing:
  ``allreduce.train_step.0`` is the first unnamed allreduce in the function ``train_step``. It depends on
  nothing else, so it survives retracing, and extra functions on one rank do not disturb it. Branches and
  loop bodies count within their function: ``allreduce.train_step/while_body0.0``.
* What a function does in every iteration of a loop has one name. That is safe: TensorFlow begins an
  iteration after the collectives of the one before, and `_library` makes it do the same with calls of
  functions that contain collectives.

Two functions of the same name may not run at the same time in different threads; name the calls there.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections import Counter
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

_BRANCHES: tuple[tuple[Any, str], ...] = (
    (control_flow.CondBranchFuncGraph, "cond_branch"),
    (control_flow.WhileCondFuncGraph, "while_condition"),
    (control_flow.WhileBodyFuncGraph, "while_body"),
)
# TensorFlow makes these from a function's name and a number that differs between ranks.
_DERIVED_FUNCTION = re.compile(r"__(?:forward|backward|inference)_(.*)_\d+")

_counts: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()
_branch_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
# Bounded, for TensorFlow keeps an eager kernel for every name that it has ever seen. A name comes back long after the
# gradient of its last use.
_MOST_RECORDED = 4096
_recorded = itertools.count()


def automatic(operation: str) -> str:
    """The name of an unnamed call of `operation` made here and now; empty leaves it to the engine."""
    if tf.executing_eagerly():
        if not record.could_possibly_record():
            return ""
        return f"{operation}.recorded.{next(_recorded) % _MOST_RECORDED}"
    graph = ops.get_default_graph()
    prefix = f"{operation}.{_path(graph)}"
    return f"{prefix}.{_occurrence(graph, prefix)}"


def unique(name: str) -> str:
    """`name`, with a number from its second use in the same graph on: both could be in flight at once."""
    if tf.executing_eagerly():
        return name
    occurrence = _occurrence(ops.get_default_graph(), name)
    return name if occurrence == 0 else f"{name}#{occurrence}"


def of_gradient(name: str, operation: str) -> str:
    """The name of the gradient's call, from that of the forward op, which may be empty."""
    return unique(f"{name}.gradient") if name else automatic(operation)


def _occurrence(graph: Any, key: str) -> int:
    counts = _counts.setdefault(graph, Counter())
    counts[key] += 1
    return counts[key] - 1


def _path(graph: Any) -> str:
    for kind, word in _BRANCHES:
        if isinstance(graph, kind):
            if graph not in _branch_names:
                _branch_names[graph] = f"{word}{_occurrence(graph.outer_graph, word)}"
            return f"{_path(graph.outer_graph)}/{_branch_names[graph]}"
    return _function_path(graph)


def _function_path(graph: Any) -> str:
    """A function is known by its own name, not by who traced it first, which may differ between ranks."""
    name = _function_name(graph)
    depth = 0
    outer = getattr(graph, "outer_graph", None)
    while outer is not None:
        depth += _function_name(outer) == name
        outer = getattr(outer, "outer_graph", None)
    return name if depth == 0 else f"{name}^{depth}"


def _function_name(graph: Any) -> str:
    name = getattr(graph, "name", None) or "graph"
    while derived := _DERIVED_FUNCTION.fullmatch(name):
        name = derived.group(1)
    return str(name)
