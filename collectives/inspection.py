"""How a program looks at its job from inside: counters, the ranking of stragglers, and the timeline."""

from __future__ import annotations

import os
from typing import Any

from sirtaki import job, timeline
from sirtaki.counters import Straggler, as_metrics, ranking


def metrics() -> dict[str, Any]:
    """Return what this rank has counted since `init`; all numbers only grow.

    Returns:
        A dictionary of

        - ``collectives``: by name (allreduce, ...) ``calls``, ``tensors`` and ``bytes``: of the tensors that this
          rank has given, for collectives that were carried out;
        - ``batches``: their number, and ``tensors_per_batch``: how many batches had at most 1, 2, 4, ... tensors
          and more than the number before, by that number;
        - ``cache_hits`` and ``cache_misses``: requests whose name and signature were agreed already, and others;
        - ``data_wait_seconds``: by rank, how long this rank waited for it while data was moved;
        - ``stragglers``: as `stragglers` returns them.

    Raises:
        NotInitializedError: there is no job.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> before = sirtaki.metrics()["collectives"]["allreduce"]["bytes"]
        >>> _ = sirtaki.allreduce(np.zeros(100, np.float32))
        >>> sirtaki.metrics()["collectives"]["allreduce"]["bytes"] - before
        400
    """
    return as_metrics(job.current("metrics").engine.native.metrics)


def stragglers() -> list[Straggler]:
    """Return the ranks that the job has waited for, the one that cost most first.

    The answer to "whom do we wait for": rank 0 sees for each tensor which rank submits it last, and how long after
    the others. All ranks that take part in the same collectives get the same ranking. A rank that nobody ever waited
    for is not in it.

    Raises:
        NotInitializedError: there is no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> for straggler in sirtaki.stragglers():
        ...     print(straggler)
    """
    return ranking(job.current("stragglers").engine.native.metrics)


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begin to record what happens to every tensor on this rank, for https://ui.perfetto.dev.

    Each rank writes a file of its own and may begin and end when it likes; docs/observability.md says what is in it
    and how to put the files of all ranks together.

    Args:
        file_path: the file; it is overwritten. ``{rank}`` in it is replaced by the rank; without it, in a job of
            several ranks, the rank comes before the suffix: ``trace.json`` becomes ``trace.0.json``.
        mark_cycles: a lane of its own shows the batches in which tensors travelled (Horovod has cycles there, which
            Sirtaki has not).

    Raises:
        InvalidArgumentError: a timeline is running already.
        OSError: the file cannot be written.
        NotInitializedError: there is no job.

    Example:
        >>> import json, numpy as np, sirtaki, tempfile
        >>> sirtaki.init()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sirtaki.start_timeline(f"{folder}/trace-{{rank}}.json")
        ...     _ = sirtaki.allreduce(np.ones(3), name="w")
        ...     sirtaki.stop_timeline()
        ...     events = json.load(open(f"{folder}/trace-{sirtaki.rank()}.json"))
        >>> [e["args"]["dtype"] for e in events if e.get("name") == "allreduce"]
        ['float64']
    """
    topology = job.current("start_timeline").topology
    timeline.start(file_path, topology.rank, topology.size, mark_cycles)


def stop_timeline() -> None:
    """End the timeline of this rank; its file is complete then. Without one it does nothing.

    Raises:
        NotInitializedError: there is no job.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> sirtaki.stop_timeline()  # there is none
    """
    job.current("stop_timeline")
    timeline.stop()
