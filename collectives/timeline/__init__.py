"""The timeline of a rank: what happens to every tensor, as a Chrome trace that Perfetto opens.

``python -m sirtaki.timeline merge`` puts the ranks' files together. docs/observability.md says what is in them.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from sirtaki import _native
from sirtaki.errors import InvalidArgumentError
from sirtaki.version import __version__

# The name of the event with which a file begins: whose it is, and two clocks read at one moment.
ANCHOR = "sirtaki_timeline"


def path_for_rank(file_path: str | os.PathLike[str], rank: int, size: int) -> Path:
    """Return the file of a rank: ``{rank}`` is replaced, else in a job of several ranks the number comes before the
    suffix.

    Example:
        >>> str(path_for_rank("trace.json", 1, 2)), str(path_for_rank("trace.json", 0, 1))
        ('trace.1.json', 'trace.json')
        >>> str(path_for_rank("rank{rank}/trace.json", 1, 2))
        'rank1/trace.json'
    """
    text = os.fspath(file_path)
    if "{rank}" in text:
        return Path(text.replace("{rank}", str(rank)))
    path = Path(text)
    return path if size == 1 else path.with_name(f"{path.stem}.{rank}{path.suffix}")


def start(file_path: str | os.PathLike[str], rank: int, size: int, mark_batches: bool) -> Path:
    """Begin a timeline and return its file; what was there before is overwritten."""
    path = path_for_rank(file_path, rank, size)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    header = "".join(json.dumps(event) + ",\n" for event in _header(rank, size))
    # Only once it is sure that no timeline runs, which may be writing to this very file, is it emptied.
    if not _native.start_timeline(descriptor, rank, header, mark_batches):
        raise InvalidArgumentError("a timeline is running already, or its file cannot be written; call stop_timeline()")
    return path


def stop() -> bool:
    """Write what is left and end the timeline; return whether there was one."""
    return _native.stop_timeline()


def _header(rank: int, size: int) -> list[dict[str, Any]]:
    host = socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    anchor = {
        "version": __version__,
        "rank": rank,
        "size": size,
        "host": host,
        "pid": os.getpid(),
        "boot": boot,
        "monotonic_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
        "realtime_ns": time.clock_gettime_ns(time.CLOCK_REALTIME),
    }
    label = f"rank {rank} (host {host}, pid {os.getpid()})"
    return [
        {"ph": "M", "pid": rank, "tid": 0, "name": ANCHOR, "args": anchor},
        {"ph": "M", "pid": rank, "tid": 0, "name": "process_name", "args": {"name": label}},
        {"ph": "M", "pid": rank, "tid": 0, "name": "process_sort_index", "args": {"sort_index": rank}},
    ]
