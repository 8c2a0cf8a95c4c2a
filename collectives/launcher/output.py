"""Writes what the ranks print: line by line under labels, or as it comes. Pure but for `Sink.flush`.

Guarantees of `LabelledOutput`:
  * Lines of different ranks or streams are never mixed; each starts with ``[rank]<stdout>:`` or
    ``[rank]<stderr>:``.
  * A line without its end (a prompt, a progress bar) is shown after `PARTIAL_SECONDS`. If somebody else
    prints before it goes on, it goes on in a new line under its label again.
  * A carriage return restarts the line, label included, so that progress bars stay progress bars.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field

from .protocol import Kind

# Python with unbuffered output writes a line and its end one by one; without a pause most lines would be
# shown in two parts. A person does not see this delay in a progress bar.
PARTIAL_SECONDS = 0.1
# A line without end must not gather in memory for ever.
_MAX_PARTIAL = 64 * 1024
# A pipe that polls as writable takes this much without blocking (Linux: one page).
_PIPE_CHUNK = 4096
_RESTART = re.compile(rb"\r(?!\n)")


class Sink:
    """One destination, a file descriptor, with what is still to be written there.

    Attributes:
        open_line: who has written the last line there, if that line has no end yet.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.open_line: tuple[int, Kind] | None = None
        self._buffer = bytearray()
        self._broken = False
        self._chunk = 1 << 20 if stat.S_ISREG(os.fstat(descriptor).st_mode) else _PIPE_CHUNK

    @property
    def unwritten(self) -> int:
        """The number of bytes that wait to be written."""
        return len(self._buffer)

    def add(self, data: bytes) -> None:
        """Puts bytes behind those that wait."""
        if not self._broken:
            self._buffer += data

    def flush(self) -> None:
        """Writes what the destination takes without blocking; call it when it polls as writable.

        Raises:
            BrokenPipeError: nobody reads there any more; this and all later bytes are dropped.
        """
        try:
            written = os.write(self.descriptor, self._buffer[: self._chunk])
        except BlockingIOError:
            return
        except OSError as error:
            self._broken = True
            self._buffer.clear()
            raise BrokenPipeError from error
        del self._buffer[:written]


def sinks() -> dict[Kind, Sink]:
    """Returns the sinks of standard output and standard error: one, if both are the same file."""
    out, err = os.fstat(1), os.fstat(2)
    first = Sink(1)
    same = (out.st_dev, out.st_ino, out.st_rdev) == (err.st_dev, err.st_ino, err.st_rdev)
    return {Kind.STDOUT: first, Kind.STDERR: first if same else Sink(2)}


class RawOutput:
    """Passes on the bytes as they come."""

    def __init__(self, sinks: dict[Kind, Sink]) -> None:
        self._sinks = sinks

    def write(self, rank: int, kind: Kind, data: bytes, now: float) -> None:
        """Takes what a rank has written to a stream."""
        self._sinks[kind].add(data)

    def deadline(self) -> float | None:
        """When `show_partial_lines` has something to do."""
        return None

    def show_partial_lines(self, now: float) -> None:
        """Shows lines that have waited for their end long enough."""

    def close(self, rank: int) -> None:
        """Ends the open lines of a rank that will write no more."""

    def say(self, text: str) -> None:
        """Writes a line of the launcher's own to standard error."""
        self._sinks[Kind.STDERR].add(f"sirtakirun: {text}\n".encode())


@dataclass
class _Partial:
    text: bytearray = field(default_factory=bytearray)
    show_at: float | None = None


class LabelledOutput(RawOutput):
    """Writes whole lines, each under the label of its rank and stream."""

    def __init__(self, sinks: dict[Kind, Sink]) -> None:
        super().__init__(sinks)
        self._partial: dict[tuple[int, Kind], _Partial] = {}

    def write(self, rank: int, kind: Kind, data: bytes, now: float) -> None:
        source = (rank, kind)
        partial = self._partial.setdefault(source, _Partial())
        partial.text += data
        *lines, rest = bytes(partial.text).split(b"\n")
        for line in lines:
            self._emit(source, line + b"\n")
        partial.text[:] = rest
        if not _showable(partial.text):
            partial.show_at = None
        elif len(partial.text) > _MAX_PARTIAL:
            self._show(source, partial)
        elif lines or partial.show_at is None:
            partial.show_at = now + PARTIAL_SECONDS

    def deadline(self) -> float | None:
        return min((p.show_at for p in self._partial.values() if p.show_at is not None), default=None)

    def show_partial_lines(self, now: float) -> None:
        for source, partial in self._partial.items():
            if partial.show_at is not None and partial.show_at <= now:
                self._show(source, partial)

    def close(self, rank: int) -> None:
        for source in [source for source in self._partial if source[0] == rank]:
            text = bytes(self._partial.pop(source).text)
            if text:
                self._emit(source, text)
            sink = self._sinks[source[1]]
            if sink.open_line == source:
                sink.add(b"\n")
                sink.open_line = None

    def say(self, text: str) -> None:
        sink = self._sinks[Kind.STDERR]
        if sink.open_line is not None:
            sink.add(b"\n")
            sink.open_line = None
        super().say(text)

    def _show(self, source: tuple[int, Kind], partial: _Partial) -> None:
        length = _showable(partial.text)
        self._emit(source, bytes(partial.text[:length]))
        del partial.text[:length]
        partial.show_at = None

    def _emit(self, source: tuple[int, Kind], text: bytes) -> None:
        """Writes a line, or a part of one, of a source."""
        sink = self._sinks[source[1]]
        label = b"[%d]<%s>:" % (source[0], source[1].name.lower().encode())
        if sink.open_line != source:
            if sink.open_line is not None:
                sink.add(b"\n")
            sink.add(label)
            if not text.startswith(b"\r\n"):
                text = text.lstrip(b"\r")
        sink.add(_RESTART.sub(b"\r" + label, text))
        sink.open_line = None if text.endswith(b"\n") else source


def _showable(text: bytearray) -> int:
    """The length of what can be shown: not a last carriage return, which may be half of a line's end."""
    return len(text) - text.endswith(b"\r")
