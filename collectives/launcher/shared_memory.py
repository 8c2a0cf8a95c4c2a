"""Removes the shared-memory files that MPI implementations leave in /dev/shm when ranks are killed.

MPICH, for one, keeps a file of some megabytes per job and host from MPI_Init to MPI_Finalize. Killed jobs
would fill /dev/shm, which in containers is small, and later jobs would crash with SIGBUS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

_FOLDER = "/dev/shm"
# MPICH; Intel MPI; Open MPI 4 and 5.
_NAMES = re.compile(r"mpich_shm_|mpich_vci_|Intel_MPI_|vader_segment\.|sm_segment\.")


def remove_orphans(since: float) -> None:
    """Removes the files of MPI that nobody uses any more.

    A file belongs to no process when none has it mapped or open. It is removed only if it is this user's
    and has been made after the job began: processes of another container, which cannot be seen here, are
    thus safe too, unless they are starting just now.

    Args:
        since: when the job began, in seconds of `time.time`.
    """
    candidates = set(_files(since))
    if candidates:
        for path in candidates - set(_in_use()):
            try:
                os.unlink(path)
            except FileNotFoundError:
                # The supervisor of another rank was quicker.
                pass


def _files(since: float) -> Iterator[str]:
    try:
        entries = list(os.scandir(_FOLDER))
    except OSError:
        return
    for entry in entries:
        if not _NAMES.match(entry.name):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if status.st_uid == os.geteuid() and status.st_ctime >= since:
            yield entry.path


def _in_use() -> Iterator[str]:
    """Yields what this user's processes have open or mapped in the folder."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        # A process may end meanwhile, and with it what it holds; others' processes cannot be looked into.
        try:
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                try:
                    yield os.readlink(descriptor.path)
                except FileNotFoundError:
                    continue
            with open(f"/proc/{pid}/maps", errors="replace") as maps:
                for line in maps:
                    if _FOLDER in line:
                        yield line[line.index(_FOLDER) :].rstrip("\n")
        except OSError:
            continue
