"""What this installation and this job can do, under Horovod's names.

Horovod is built with or without each of these; Sirtaki finds them when it runs. What it does not use is not "built".
"""

from __future__ import annotations

import importlib.util

from sirtaki import job


def is_homogeneous() -> bool:
    """Return whether all hosts of the job have equally many ranks.

    Raises:
        NotInitializedError: there is no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.is_homogeneous()
        True
    """
    topology = job.current("is_homogeneous").topology
    return len({topology.host_of.count(host) for host in range(topology.num_hosts)}) == 1


def mpi_built(verbose: bool = False) -> bool:
    """Return whether mpi4py is installed, over which ranks find each other.

    Example:
        >>> import sirtaki
        >>> sirtaki.mpi_built() in (True, False)
        True
    """
    return importlib.util.find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Return whether the job uses MPI: a job of one rank does not.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.mpi_enabled() == (sirtaki.size() > 1)
        True
    """
    return job.is_initialized() and job.size() > 1


def mpi_threads_supported() -> bool:
    """Return whether MPI may be used from any thread beside Sirtaki.

    Raises:
        NotInitializedError: there is no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.mpi_threads_supported() in (True, False)
        True
    """
    job.current("mpi_threads_supported")
    if not mpi_enabled():
        return False
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def gloo_built(verbose: bool = False) -> bool:
    """Return False: Sirtaki has its own shared memory and TCP in Gloo's place.

    Example:
        >>> import sirtaki
        >>> sirtaki.gloo_built()
        False
    """
    return False


def gloo_enabled() -> bool:
    """Return False, see `gloo_built`.

    Example:
        >>> import sirtaki
        >>> sirtaki.gloo_enabled()
        False
    """
    return False


def nccl_built(verbose: bool = False) -> int:
    """Return 0: tensors on GPUs are not supported yet. (Horovod returns NCCL's version.)

    Example:
        >>> import sirtaki
        >>> sirtaki.nccl_built()
        0
    """
    return 0


def cuda_built(verbose: bool = False) -> bool:
    """Return False: tensors on GPUs are not supported yet.

    Example:
        >>> import sirtaki
        >>> sirtaki.cuda_built()
        False
    """
    return False


def rocm_built(verbose: bool = False) -> bool:
    """Return False: Sirtaki does not use ROCm.

    Example:
        >>> import sirtaki
        >>> sirtaki.rocm_built()
        False
    """
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Return False: Sirtaki does not use oneCCL.

    Example:
        >>> import sirtaki
        >>> sirtaki.ccl_built()
        False
    """
    return False


def ddl_built(verbose: bool = False) -> bool:
    """Return False: IBM's DDL is no more.

    Example:
        >>> import sirtaki
        >>> sirtaki.ddl_built()
        False
    """
    return False
