"""Process sets: groups of ranks that have collectives of their own."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from sirtaki import job, mpi
from sirtaki.engine import Engine
from sirtaki.errors import InvalidArgumentError
from sirtaki.kinds import Kind


class ProcessSet:
    """A group of ranks, to be given to collectives as ``process_set`` once `add_process_set` has made it known.

    Sets may overlap and be used at the same time; a rank may be in several. Names of tensors, and the counting
    of unnamed calls, are each set's own. `sirtaki.global_process_set` has all ranks.

    Attributes:
        ranks: the global ranks, ascending.
        process_set_id: the set's number in the job; None before `add_process_set` and after
            `remove_process_set`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> first = sirtaki.add_process_set([0])
        >>> if first.included():
        ...     print(sirtaki.allreduce(np.ones(2), process_set=first).tolist(), first.rank(), first.size())
        [1.0, 1.0] 0 1
        >>> sirtaki.remove_process_set(first)
        True
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        """Describe a set; nothing is sent.

        Args:
            ranks_or_comm: global ranks in any order, each once; or an mpi4py communicator whose processes are
                ranks of the job, which `add_process_set` translates.

        Raises:
            InvalidArgumentError: a rank is given twice, or is no number, or there is none.
        """
        self.process_set_id: int | None = None
        self.mpi_comm: Any = None
        self._engine: Engine | None = None
        self._ranks: list[int] = []
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            self._ranks = sorted(operator.index(r) for r in ranks_or_comm)
        except TypeError:
            raise InvalidArgumentError(
                f"a process set is made of global ranks or an mpi4py communicator, not of {ranks_or_comm!r}"
            ) from None
        if not self._ranks or len(set(self._ranks)) < len(self._ranks):
            raise InvalidArgumentError(f"a process set has each rank once, and at least one; given were {self._ranks}")

    @property
    def ranks(self) -> list[int]:
        """The global ranks of the set, ascending."""
        return list(self._ranks)

    def size(self) -> int:
        """Return the number of ranks in the set."""
        return len(self.ranks)

    def included(self) -> bool:
        """Return whether this process is in the set."""
        return job.rank() in self.ranks

    def rank(self) -> int | None:
        """Return this process's position in the set, from 0; None if it is not in it."""
        return self.ranks.index(job.rank()) if self.included() else None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self._ranks})"


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job, whichever job that is."""

    def __init__(self) -> None:
        super().__init__([0])
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(range(job.size()))

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set = _GlobalProcessSet()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a set known to the job. All ranks of the job call it with the same ranks, members or not.

    Args:
        process_set: a `ProcessSet`, or global ranks or an mpi4py communicator to make one of.

    Returns:
        The set, with its ``process_set_id``. Two sets of the same ranks are different sets.

    Raises:
        InvalidArgumentError: a rank is not in the job; the set is known already.
        MismatchError: the ranks of the job give different sets.
        RanksFailedError, RankLeftError: a rank died, or has shut down.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.add_process_set(range(sirtaki.size())).size() == sirtaki.size()
        True
    """
    current = job.current("add_process_set")
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if made.process_set_id is not None and (made._engine is current.engine or made is global_process_set):
        raise InvalidArgumentError(f"{made!r} has been added already")
    if made.mpi_comm is not None:
        made._ranks = mpi.ranks_of(made.mpi_comm)
    handle = current.engine.submit(Kind.ADD_PROCESS_SET, [], [], values=made._ranks, wait=True)
    current.engine.raise_for(handle)
    made.process_set_id = handle.result
    made._engine = current.engine
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Make the job forget a set. All ranks of the job call it, members or not.

    Collectives still in flight in the set end with an InvalidArgumentError.

    Returns:
        True; False if the set is not known (any more).

    Raises:
        InvalidArgumentError: it is the set of all ranks.
        MismatchError: the ranks of the job remove different sets.
        RanksFailedError, RankLeftError: a rank died, or has shut down.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> evens = sirtaki.add_process_set(range(0, sirtaki.size(), 2))
        >>> sirtaki.remove_process_set(evens), sirtaki.remove_process_set(evens)
        (True, False)
    """
    current = job.current("remove_process_set")
    if process_set is global_process_set:
        raise InvalidArgumentError("the set of all ranks cannot be removed")
    if process_set.process_set_id is None or process_set._engine is not current.engine:
        return False
    handle = current.engine.submit(Kind.REMOVE_PROCESS_SET, [], [], values=[process_set.process_set_id], wait=True)
    current.engine.raise_for(handle)
    process_set.process_set_id = None
    return True


def number_of(process_set: ProcessSet, engine: Engine) -> int:
    """Return the engine's number of a set.

    Raises:
        TypeError: it is no ProcessSet.
        InvalidArgumentError: the set has not been added to this job, or has been removed.
    """
    if process_set is global_process_set:
        return 0
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set must be a sirtaki.ProcessSet, and {process_set!r} is not")
    if process_set.process_set_id is None or process_set._engine is not engine:
        raise InvalidArgumentError(
            f"{process_set!r} is not known to this job: call sirtaki.add_process_set with it on all ranks, after init()"
        )
    return process_set.process_set_id
