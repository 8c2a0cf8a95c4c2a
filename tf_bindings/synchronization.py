"""Ranks that wait for each other: barrier and join, as operations."""

from __future__ import annotations

from typing import Any

from sirtaki import ProcessSet, global_process_set
from sirtaki.kinds import Kind
from sirtaki.tensorflow import calls, names
from sirtaki.tensorflow.arguments import check_place, number_of
from sirtaki.tensorflow.call_description import CallDescription


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Returns when all ranks of a process set have called it; inside a `tf.function` the operation does.

    Inside a `tf.function`, collectives are in no order among each other: give what must come after the barrier a
    control dependency on what this returns.

    Args:
        process_set: the ranks that wait for each other.
        name: the same on every rank; see `sirtaki.tensorflow.names` for unnamed calls.

    Example:
        >>> hvd.barrier()
    """
    check_place("barrier")
    number = number_of(process_set, "barrier")
    return calls.barrier(CallDescription("barrier", Kind.BARRIER, name or names.automatic("barrier"), number))


def join() -> Any:
    """Says that this rank has no more batches, and waits until all ranks have said so.

    Until then the others' collectives go on without this rank; see `sirtaki.join` for what each does.

    Returns:
        The rank that joined last, an int32 scalar.

    Example:
        >>> for batch in batches:  # more on some ranks than on others
        ...     train_step(batch)
        >>> hvd.join()
    """
    check_place("join")
    return calls.join(CallDescription("join", Kind.JOIN, ""))
