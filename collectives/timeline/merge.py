"""Puts the timelines of several ranks together: one lane of processes per rank, on one clock.

Ranks of one host share a clock. Between hosts the wall clocks, noted at the beginning of each file, are compared,
and then corrected by what must be: no rank is done with an allreduce before all ranks have begun it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sirtaki.timeline import ANCHOR

Event = dict[str, Any]
# Those in which each rank needs something of each other rank.
_MUTUAL = ("allreduce", "allgather", "alltoall", "reducescatter")


@dataclass
class RankTimeline:
    """What a file has.

    Attributes:
        anchor: see `sirtaki.timeline`; empty if the file was cut off before it.
        events: all others.
        num_unreadable: lines that are no event; the last line of a file that was cut off is one.
    """

    anchor: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    num_unreadable: int = 0

    @property
    def clock(self) -> str:
        """Whose monotonic clock its times are of."""
        return str(self.anchor.get("boot") or self.anchor.get("host") or "")


def load(path: str | os.PathLike[str]) -> RankTimeline:
    """Read a rank's file, also one that was cut off at any byte.

    Raises:
        OSError: it cannot be read.
    """
    timeline = RankTimeline()
    # Bytes: only they are split at line feeds alone; a tensor's name may have what else ends lines in Unicode.
    for line in Path(path).read_bytes().splitlines():
        text = line.decode("utf-8", "replace").strip().removesuffix(",")
        if text in ("", "[", "]"):
            continue
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            timeline.num_unreadable += 1
        elif event.get("name") == ANCHOR:
            timeline.anchor = event["args"]
        else:
            timeline.events.append(event)
    return timeline


def merge(paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> int:
    """Write the events of all files to one that Perfetto opens.

    Args:
        paths: files of `start_timeline`, of one job, in any order; several of one rank may be among them.
        output: the file to write.

    Returns:
        The number of events.

    Raises:
        ValueError: no file, or none of them has an event.
    """
    timelines = [load(path) for path in paths]
    events = merged(timelines)
    if not events:
        raise ValueError(f"no events in {', '.join(map(str, paths)) or 'no files'}")
    Path(output).write_text("[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n")
    return len(events)


def merged(timelines: Sequence[RankTimeline]) -> list[Event]:
    """Return the events of all timelines with comparable times and with lanes that keep apart."""
    offsets = clock_offsets(timelines)
    lanes: dict[tuple[int, str], int] = {}
    events = []
    for timeline in timelines:
        names = {e["tid"]: e["args"]["name"] for e in timeline.events if e.get("name") == "thread_name"}
        offset = offsets.get(timeline.clock, 0.0)
        for event in timeline.events:
            moved = dict(event)
            name = names.get(event.get("tid"))
            if name is not None:
                # A rank's second timeline has other numbers for the same names.
                rank = event["pid"]
                taken = sum(1 for key in lanes if key[0] == rank)
                moved["tid"] = lanes.setdefault((rank, name), 0 if name == "batches" else taken + 1)
            if "ts" in event:
                moved["ts"] = round(event["ts"] + offset, 3)
            events.append(moved)
    return events


def clock_offsets(timelines: Sequence[RankTimeline]) -> dict[str, float]:
    """Return microseconds to add to the times of each clock, so that they are comparable."""
    offsets: dict[str, float] = {}
    first = next((t for t in timelines if t.anchor), None)
    if first is None:
        return offsets
    reference = _batches(t for t in timelines if t.clock == first.clock)
    for timeline in timelines:
        if timeline.clock in offsets or not timeline.anchor:
            continue
        offset = (_wall_offset_ns(timeline) - _wall_offset_ns(first)) / 1000
        if timeline.clock != first.clock:
            own = _batches(t for t in timelines if t.clock == timeline.clock)
            common = own.keys() & reference.keys()
            lowest = max((reference[b][0] - own[b][1] for b in common), default=offset)
            highest = min((reference[b][1] - own[b][0] for b in common), default=offset)
            # Clocks that drift apart may leave nothing between the two bounds: then the middle errs least.
            offset = min(max(offset, lowest), highest) if lowest <= highest else (lowest + highest) / 2
        offsets[timeline.clock] = offset
    return offsets


def _wall_offset_ns(timeline: RankTimeline) -> int:
    return int(timeline.anchor["realtime_ns"]) - int(timeline.anchor["monotonic_ns"])


def _batches(timelines: Iterable[RankTimeline]) -> dict[int, tuple[float, float]]:
    """Return, per batch, when the last rank has begun it and when the first was done with it."""
    spans: dict[int, tuple[float, float]] = {}
    for timeline in timelines:
        own: dict[int, tuple[float, float]] = {}
        current: dict[int, Event] = {}
        for event in timeline.events:
            if event.get("name") in _MUTUAL:
                current[event["tid"]] = event
            elif event.get("name") == "queue" and event["tid"] in current:
                whole = current.pop(event["tid"])
                own[whole["args"]["batch"]] = (event["ts"] + event["dur"], whole["ts"] + whole["dur"])
        for batch, (begin, end) in own.items():
            begun, done = spans.get(batch, (begin, end))
            spans[batch] = (max(begun, begin), min(done, end))
    return spans
