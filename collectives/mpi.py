"""MPI through mpi4py: who we are, small exchanges at start, and the functions that the engine calls itself.

Sirtaki is not compiled against any MPI. mpi4py has loaded one; its shared object resolves the C functions,
and handles pass as integers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from sirtaki.errors import InvalidArgumentError, MissingDependencyError, SirtakiError

# What launchers tell their children: variables of the rank and of the number of ranks.
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, Slurm's PMI-2
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH2
)

# Our traffic runs on a communicator of our own, made once per process: their number is limited.
_communicator: Any = None
# The process in which this module is to end MPI, None if mpi4py does it.
_finalizing_pid: int | None = None


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of ranks that an MPI launcher has started this process among, 1 without one."""
    for _, size in _LAUNCHERS:
        if environment.get(size, "").isdigit():
            return int(environment[size])
    return 1


def finalize() -> None:
    """End MPI at the exit of a job that has gone well, unless mpi4py was imported before and does it."""
    if _finalizing_pid != os.getpid():
        return
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()


def is_finalized_by_mpi4py() -> bool:
    """Whether this process calls MPI_Finalize at its exit, whatever happens."""
    return _communicator is not None and _finalizing_pid is None


def ranks_of(comm: Any) -> list[int]:
    """Return the job's ranks of a communicator's processes, ascending.

    Raises:
        InvalidArgumentError: this process uses no MPI, or a process of the communicator is not in the job.
    """
    if _communicator is None:
        if comm.Get_size() == 1:
            return [0]
        raise InvalidArgumentError("a job of one rank has no process set of several processes")
    from mpi4py import MPI

    theirs = comm.Get_group()
    ranks = MPI.Group.Translate_ranks(theirs, range(theirs.Get_size()), _communicator.Get_group())
    if MPI.UNDEFINED in ranks:
        raise InvalidArgumentError("the communicator has processes that are not ranks of the job")
    return sorted(ranks)


class World:
    """The job's communicator."""

    def __init__(self) -> None:
        """Load MPI and duplicate its world communicator.

        Raises:
            MissingDependencyError: mpi4py or an MPI library is missing.
            SirtakiError: the launcher belongs to another MPI than the one that mpi4py has loaded.
        """
        global _communicator, _finalizing_pid
        expected = launched_size()
        try:
            import mpi4py

            if "mpi4py.MPI" not in sys.modules and mpi4py.rc.finalize is None:
                # mpi4py would call MPI_Finalize at any exit: in a failed job, where it waits for the dead, and in
                # forked children, where it destroys what their parent uses. `finalize` knows better.
                mpi4py.rc.finalize = False
                _finalizing_pid = os.getpid()
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise MissingDependencyError(
                f"this process was started as one of {expected} ranks, which needs mpi4py and an MPI library: "
                f"{str(error).splitlines()[0]}. Run: pip install 'sirtaki[mpi]' (only mpi4py beside your site's MPI)"
            ) from error
        self._mpi = MPI
        if MPI.COMM_WORLD.Get_size() != expected:
            library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
            raise SirtakiError(
                f"the launcher started {expected} ranks, but the MPI library that mpi4py loaded ({library}) "
                f"sees {MPI.COMM_WORLD.Get_size()}: the launcher belongs to another MPI. Use the mpiexec of "
                "that library, for example through sirtakirun."
            )
        if _communicator is None:
            _communicator = MPI.COMM_WORLD.Dup()
            _communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank: int = _communicator.Get_rank()
        self.size: int = _communicator.Get_size()

    def allgather(self, value: Any) -> list[Any]:
        """Gather one small object per rank. Ranks that come early sleep until all are there."""
        arrived = _communicator.Ibarrier()
        pause = 0.0002
        while not arrived.Test():
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        gathered: list[Any] = _communicator.allgather(value)
        return gathered

    def unlink_shared_memory(self) -> None:
        """Remove the names of MPICH's shared memory, which all ranks of this host have opened by now.

        MPICH removes them in MPI_Finalize, which a failed job never reaches: each would leave a file behind
        in /dev/shm. Memory without a name goes with its last process. Call it after the first `allgather`.
        """
        with open("/proc/self/maps") as maps:
            mapped = {line.split(maxsplit=5)[5].strip() for line in maps if "/dev/shm/mpich_shm_" in line}
        for path in mapped:
            if not path.endswith("(deleted)"):
                with contextlib.suppress(FileNotFoundError):  # another rank was faster
                    os.unlink(path)

    def has_multiple_threads(self) -> bool:
        """Whether any thread may call MPI at any time."""
        level: int = self._mpi.Query_thread()
        return level >= self._mpi.THREAD_MULTIPLE

    def native_table(self) -> list[int]:
        """Return what ``MpiTable`` in native/mpi_exchange.h holds, as integers."""
        library = ctypes.CDLL(self._mpi.__file__)
        functions = [library.MPI_Isend, library.MPI_Irecv, library.MPI_Test]
        addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions]
        handles = [self._mpi._handleof(_communicator), self._mpi._handleof(self._mpi.BYTE)]
        return addresses + handles
