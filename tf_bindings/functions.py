"""Objects and variables for all ranks, under Horovod's module name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sirtaki
from sirtaki import ProcessSet, global_process_set, rank, size
from sirtaki.tensorflow.exchanges import allgather, broadcast, broadcast_
from sirtaki.tensorflow.variables import broadcast_variables

__all__ = [
    "ProcessSet",
    "allgather",
    "allgather_object",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "global_process_set",
    "rank",
    "size",
]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on all ranks, as `sirtaki.broadcast_object` does.

    Args:
        obj: anything that pickle takes; it counts on the root only.
        root_rank: the rank whose object all get.
        session: Horovod's; none is needed here.
        name: the same on all ranks; default: the next unnamed calls.
        process_set: the ranks that take part.

    Example:
        >>> settings = hvd.broadcast_object(settings)
    """
    return sirtaki.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that broadcasts the object that it is given; arguments are those of `broadcast_object`.

    Example:
        >>> from_root = hvd.broadcast_object_fn(root_rank=0)
        >>> epoch = from_root(epoch)
    """

    def broadcast_it(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast_it


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the list of all ranks' objects, by rank, as `sirtaki.allgather_object` does.

    Args:
        obj: anything that pickle takes.
        session: Horovod's; none is needed here.
        name, process_set: as for `broadcast_object`.

    Example:
        >>> host_names = hvd.allgather_object(platform.node())
    """
    return sirtaki.allgather_object(obj, name, process_set)
