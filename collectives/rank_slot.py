"""One process per launched rank: which of a rank's processes takes its place in the job.

A launcher starts one command per rank and describes the rank in its environment, which all processes that the command
starts inherit: wrappers that start the real program, and workers that the program starts. Only one of them can be the
rank. It is the one that joins first. Processes below it become jobs of their own; where it cannot be known who is
meant, that is an error, since a program that was to be a rank must not train alone.
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

_PREFIX = "\0sirtaki-rank-"
# Held as long as this process lives, also between two jobs.
_claims: list[socket.socket] = []
_claimed_by: int | None = None


def take(environment: Mapping[str, str] = os.environ) -> bool:
    """Take this rank's place; return False, with a warning, if this process descends from a rank that has joined.

    Raises:
        SirtakiError: another process, which is no ancestor, has the place; or this process has the launcher's
            environment but not its connection.
    """
    global _claimed_by
    parent = environment.get(RANK_PID, "")
    if parent not in ("", str(os.getpid())):
        return _refuse(parent)
    if _claimed_by == os.getpid():
        return True
    key = _key(environment)
    if key == "":
        rank = next((pid for pid in _ancestors() if _holder(f"of-{pid}") == pid), None)
        if rank is not None:
            return _refuse(rank)
        raise SirtakiError(
            f"process {os.getpid()} has the environment of a launched rank, but not its connection to the launcher, "
            "which a process between them has closed. If it is to be the rank, let that process replace itself by it "
            "(os.execvp) or start it with close_fds=False. If it is a worker of a rank, start it after the rank's own "
            "sirtaki.init(); it is a job of one rank then."
        )
    if key is not None and not _claim(key):
        holder = _holder(key)
        if holder in _ancestors():
            return _refuse(holder)
        raise SirtakiError(
            f"process {os.getpid()} cannot join the job: process {holder or '(gone)'} has joined it in the place of "
            "the same rank, since both have the launcher's environment. Workers of a rank that use Sirtaki must be "
            "started after the rank's own sirtaki.init(); then each is a job of one rank."
        )
    _claim(f"of-{os.getpid()}")
    _claimed_by = os.getpid()
    return True


def _claim(key: str) -> bool:
    """Take a name that only one process can have; it goes with the process and leaves no file behind."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(_PREFIX + key)
        claim.listen()
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def _holder(key: str) -> int:
    """Return the process that has taken a name, 0 if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        try:
            s.connect(_PREFIX + key)
        except OSError:
            return 0
        credentials = s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _refuse(rank: int | str) -> bool:
    _log.warning(
        "this process was started by a rank (process %s) of a job and does not take its place: "
        "it becomes a job of one rank",
        rank,
    )
    return False


def _key(environment: Mapping[str, str]) -> str | None:
    """Return what all processes of a launched rank share and no others; None: unknown; "": the connection is gone."""
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
