"""Where this process stands, as operations: known when they run, not when they are traced.

In what XLA compiles they are constants: XLA knows no such operations.
"""

from __future__ import annotations

from typing import Any

import sirtaki
import tensorflow as tf
from sirtaki.tensorflow import xla_calls
from sirtaki.tensorflow._library import raw_ops
from sirtaki.tensorflow.arguments import place_in


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of ranks in a process set, an int32 scalar.

    Args:
        process_set_id: the set's number; 0: all ranks.
        name: of the operation in a graph.

    Raises:
        tf.errors.FailedPreconditionError: there is no job.
        tf.errors.InvalidArgumentError: there is no such set.

    Example:
        >>> learning_rate = 0.001 * tf.cast(hvd.size_op(), tf.float32)
    """
    return _position(what="size", process_set=process_set_id, name=name)


def rank_op(name: str | None = None) -> Any:
    """Returns this process's rank, an int32 scalar. Arguments and errors are those of `size_op`.

    Example:
        >>> rank = hvd.rank_op()
    """
    return _position(what="rank", name=name)


def local_size_op(name: str | None = None) -> Any:
    """Returns the number of ranks on this host, an int32 scalar. Arguments and errors are those of `size_op`.

    Example:
        >>> ranks_here = hvd.local_size_op()
    """
    return _position(what="local_size", name=name)


def local_rank_op(name: str | None = None) -> Any:
    """Returns this process's rank on its host, an int32 scalar. Arguments and errors are those of `size_op`.

    Example:
        >>> local_rank = hvd.local_rank_op()
    """
    return _position(what="local_rank", name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 if this process is in a process set and 0 if not, an int32 scalar.

    Arguments and errors are those of `size_op`.

    Example:
        >>> is_member = hvd.process_set_included_op(experts.process_set_id)
    """
    return _position(what="included", process_set=process_set_id, name=name)


def _position(what: str, process_set: int = 0, name: str | None = None) -> Any:
    if not xla_calls.is_tracing():
        return raw_ops.sirtaki_position(what=what, process_set=process_set, name=name)
    index, size = place_in(process_set)
    values = {
        "size": size,
        "rank": sirtaki.rank(),
        "local_size": sirtaki.local_size(),
        "local_rank": sirtaki.local_rank(),
        "included": int(index >= 0),
    }
    return tf.constant(values[what], tf.int32, name=name or what)
