"""Names that outlive processes: files in /dev/shm and abstract Unix sockets.

Other jobs may run on the machine, other users' among them. So a new name counts as left behind only if no
living process holds it; that the test's own processes are gone is checked apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
# What Sirtaki and the MPI libraries under it could leave; a name of another kind is another program's.
_KINDS = ("sirtaki", "mpich", "ucx_", "vader_", "sm_segment", "Intel_MPI", "shm-col-space")


def shared_names() -> set[str]:
    """Returns files of `_KINDS` in /dev/shm, and Sirtaki's abstract sockets as ``@name inode``."""
    entries = _SHARED_MEMORY.iterdir() if _SHARED_MEMORY.is_dir() else ()
    files = {str(entry) for entry in entries if entry.name.startswith(_KINDS)}
    sockets = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith("@") and "sirtaki" in fields[7]:
            sockets.add(f"{fields[7]} {fields[6]}")
    return files | sockets


def ownerless(names: set[str]) -> list[str]:
    """Returns those of the names that still exist and that no process has open or mapped."""
    if not names:
        return []
    held = set(_held())
    return sorted(name for name in names & shared_names() if _as_held(name) not in held)


def _as_held(name: str) -> str:
    """Returns what /proc/PID/fd shows for a name."""
    return f"socket:[{name.rpartition(' ')[2]}]" if name.startswith("@") else name


def _held() -> Iterator[str]:
    """Yields what the machine's processes have open or mapped."""
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                yield os.readlink(descriptor)
            except OSError:
                # Closed in the meantime.
                continue
        try:
            for line in (process / "maps").read_text().splitlines():
                yield line.partition("/")[1] + line.partition("/")[2]
        except OSError:
            pass
