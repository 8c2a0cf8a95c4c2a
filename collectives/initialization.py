"""The beginning of a job as users call it: joining, and the process sets it starts with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sirtaki import job
from sirtaki.errors import InvalidArgumentError
from sirtaki.process_sets import ProcessSet, add_process_set

# Called before a job is joined, such as to translate another library's settings.
before_init: list[Callable[[], None]] = []


def init(comm: Sequence[int] | Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | None = None) -> None:
    """Join the job that the launcher has started, or become a job of one rank without one.

    Every rank calls it before any other function. A second call without arguments, or with the same ranks,
    changes nothing; after `shutdown` it joins anew.

    Args:
        comm: the processes of the job, if not all that were launched: an mpi4py intracommunicator, or world ranks
            (those of ``MPI.COMM_WORLD``) in the order of the job's ranks. The same on all of them, and only they
            call `init` with it; nothing is ever sent on the communicator. Several such jobs may exist side by
            side. Starting and ending MPI needs all launched processes, so one that joins none imports ``mpi4py.MPI``.
        process_sets: sets that the job starts with, each as for `add_process_set`, in the same order on all ranks.

    Raises:
        InvalidArgumentError: `comm` names no such processes, or not this one, or others than those of the job
            that this process is in; or a process set has a rank outside the job (the job exists then).
        ConfigError: a ``SIRTAKI_*`` variable cannot be used, or differs between ranks where it must not.
        MissingDependencyError: a launcher started this process, and mpi4py is not installed.
        MismatchError: the ranks give different process sets.
        SirtakiError: the ranks cannot reach each other; or another process has taken this rank's place, or this one
            may not take it (``docs/errors.md``, "Processes that a rank starts").

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.size() >= 1
        True
    """
    for prepare in before_init:
        prepare()
    if isinstance(process_sets, (str, bytes)) or not hasattr(process_sets or (), "__iter__"):
        raise InvalidArgumentError(f"process_sets is a sequence of process sets, not {process_sets!r}")
    sets = [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in process_sets or ()]
    if not job.start(comm) and sets:
        raise InvalidArgumentError("process_sets were given to a job that exists already: use add_process_set()")
    for process_set in sets:
        add_process_set(process_set)
