"""Loads the op library and tells TensorFlow what it must know about its operations.

After this module is imported the operations exist, know the engine's address, and are not chained to
one another inside a `tf.function`. Knows nothing of names, gradients or Keras.
"""

from __future__ import annotations

import ctypes
import importlib.util
from types import ModuleType

from sirtaki import _native
from sirtaki.errors import InternalError, MissingDependencyError

try:
    import tensorflow as tf
    from tensorflow.python.framework import auto_control_deps
except ImportError as error:
    raise MissingDependencyError(
        "sirtaki.tensorflow needs TensorFlow 2.16 or later; install it with 'pip install sirtaki[tensorflow]'"
    ) from error

OP_TYPES = ("SirtakiAllreduce", "SirtakiGroupedAllreduce", "SirtakiAllgather", "SirtakiBroadcast")


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
    for it in vain, and a loop's next iteration and a second call of a function begin after it is done, so
    that its name is free again. (In the other list, ASYNC_STATEFUL_OPS, unused ops are pruned.)
    """
    auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS |= frozenset(OP_TYPES)


raw_ops, library = _load(_find())
_connect_engine(library)
_free_from_program_order()
