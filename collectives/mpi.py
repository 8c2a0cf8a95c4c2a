"""MPI through mpi4py: who we are, small exchanges at start, and the functions that the engine calls itself.

Sirtaki is not compiled against any MPI. mpi4py has loaded one; its shared object resolves the C functions,
and handles pass as integers.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
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

# Our traffic runs on communicators of our own, one per group of processes, made once: their number is limited, and
# they outlive `shutdown`. All members of a group have made them together, so all or none find one here.
# Pairs of a group and its communicator. mpi4py frees no groups by itself, so each is kept once.
_communicators: list[tuple[Any, Any]] = []
_groups: list[Any] = []
# That of the job which this process joined last, None if that has one rank.
_communicator: Any = None
# The process in which this module is to end MPI, None if mpi4py does it.
_finalizing_pid: int | None = None
_is_used = False


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
    return _is_used and _finalizing_pid is None


def group_of(comm: Any, is_alone: bool) -> Any:
    """Return the MPI group of the processes that are to form a job; nothing is sent.

    Args:
        comm: an mpi4py intracommunicator, or world ranks in the order of the job's ranks, or None for all.
        is_alone: this process is the only one of its world, and needs no MPI unless `comm` is one of its objects.

    Returns:
        An mpi4py Group, the same object for the same processes in the same order; None for this process alone.

    Raises:
        InvalidArgumentError: this process is not among them, or they are no such processes.
        MissingDependencyError, SirtakiError: as for `World`.
    """
    if comm is None:
        return None if is_alone else _kept(_load(launched_size()).COMM_WORLD.Get_group())
    if hasattr(comm, "Get_group"):
        MPI = _load(None)
        if comm == MPI.COMM_NULL:
            raise InvalidArgumentError("comm is MPI.COMM_NULL: a process that takes no part must not call init()")
        if not isinstance(comm, MPI.Intracomm):
            raise InvalidArgumentError(f"comm must be an intracommunicator, and {type(comm).__name__} is not")
        return _kept(comm.Get_group()) if comm.Get_size() > 1 else None
    try:
        ranks = [operator.index(r) for r in comm]
    except TypeError:
        raise InvalidArgumentError(f"comm is an mpi4py communicator or a list of world ranks, not {comm!r}") from None
    world = None if is_alone else _load(launched_size()).COMM_WORLD
    rank, size = (world.Get_rank(), world.Get_size()) if world else (0, 1)
    if not ranks or len(set(ranks)) < len(ranks):
        raise InvalidArgumentError(f"comm must name each world rank once, and at least one; given were {ranks}")
    if not all(0 <= r < size for r in ranks):
        raise InvalidArgumentError(f"comm has world ranks from 0 to {size - 1}; given were {ranks}")
    if rank not in ranks:
        raise InvalidArgumentError(
            f"world rank {rank} is not in comm={ranks}: only those ranks may call init() with it"
        )
    if world is None or len(ranks) == 1:
        return None
    everybody = _kept(world.Get_group())
    return _kept(everybody.Incl(ranks))


def _kept(group: Any) -> Any:
    """Return the group, or the equal one (same processes, same order) that is kept already, and free this one."""
    MPI = _load(None)
    for known in _groups:
        if MPI.Group.Compare(known, group) == MPI.IDENT:
            group.Free()
            return known
    _groups.append(group)
    return group


def world_ranks(group: Any) -> list[int]:
    """Return the world ranks of a group's processes, in its order; empty if some are of another world."""
    MPI = _load(None)
    ranks: list[int] = MPI.Group.Translate_ranks(group, None, _kept(MPI.COMM_WORLD.Get_group()))
    return [] if MPI.UNDEFINED in ranks else list(ranks)


def forget_communicator() -> None:
    """Note that this process is a job of one rank, which needs none."""
    global _communicator
    _communicator = None


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

    theirs, ours = _kept(comm.Get_group()), _kept(_communicator.Get_group())
    ranks = MPI.Group.Translate_ranks(theirs, range(theirs.Get_size()), ours)
    if MPI.UNDEFINED in ranks:
        raise InvalidArgumentError("the communicator has processes that are not ranks of the job")
    return sorted(ranks)


def _load(expected: int | None) -> Any:
    """Load MPI and return mpi4py's module.

    Raises:
        MissingDependencyError: mpi4py or an MPI library is missing.
        SirtakiError: the world has not `expected` ranks, because the launcher belongs to another MPI.
    """
    global _is_used, _finalizing_pid
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
    _is_used = True
    if expected is not None and MPI.COMM_WORLD.Get_size() != expected:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        raise SirtakiError(
            f"the launcher started {expected} ranks, but the MPI library that mpi4py loaded ({library}) "
            f"sees {MPI.COMM_WORLD.Get_size()}: the launcher belongs to another MPI. Use the mpiexec of "
            "that library, for example through sirtakirun."
        )
    return MPI


def _communicator_of(MPI: Any, comm: Any, group: Any) -> Any:
    """Return our own communicator of a group, made by its members alone when they first meet."""
    for known, communicator in _communicators:
        if known is group:
            return communicator
    # Of the world where possible: members that name the group in different ways still meet.
    in_world = MPI.UNDEFINED not in MPI.Group.Translate_ranks(group, None, _kept(MPI.COMM_WORLD.Get_group()))
    made = (MPI.COMM_WORLD if in_world else comm).Create_group(group)
    made.Set_errhandler(MPI.ERRORS_RETURN)
    _communicators.append((group, made))
    return made


class World:
    """The processes of a job, and the communicator on which they talk."""

    def __init__(self, comm: Any, group: Any) -> None:
        """Make the job's communicator. Collective over the group.

        Args:
            comm: what `init` was given.
            group: of `group_of`, more than one process.
        """
        global _communicator
        self._mpi = _load(None)
        self._communicator = _communicator = _communicator_of(self._mpi, comm, group)
        self._is_whole = self._communicator.Get_size() == self._mpi.COMM_WORLD.Get_size()
        self.rank: int = self._communicator.Get_rank()
        self.size: int = self._communicator.Get_size()

    def allgather(self, value: Any) -> list[Any]:
        """Gather one small object per rank. Ranks that come early sleep until all are there."""
        arrived = self._communicator.Ibarrier()
        pause = 0.0002
        while not arrived.Test():
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        gathered: list[Any] = self._communicator.allgather(value)
        return gathered

    def unlink_shared_memory(self) -> None:
        """Remove the names of MPICH's shared memory, which all ranks of this host have opened by now.

        MPICH removes them in MPI_Finalize, which a failed job never reaches: each would leave a file behind
        in /dev/shm. Memory without a name goes with its last process. Call it after the first `allgather`.
        A job of some of the world's ranks knows nothing of the others, and leaves the names (to sirtakirun).
        """
        if not self._is_whole:
            return
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
        handles = [self._mpi._handleof(self._communicator), self._mpi._handleof(self._mpi.BYTE)]
        return addresses + handles
