"""Python objects between ranks, by pickle. Ranks of one job trust each other."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from sirtaki import job
from sirtaki.exchanges import broadcast, gather_with_rows
from sirtaki.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root rank's object on all ranks.

    Args:
        obj: anything that pickle takes; counts on the root only.
        root_rank: the rank whose object all get.
        name: the same on all ranks; default: the next unnamed calls.
        process_set: the ranks that take part; the root is one of them.

    Raises:
        InvalidArgumentError: there is no such root rank.
        MismatchError, RanksFailedError, RankLeftError: as for `sirtaki.allreduce`.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    is_root = job.rank() == root_rank
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if is_root else np.empty(0, np.uint8)
    size_name, data_name = (None, None) if name is None else (f"{name}/size", f"{name}/data")
    size = int(broadcast(np.array(data.size), root_rank, size_name, process_set))
    if not is_root:
        data = np.empty(size, np.uint8)
    received = broadcast(data, root_rank, data_name, process_set)
    return obj if is_root else pickle.loads(received.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the list of all ranks' objects, by rank. A rank that has joined counts with None.

    Args:
        obj: anything that pickle takes.
        name: the same on all ranks; default: the next unnamed call.
        process_set: the ranks that take part.

    Raises:
        MismatchError, RanksFailedError, RankLeftError: as for `sirtaki.allreduce`.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.allgather_object(sirtaki.rank()) == list(range(sirtaki.size()))
        True
    """
    joined, rows = gather_with_rows(np.frombuffer(pickle.dumps(obj), np.uint8), name, process_set)
    ends = np.cumsum(rows)
    return [pickle.loads(joined[end - n : end].tobytes()) if n else None for end, n in zip(ends, rows, strict=True)]
