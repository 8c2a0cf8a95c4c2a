"""Signals and parenthood of processes, as far as the standard library leaves them out."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
# Loaded at import, because `die_with_parent` runs between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Asks the kernel to send this process a signal when its parent ends.

    Args:
        parent: the process id of the parent, as known before the fork: if it has died in between, the
            kernel would never send anything, so this process sends the signal to itself.
        number: the signal.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def signal_group(group: int, number: int) -> None:
    """Sends a signal to all processes of a group; nobody there is no error."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def signal_name(number: int) -> str:
    """Returns "SIGKILL" for 9; a number without a name is named by its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signals_as_bytes(numbers: Iterable[int]) -> int:
    """Turns signals into bytes on a pipe, so that one poll can wait for them and for everything else.

    Args:
        numbers: the signals; SIGCHLD is always among them.

    Returns:
        The pipe's reading end. Each byte is the number of a signal that has come.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *numbers):
        signal.signal(number, lambda _number, _frame: None)
    return reader
