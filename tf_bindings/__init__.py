"""Sirtaki for TensorFlow and Keras 3: the public face.

Use it as Horovod users do:

    >>> import sirtaki.tensorflow as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
"""

from __future__ import annotations

# First: the imports below need TensorFlow.
from sirtaki.tensorflow import requirements  # noqa: F401

# isort: split
from sirtaki import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
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
from sirtaki.features import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from sirtaki.horovod.common.util import check_installed_version

# The gradients are imported for their registration.
from sirtaki.tensorflow import callbacks, diagnostics, elastic, gradients  # noqa: F401
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.devices import gpu_available
from sirtaki.tensorflow.exchanges import allgather, alltoall, broadcast, broadcast_, grouped_allgather
from sirtaki.tensorflow.functions import allgather_object, broadcast_object, broadcast_object_fn
from sirtaki.tensorflow.guard import DifferentWeightsWarning, UnreducedGradientsWarning
from sirtaki.tensorflow.initialization import init
from sirtaki.tensorflow.load_model import load_model
from sirtaki.tensorflow.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from sirtaki.tensorflow.position_ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from sirtaki.tensorflow.reductions import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from sirtaki.tensorflow.seeds import set_random_seed
from sirtaki.tensorflow.sharding import shard
from sirtaki.tensorflow.sync_batch_norm import SyncBatchNormalization
from sirtaki.tensorflow.synchronization import barrier, join
from sirtaki.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from sirtaki.tensorflow.v1_hooks import BroadcastGlobalVariablesHook, broadcast_global_variables
from sirtaki.tensorflow.variables import broadcast_variables

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
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
    "SyncBatchNormalization",
    "UnreducedGradientsWarning",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "check_installed_version",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "diagnostics",
    "elastic",
    "errors",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "set_random_seed",
    "shard",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
