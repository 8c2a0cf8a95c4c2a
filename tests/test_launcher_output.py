"""The labels of sirtakirun's output, for what is hard to bring about with real processes: interleavings."""

from __future__ import annotations

import os

import pytest
from sirtaki.launcher.output import PARTIAL_SECONDS, LabelledOutput, Sink
from sirtaki.launcher.protocol import Kind

OUT, ERR = Kind.STDOUT, Kind.STDERR
# A step is what a rank writes, or None: the time passes after which an open line is shown.
Step = tuple[int, Kind, bytes] | None


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(0, OUT, b"a\nb\n")], b"[0]<stdout>:a\n[0]<stdout>:b\n"),
        (
            [(0, OUT, b"a"), (1, OUT, b"b"), (0, OUT, b"A\n"), (1, OUT, b"B\n")],
            b"[0]<stdout>:aA\n[1]<stdout>:bB\n",
        ),
        ([(0, OUT, b"\n\n")], b"[0]<stdout>:\n[0]<stdout>:\n"),
        ([(0, OUT, b"a\r\n")], b"[0]<stdout>:a\r\n"),
        ([(0, OUT, b"a\r"), None, (0, OUT, b"\n")], b"[0]<stdout>:a\r\n"),
        # Not before its time.
        ([(0, OUT, b"a")], b""),
        ([(0, OUT, b"a"), None, (0, OUT, b"b\n")], b"[0]<stdout>:ab\n"),
        # Somebody else's line ends an open one, which goes on under its label.
        (
            [(0, OUT, b"a"), None, (1, ERR, b"x\n"), (0, OUT, b"b\n")],
            b"[0]<stdout>:a\n[1]<stderr>:x\n[0]<stdout>:b\n",
        ),
        # Progress bars.
        (
            [(0, OUT, b"\r10%"), None, (0, OUT, b"\r20%"), None, (0, OUT, b"\r30%\n")],
            b"[0]<stdout>:10%\r[0]<stdout>:20%\r[0]<stdout>:30%\n",
        ),
        # A line without end does not stay in memory.
        ([(0, OUT, b"x" * 70000)], b"[0]<stdout>:" + b"x" * 70000),
    ],
)
def test_labels(steps: list[Step], expected: bytes) -> None:
    assert written(steps) == expected


def test_close_shows_what_has_no_end() -> None:
    assert written([(0, OUT, b"a"), (1, OUT, b"b\n")], close=[0]) == b"[1]<stdout>:b\n[0]<stdout>:a\n"


def test_launcher_does_not_write_into_an_open_line() -> None:
    expected = b"[0]<stdout>:a\nsirtakirun: news\n[0]<stdout>:b\n"
    assert written([(0, OUT, b"a"), None], say="news", then=[(0, OUT, b"b\n")]) == expected


def test_flush_reports_that_nobody_reads() -> None:
    reader, writer = os.pipe()
    sink = Sink(writer)
    os.close(reader)
    sink.add(b"text")
    with pytest.raises(BrokenPipeError):
        sink.flush()
    sink.add(b"more")
    assert sink.unwritten == 0
    os.close(writer)


def written(
    steps: list[Step], *, close: list[int] | None = None, say: str = "", then: list[Step] | None = None
) -> bytes:
    """Plays the steps against an output whose two streams are one file, and returns what is in it."""
    descriptor = os.memfd_create("output")
    sink = Sink(descriptor)
    output = LabelledOutput({OUT: sink, ERR: sink})
    now = 0.0
    for step in [*steps, *([say] if say else []), *(then or [])]:
        if step is None:
            now += 2 * PARTIAL_SECONDS
            output.show_partial_lines(now)
        elif isinstance(step, str):
            output.say(step)
        else:
            output.write(*step, now)
    for rank in close or ():
        output.close(rank)
    while sink.unwritten:
        sink.flush()
    text = os.pread(descriptor, 1 << 20, 0)
    os.close(descriptor)
    return text
