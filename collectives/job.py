"""The job of this process: its beginning and its end, and this rank's place in it."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from types import TracebackType
from typing import Any

from sirtaki import _native, bootstrap, config, mpi, rank_slot
from sirtaki.engine import Engine
from sirtaki.errors import InvalidArgumentError, NotInitializedError, RankLeftError
from sirtaki.mpi import launched_size
from sirtaki.observability import Observation, prepare
from sirtaki.stall import Limits
from sirtaki.topology import Topology

_FAILED_JOB_EXIT_CODE = 1
# Of a rank that an error of another rank has ended; the launcher then looks on for the one to blame. It knows the
# number from launcher/protocol.py.
ENDED_BY_ANOTHER_EXIT_CODE = 79


class _Job:
    """What `init` makes and `shutdown` ends."""

    def __init__(self, topology: Topology, engine: Engine, group: Any, is_alone: bool) -> None:
        self.topology = topology
        self.engine = engine
        self.group = group  # of mpi.group_of
        self.is_alone = is_alone  # no launcher has started this process as one of several ranks
        self.pid = os.getpid()
        self.observation: Observation | None = None

    def close(self) -> None:
        """Stop all threads."""
        self.engine.close()
        if self.observation is not None:
            self.observation.stop()


_job: _Job | None = None
_lock = threading.RLock()  # init and shutdown may be called from any thread
_hooks_installed = False
_ended_by_another = False
_raised = False


def start(comm: Any) -> bool:
    """Join the job of `comm`, which is as for `sirtaki.init`; return whether that is new."""
    global _job
    if _job is not None and _job.pid != os.getpid():
        raise NotInitializedError(_forked_text("init"))
    with _lock:
        if _job is not None and comm is None:
            return False
        settings = config.Settings.from_environment()
        prepare(settings)
        is_alone = launched_size() <= 1 or (_job.is_alone if _job else not rank_slot.take())
        _install_hooks()
        if comm is None and is_alone:
            group = None
        else:
            with bootstrap.waiting_for_all(settings):
                group = mpi.group_of(comm, is_alone)
        if _job is not None:
            if group is _job.group:
                return False
            raise InvalidArgumentError(
                "init() was called with other processes than those of the job that this process is in: "
                "call shutdown() before"
            )
        if group is None:
            mpi.forget_communicator()
            topology, native = bootstrap.single(settings)
        else:
            topology, native = bootstrap.connect(settings, comm, group)
        if launched_size() > 1 and not is_alone:
            os.environ[config.RANK_PID] = str(os.getpid())
        limits = Limits(settings.stall_check_time_seconds, settings.stall_shutdown_time_seconds)
        engine = Engine(native, topology.size, topology.rank, limits)
        made = _Job(topology, engine, group, is_alone)
        try:
            made.observation = Observation(settings, topology, native)
        except BaseException:
            made.close()  # a port that is taken, a file that cannot be written: this rank has not joined
            raise
        _job = made
        return True


def shutdown() -> None:
    """Leave the job. Requests still in flight end with an error, here and, where this rank is needed, elsewhere.

    Returns when nobody depends on this process any more: on rank 0 and on the lowest rank of each host that is
    when all, or all of that host, have left. Runs by itself at exit. Without `init` it does nothing.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.shutdown()
        >>> sirtaki.is_initialized()
        False
    """
    global _job
    if not is_initialized():
        return
    with _lock:
        if _job is None:
            return
        _job.engine.leave()
        # A failed job stays: every call says why it failed, and the exit must know.
        if not _job.engine.native.failed:
            _job.close()
            _job = None


def is_initialized() -> bool:
    """Return whether this process has joined a job and not left it.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.is_initialized()
        True
    """
    return _job is not None and _job.pid == os.getpid()


def rank() -> int:
    """Return this process's number in the job, from 0.

    Raises:
        NotInitializedError: this process is in no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> 0 <= sirtaki.rank() < sirtaki.size()
        True
    """
    return current("rank").topology.rank


def size() -> int:
    """Return the number of ranks in the job.

    Raises:
        NotInitializedError: this process is in no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.size() >= 1
        True
    """
    return current("size").topology.size


def local_rank() -> int:
    """Return this process's number among the ranks of its host, from 0.

    Raises:
        NotInitializedError: this process is in no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> 0 <= sirtaki.local_rank() < sirtaki.local_size()
        True
    """
    return current("local_rank").topology.local_rank


def local_size() -> int:
    """Return the number of ranks on this host.

    Raises:
        NotInitializedError: this process is in no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> 1 <= sirtaki.local_size() <= sirtaki.size()
        True
    """
    return current("local_size").topology.local_size


def cross_rank() -> int:
    """Return this host's number among the hosts that have this process's local rank, from 0.

    Raises:
        NotInitializedError: this process is in no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> 0 <= sirtaki.cross_rank() < sirtaki.cross_size()
        True
    """
    topology = current("cross_rank").topology
    return topology.cross_ranks.index(topology.rank)


def cross_size() -> int:
    """Return the number of hosts that have this process's local rank.

    Raises:
        NotInitializedError: this process is in no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> 1 <= sirtaki.cross_size() <= sirtaki.size()
        True
    """
    return len(current("cross_size").topology.cross_ranks)


def current(function: str) -> _Job:
    """Return the job.

    Raises:
        NotInitializedError: there is none, or this process is a forked child of a rank.
    """
    if _job is None:
        raise NotInitializedError(f"call sirtaki.init() before {function}()")
    if _job.pid != os.getpid():
        raise NotInitializedError(_forked_text(function))
    return _job


def _forked_text(function: str) -> str:
    return (
        f"{function}() was called in a process that rank {_job.topology.rank if _job else 0} has forked, which "
        "is no part of the job. Call it in the rank itself; for workers use multiprocessing's 'spawn' method."
    )


def _install_hooks() -> None:
    global _hooks_installed
    if _hooks_installed:
        return
    _hooks_installed = True
    previous = sys.excepthook

    def announce(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _ended_by_another, _raised
        previous(kind, error, trace)
        _raised = True
        if is_initialized():
            job = current("excepthook")
            sys.stderr.flush()
            job.engine.announce_failure(f"rank {job.topology.rank} raised {_describe(error)}")
            _ended_by_another = job.engine.is_failure_of_another() or _is_of_rank_that_left(error)

    sys.excepthook = announce
    os.register_at_fork(after_in_child=_abandon_in_child)


def _describe(error: BaseException) -> str:
    """Return the exception's name and text, whatever its text is."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # a __str__ that raises must not keep the others from hearing of the failure
        text = f"{name} (whose text cannot be made)"
    return text.encode("utf-8", "backslashreplace").decode().strip(": ")


def _is_of_rank_that_left(error: BaseException) -> bool:
    """Whether the error tells that another rank is gone, also as TensorFlow tells it."""
    return isinstance(error, RankLeftError) or (
        type(error).__name__ == "AbortedError" and "cannot take part any more" in str(error)
    )


def _abandon_in_child() -> None:
    if _job is not None:
        _native.mark_forked()
        _native.abandon_timeline()
        _job.engine.native.abandon_after_fork()


def _leave_at_exit() -> None:
    """End this process's part in the job and in MPI, or, if the job has failed, end without MPI_Finalize."""
    global _job
    if is_initialized():
        job = current("exit")
        with _lock:
            try:
                # Waiting here sleeps, in MPI_Finalize it would not; and a rank that fails meanwhile is still heard.
                job.engine.leave_and_wait_for_all()
            finally:
                # Also after Ctrl-C: a thread that still ran while Python ends would crash the process.
                failed = job.engine.native.failed
                other_is_silent = job.engine.other_is_silent
                job.close()
                _job = None
        # A silent rank does not end by itself: the launcher must hear of it, whatever code the program gives.
        if other_is_silent or (failed and _ended_by_another):
            _exit_now(ENDED_BY_ANOTHER_EXIT_CODE)
        if failed and mpi.is_finalized_by_mpi4py():
            _exit_now(_FAILED_JOB_EXIT_CODE)
        if failed:
            return
    # A rank that failed before it joined must not wait in MPI_Finalize for those that wait for it.
    if not _raised:
        mpi.finalize()


def _exit_now(code: int) -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # closed already; the exit code still tells
    os._exit(code)


# At import, not at init: exit functions run last in, first out, and those of the application come first.
atexit.register(_leave_at_exit)
