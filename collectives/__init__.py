"""Collective communication for data-parallel training: the public face.

    import sirtaki

    sirtaki.init()
    mean = sirtaki.allreduce(array)

`sirtaki.tensorflow` has the same for TensorFlow and Keras.
"""

from sirtaki import errors
from sirtaki.functions import (
    allgather,
    allreduce,
    allreduce_,
    allreduce_async,
    barrier,
    broadcast,
    grouped_allreduce,
)
from sirtaki.handles import Handle, poll, synchronize
from sirtaki.job import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from sirtaki.objects import allgather_object, broadcast_object
from sirtaki.reduce_ops import Average, ReduceOp, Sum
from sirtaki.version import __version__

__all__ = [
    "Average",
    "Handle",
    "ReduceOp",
    "Sum",
    "__version__",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "barrier",
    "broadcast",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "errors",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
