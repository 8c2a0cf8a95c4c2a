"""One process per launched rank: which of a rank's processes takes its place in the job.

A launcher starts one command per rank and describes the rank in its environment, which all processes that the command
starts inherit: wrappers that start the real program, and workers that the program starts. Only one of them can be the
rank. It is the one that joins first; what it starts afterwards, or has started before, becomes a job of its own.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
from collections.abc import Mapping

from sirtaki.config import RANK_PID
from sirtaki.errors import SirtakiError

_log = logging.getLogger("sirtaki")

_claim: socket.socket | None = None  # held as long as this process lives, also between two jobs
_claimed_by: int | None = None


def take(environment: Mapping[str, str] = os.environ) -> bool:
    """Take this rank's place; return False, with a warning, if this process descends from the one that has it.

    Raises:
        SirtakiError: a process that this one has started, or another one beside it, has the place.
    """
    global _claim, _claimed_by
    parent = environment.get(RANK_PID, "")
    if parent not in ("", str(os.getpid())):
        return _refuse(f"by a rank (process {parent}) of a job")
    if _claimed_by == os.getpid():
        return True
    key = _key(environment)
    if key is None:
        return True
    if not key:
        return _refuse("by a launched process, without the launcher's connection, which only a rank has")
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # An abstract name goes with its process and leaves no file behind.
        claim.bind(f"\0sirtaki-rank-{key}")
        claim.listen()
    except OSError:
        claim.close()
        return _meet_holder(key)
    _claim, _claimed_by = claim, os.getpid()
    return True


def _meet_holder(key: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        try:
            s.connect(f"\0sirtaki-rank-{key}")
        except OSError:
            holder = 0  # it is ending, or has not come to listen() yet
        else:
            credentials = s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            holder = struct.unpack("3i", credentials)[0]
    if holder in _ancestors():
        return _refuse(f"by a rank (process {holder}) of a job")
    raise SirtakiError(
        f"process {os.getpid()} cannot join the job: process {holder or '(gone)'} has joined it in the place of the "
        "same rank, since both have the launcher's environment. Workers of a rank that use Sirtaki must be started "
        "after the rank's own sirtaki.init(); then each is a job of one rank."
    )


def _refuse(how: str) -> bool:
    _log.warning("this process was started %s and does not take its place: it becomes a job of one rank", how)
    return False


def _key(environment: Mapping[str, str]) -> str | None:
    """Return what all processes of a launched rank share and no others; None: unknown; "": not a rank's process."""
    if "PMIX_NAMESPACE" in environment:  # Open MPI
        return f"{environment['PMIX_NAMESPACE']}-{environment.get('PMIX_RANK', '')}"
    number = environment.get("PMI_FD", "")
    if not number.isdigit():
        return None
    # MPICH's process manager is at the other end of a socket that the rank has inherited. Subprocesses that have it
    # closed, as Python does it by default, could not even start MPI.
    try:
        status = os.fstat(int(number))
    except OSError:
        return ""
    return f"{status.st_dev}-{status.st_ino}" if stat.S_ISSOCK(status.st_mode) else ""


def _ancestors() -> list[int]:
    found = []
    pid = os.getppid()
    while pid > 1:
        found.append(pid)
        try:
            with open(f"/proc/{pid}/stat") as file:
                # The name, in parentheses, may have spaces and parentheses itself.
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found
