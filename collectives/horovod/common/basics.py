"""`HorovodBasics`: Horovod's handle of its C library, as an object with the same methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sirtaki
from sirtaki import features
from sirtaki.process_sets import ProcessSet, global_process_set

__all__ = ["MPI", "HorovodBasics", "ProcessSet", "global_process_set"]


class MPI:
    """Stands for mpi4py's module in Horovod's type hints."""

    class Comm:
        """Stands for an mpi4py communicator in Horovod's type hints."""


class HorovodBasics:
    """Everything about the job itself. There is no library to load, so all objects of this class are alike.

    Args:
        pkg_path, *args: Horovod's; they change nothing here.

    Example:
        >>> basics = HorovodBasics("")
        >>> basics.init()
        >>> basics.size() >= 1
        True
    """

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        del pkg_path, args

    def init(
        self, comm: Sequence[int] | Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | None = None
    ) -> None:
        """Calls `sirtaki.init`."""
        sirtaki.init(comm, process_sets)

    is_initialized = staticmethod(sirtaki.is_initialized)
    shutdown = staticmethod(sirtaki.shutdown)
    rank = staticmethod(sirtaki.rank)
    size = staticmethod(sirtaki.size)
    local_rank = staticmethod(sirtaki.local_rank)
    local_size = staticmethod(sirtaki.local_size)
    cross_rank = staticmethod(sirtaki.cross_rank)
    cross_size = staticmethod(sirtaki.cross_size)
    start_timeline = staticmethod(sirtaki.start_timeline)
    stop_timeline = staticmethod(sirtaki.stop_timeline)
    is_homogeneous = staticmethod(features.is_homogeneous)
    mpi_built = staticmethod(features.mpi_built)
    mpi_enabled = staticmethod(features.mpi_enabled)
    mpi_threads_supported = staticmethod(features.mpi_threads_supported)
    gloo_built = staticmethod(features.gloo_built)
    gloo_enabled = staticmethod(features.gloo_enabled)
    nccl_built = staticmethod(features.nccl_built)
    cuda_built = staticmethod(features.cuda_built)
    rocm_built = staticmethod(features.rocm_built)
    ccl_built = staticmethod(features.ccl_built)
    ddl_built = staticmethod(features.ddl_built)
