"""Collective communication for data-parallel training: the public face.

    import sirtaki

    sirtaki.init()
    mean = sirtaki.allreduce(array)

`sirtaki.tensorflow` has the same for TensorFlow and Keras.
"""

from sirtaki import errors
from sirtaki.counters import Straggler
from sirtaki.exchanges import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
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
from sirtaki.handles import Handle, poll, synchronize
from sirtaki.initialization import init
from sirtaki.inspection import metrics, start_timeline, stop_timeline, stragglers
from sirtaki.job import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from sirtaki.objects import allgather_object, broadcast_object
from sirtaki.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from sirtaki.reduce_ops import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from sirtaki.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from sirtaki.synchronization import barrier, barrier_async, join, join_async
from sirtaki.version import __version__

# Last: it stands in front of all of the above.
from sirtaki.horovod.installation import install_as_horovod  # isort: skip
from sirtaki.horovod.runner import run  # isort: skip

__all__ = [
    "Adasum",
    "Average",
    "Handle",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Straggler",
    "Sum",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "errors",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "install_as_horovod",
    "is_homogeneous",
    "is_initialized",
    "join",
    "join_async",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "stragglers",
    "synchronize",
]
