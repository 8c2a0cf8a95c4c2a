"""Collectives without data: barrier and join."""

from __future__ import annotations

from sirtaki import job
from sirtaki.handles import Handle
from sirtaki.kinds import Kind
from sirtaki.process_sets import ProcessSet, global_process_set, number_of
from sirtaki.requests import check_name


def barrier(name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Return once all ranks of the process set have called it. Ranks that have joined count as there.

    Args:
        name: the same on all ranks; default: the next unnamed call.
        process_set: the ranks that take part.

    Raises:
        InvalidArgumentError: this rank is not in the process set.
        RanksFailedError, RankLeftError: a rank died, or has shut down.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.barrier()
    """
    _barrier(name, process_set, wait=True).result()


def barrier_async(name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle[None]:
    """Start a `barrier` and return its handle, which is done once all ranks have called it.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.barrier_async().result()
    """
    return _barrier(name, process_set, wait=False)


def join() -> int:
    """Say that this rank has no more batches; return once all ranks of the job have said so.

    For training with unequal numbers of batches. Meanwhile the others go on without this rank:

    ========================  =================================================================
    allreduce                 as if this rank gave zeros: Sum and Adasum add nothing for it, and
                              Average still divides by all ranks of the set; Min, Max and Product
                              leave it out
    allgather                 it gives no rows
    broadcast                 works unless this rank is the root: then RankJoinedError
    barrier                   this rank counts as there
    alltoall, reducescatter,  RankJoinedError on all that call them, since each rank has a part
    add_/remove_process_set
    ========================  =================================================================

    What this rank had started before it joined still counts with its values.

    Returns:
        The rank that joined last, the same on all ranks: the one with the most batches, whose state is
        usually the one to broadcast.

    Raises:
        InvalidArgumentError: this rank has joined already, from another thread.
        RankLeftError: a rank has shut down without joining.
        RanksFailedError: a rank died.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> 0 <= sirtaki.join() < sirtaki.size()
        True
    """
    return join_async().result()


def join_async() -> Handle[int]:
    """Start a `join` and return its handle. Until it is done, this rank can call no other collective.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.join_async().result() < sirtaki.size()
        True
    """
    engine = job.current("join").engine
    native = engine.submit(Kind.JOIN, [], [])
    return Handle(engine, (native,), lambda: native.result)


def _barrier(name: str | None, process_set: ProcessSet, wait: bool) -> Handle[None]:
    check_name(name)
    engine = job.current("barrier").engine
    native = engine.submit(Kind.BARRIER, [], [], name=name, process_set=number_of(process_set, engine), wait=wait)
    return Handle(engine, (native,), lambda: None)
