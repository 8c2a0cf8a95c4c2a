"""Loads the op library and tells TensorFlow what it must know about its operations.

After this module is imported the operations exist, know the engine's address, and are not chained to
one another inside a `tf.function`, while calls of functions that contain them are. Knows nothing of names,
gradients or Keras.
"""

from __future__ import annotations

import ctypes
import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any

from sirtaki import _native
from sirtaki.errors import InternalError, MissingDependencyError

try:
    import tensorflow as tf
    from tensorflow.python.framework import auto_control_deps
except ImportError as error:
    raise MissingDependencyError(
        "sirtaki.tensorflow needs TensorFlow 2.16 or later; install it with 'pip install sirtaki[tensorflow]'"
    ) from error

OP_TYPES = (
    *("SirtakiAllreduce", "SirtakiGroupedAllreduce", "SirtakiReducescatter"),
    *("SirtakiAllgather", "SirtakiBroadcast", "SirtakiAlltoall", "SirtakiBarrier", "SirtakiJoin"),
)


def _find() -> str:
    spec = importlib.util.find_spec("sirtaki.tensorflow._ops")
    if spec is None or spec.origin is None:
        raise InternalError(
            "the op library sirtaki/tensorflow/_ops*.so is not there: this installation of Sirtaki is not "
            "complete, install it again"
        )
    return spec.origin


def _load(path: str) -> tuple[ModuleType, ctypes.CDLL]:
    """Loads the library twice over: for TensorFlow's registry and for our own exported functions."""
    ops = tf.load_op_library(path)
    library = ctypes.CDLL(path)
    library.sirtaki_ops_load_problem.restype = ctypes.c_char_p
    library.sirtaki_ops_xla_problem.restype = ctypes.c_char_p
    problem = library.sirtaki_ops_load_problem().decode()
    if problem:
        raise ImportError(f"sirtaki.tensorflow cannot be used with TensorFlow {tf.__version__}: {problem}")
    return ops, library


def _connect_engine(library: ctypes.CDLL) -> None:
    library.sirtaki_ops_set_engine.argtypes = [ctypes.c_void_p]
    library.sirtaki_ops_set_engine.restype = ctypes.c_uint32
    expected = library.sirtaki_ops_set_engine(_native.engine_api_address())
    if expected != 0:
        raise ImportError(
            f"sirtaki.tensorflow._ops was built for version {expected} of the engine's interface and "
            "sirtaki._native has another one: the installation mixes two versions, install Sirtaki again"
        )


def _free_from_program_order() -> None:
    """Lets all reductions of a `tf.function` be in flight at once.

    TensorFlow chains the stateful ops of a function in program order, which would leave nothing to overlap
    or fuse. Of its two lists of exceptions this is the one whose ops still must run before the function
    returns: an op whose result one rank does not use runs there nevertheless, so that the others do not wait
    for it in vain, and a loop's next iteration begins after it is done, so that its name is free again. (In
    the other list, ASYNC_STATEFUL_OPS, unused ops are pruned.)
    """
    auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS |= frozenset(OP_TYPES)


class _Collectives:
    """Stands for a resource that every call of a function with collectives writes to, and so chains them.

    Has what TensorFlow's automatic control dependencies ask of a resource tensor.
    """

    _id = -1  # tensors have positive numbers
    op = SimpleNamespace(type="SirtakiCollectives")


_collectives = _Collectives()
_has_collectives: dict[str, bool] = {}  # by function name, which TensorFlow gives only once


def _contains_collectives(graph: Any, function: str) -> bool:
    if function not in _has_collectives:
        _has_collectives[function] = False  # ends the walk of a function that calls itself
        found = graph._get_function(function)
        definition = getattr(found, "cached_definition", None) or found.definition
        _has_collectives[function] = any(
            node.op in OP_TYPES
            or any(
                attribute.func.name and _contains_collectives(graph, attribute.func.name)
                for attribute in node.attr.values()
            )
            for node in definition.node_def
        )
    return _has_collectives[function]


def _chain_calls_of_functions() -> None:
    """Lets a call of a function with collectives begin after the one before it is done.

    The names of collectives are those of their function: two calls at once would submit a name twice, and two
    functions with the same names would exchange their values. TensorFlow itself chains two calls only if one
    of them writes to what the other uses, which a function that computes gradients need not do.
    """

    def resolver(op: Any, _reads: set[Any], writes: set[Any]) -> bool:
        if op.type not in ("PartitionedCall", "StatefulPartitionedCall") or _collectives in writes:
            return False
        if not _contains_collectives(op.graph, op.get_attr("f").name):
            return False
        writes.add(_collectives)
        return True

    auto_control_deps.register_acd_resource_resolver(resolver)


raw_ops, library = _load(_find())
_connect_engine(library)
_free_from_program_order()
_chain_calls_of_functions()
