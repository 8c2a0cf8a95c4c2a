"""Sirtaki for TensorFlow and Keras 3: the public face.

Use it as Horovod users do:

    >>> import sirtaki.tensorflow as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
"""

from __future__ import annotations

from typing import Any

from sirtaki import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather_object,
    broadcast_object,
    cross_rank,
    cross_size,
    errors,
    global_process_set,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from sirtaki import init as _init

try:
    import keras  # noqa: F401
    import tensorflow  # noqa: F401
except ModuleNotFoundError as _missing:
    raise errors.MissingDependencyError(
        f"sirtaki.tensorflow needs TensorFlow 2.16 or later with Keras 3, and there is none ({_missing}). "
        "Run: pip install 'sirtaki[tensorflow]', or install a TensorFlow of your choice."
    ) from _missing

# The gradients are imported for their registration.
from sirtaki.tensorflow import callbacks, diagnostics, gradients, training  # noqa: F401
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.exchanges import allgather, alltoall, broadcast, broadcast_, grouped_allgather
from sirtaki.tensorflow.guard import DifferentWeightsWarning, UnreducedGradientsWarning
from sirtaki.tensorflow.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from sirtaki.tensorflow.position_ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from sirtaki.tensorflow.reductions import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from sirtaki.tensorflow.seeds import set_random_seed
from sirtaki.tensorflow.sharding import shard
from sirtaki.tensorflow.synchronization import barrier, join
from sirtaki.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from sirtaki.tensorflow.variables import broadcast_variables

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DifferentWeightsWarning",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "UnreducedGradientsWarning",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "diagnostics",
    "errors",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "set_random_seed",
    "shard",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def init(*args: Any, **kwargs: Any) -> None:
    """Joins this process to the job, as `sirtaki.init` does, and watches over Keras.

    From here on `keras.Model.fit` warns if the job has several ranks and gradients are not reduced, evens out the
    numbers of batches of the ranks, and takes what callbacks decide for all of them. Arguments are those of
    `sirtaki.init`.

    Example:
        >>> hvd.init()
        >>> print(f"rank {hvd.rank()} of {hvd.size()}")
    """
    _init(*args, **kwargs)
    training.watch()
