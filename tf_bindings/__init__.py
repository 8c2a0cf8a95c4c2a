"""Sirtaki for TensorFlow and Keras 3: the public face.

Use it as Horovod users do:

    >>> import sirtaki.tensorflow as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
"""

from __future__ import annotations

from sirtaki import (
    Average,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    cross_rank,
    cross_size,
    errors,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
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
from sirtaki.tensorflow import callbacks, diagnostics, gradients, guard  # noqa: F401
from sirtaki.tensorflow.guard import DifferentWeightsWarning, UnreducedGradientsWarning
from sirtaki.tensorflow.ops import allgather, allreduce, broadcast, grouped_allreduce
from sirtaki.tensorflow.optimizer import DistributedOptimizer
from sirtaki.tensorflow.tape import DistributedGradientTape
from sirtaki.tensorflow.variables import broadcast_variables

__all__ = [
    "Average",
    "DifferentWeightsWarning",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Sum",
    "UnreducedGradientsWarning",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "diagnostics",
    "errors",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


def init() -> None:
    """Joins this process to the job, as `sirtaki.init` does, and watches over Keras.

    From here on `keras.Model.fit` warns if the job has several ranks and gradients are not reduced.

    Example:
        >>> hvd.init()
        >>> print(f"rank {hvd.rank()} of {hvd.size()}")
    """
    _init()
    guard.watch_fit()
