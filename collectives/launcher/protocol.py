"""The messages between the launcher and the rank supervisors, as bytes; no I/O.

A message is a header (kind, length of the payload) and the payload. A connection starts with the
supervisor's HELLO, answered by START; then the supervisor sends output, and one EXIT when its command has
ended; the launcher may send SIGNAL at any time and closes with BYE. If either side vanishes the other
reads end of file.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass

# Marks the children of a rank (sirtaki.config.RANK_PID); a job that a rank or its child launches is a new one.
RANK_PID_VARIABLE = "SIRTAKI_RANK_PID"
# How a supervisor finds its launcher: JSON of `Rendezvous`. Taken out of the command's environment.
RENDEZVOUS_VARIABLE = "SIRTAKI_LAUNCHER"

# The exit code of a rank that the failure of another one has ended (sirtaki.job.ENDED_BY_ANOTHER_EXIT_CODE).
ENDED_BY_ANOTHER_EXIT_CODE = 79

_HEADER = struct.Struct("!BI")
# No peer sends more in one message; more means that something else is talking to our port.
MAX_PAYLOAD = 16 * 1024 * 1024


class Kind(enum.IntEnum):
    """What a message says. Upwards is from the supervisor to the launcher."""

    HELLO = 1  # up: Hello
    START = 2  # down: Start
    STDOUT = 3  # up: bytes that the command wrote to its standard output
    STDERR = 4  # up: the same for standard error
    EXIT = 5  # up: Exit
    ORPHANED = 6  # up: mpiexec has ended the rank's anchor; the command still runs
    SIGNAL = 7  # down: the signal's number in decimal, for the command's process group
    BYE = 8  # down: the job is over, end


class ProtocolError(Exception):
    """The peer sent something that is not a message."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the launcher listens: addresses to try in turn, and the secret that HELLO must carry."""

    addresses: list[str]
    port: int
    token: str


@dataclass(frozen=True)
class Hello:
    """A supervisor is there and waits for START."""

    token: str
    rank: int
    host: str


@dataclass(frozen=True)
class Start:
    """What to run.

    Attributes:
        command: program and arguments.
        directory: the working directory; the supervisor's own if there is none of that name.
        defaults: environment variables for names that the supervisor's environment lacks.
        overrides: environment variables that win over the supervisor's environment.
        inherit_stdin: give the command the supervisor's standard input, instead of none.
        term_seconds: time between SIGTERM and SIGKILL when the supervisor has to end it by itself.
    """

    command: list[str]
    directory: str
    defaults: dict[str, str]
    overrides: dict[str, str]
    inherit_stdin: bool
    term_seconds: float


@dataclass(frozen=True)
class Exit:
    """How the command ended.

    Attributes:
        code: the exit code, or None.
        signal: the number of the signal that killed it, or 0.
        asked: the supervisor had passed on a signal before, so the end is no failure of this rank's own.
        error: why the command could not be started, or "".
    """

    code: int | None = None
    signal: int = 0
    asked: bool = False
    error: str = ""


def pack(kind: Kind, payload: bytes = b"") -> bytes:
    """Returns one message as bytes."""
    return _HEADER.pack(kind, len(payload)) + payload


def pack_object(kind: Kind, value: Rendezvous | Hello | Start | Exit) -> bytes:
    """Returns one message whose payload is a dataclass as JSON."""
    return pack(kind, json.dumps(asdict(value)).encode())


class Decoder:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Adds bytes and yields the messages that are complete now.

        Raises:
            ProtocolError: the bytes are no message.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            number, length = _HEADER.unpack_from(self._buffer)
            if length > MAX_PAYLOAD or number not in Kind._value2member_map_:
                raise ProtocolError(f"message of kind {number} with {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield Kind(number), payload
