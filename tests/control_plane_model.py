"""What simulated ranks ask of the control plane, and how each request must end.

The model knows no numbers, log or messages: it is told in which order the sequencer received submissions and leaves.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from sirtaki import _native
from sirtaki.kinds import Kind

UINT8, FLOAT32, FLOAT64 = 1, 11, 12
ELEMENT_BYTES = {UINT8: 1, FLOAT32: 4, FLOAT64: 8}
AVERAGE, SUM = 0, 1
EXECUTED = "executed"
MISMATCH = "mismatch"
LEFT = "left"
JOINED = "joined"  # it needs a rank that has joined
ROOT = 0  # of every broadcast


@dataclasses.dataclass(frozen=True)
class What:
    """What a rank asks for: the part of a request that must agree."""

    kind: int
    reduce_op: int = SUM
    dtype: int = FLOAT32
    shape: tuple[int, ...] = (1,)

    @functools.cached_property
    def encoded(self) -> bytes:
        shapes = [] if self.kind == Kind.BARRIER else [list(self.shape)]
        return _native.encode_signature(self.kind, self.reduce_op, self.dtype, ROOT, 1.0, 1.0, shapes)

    @property
    def num_bytes(self) -> int:
        size = ELEMENT_BYTES[self.dtype]
        for dim in self.shape:
            size *= dim
        return size

    @property
    def fusion_class(self) -> object:
        """What requests of one batch have in common; None travels alone."""
        return (self.reduce_op, self.dtype) if self.kind == Kind.ALLREDUCE else None


# A tensor and its how-manieth use: what the members of a process set do together. An unnamed one has its place in
# the order of unnamed calls instead of a name.
@dataclasses.dataclass(frozen=True)
class Use:
    process_set: int
    name: str | None
    occurrence: int


@dataclasses.dataclass
class Request:
    """One rank's part in a use of a tensor."""

    use: Use
    what: What
    rows: int
    ends: list[str] = dataclasses.field(default_factory=list)


class Model:
    """How requests must end, from nothing but the order in which the sequencer hears of them."""

    def __init__(self, members: Callable[[int], list[int]]) -> None:
        self._members = members
        self._gone: set[int] = set()
        self._joined: set[int] = set()
        self._waiting: dict[Use, dict[int, Request]] = {}
        self.expected: dict[tuple[int, Use], str] = {}
        self.rows: dict[Use, list[int]] = {}

    def submitted(self, rank: int, request: Request) -> None:
        if rank in self._gone:
            return
        members = self._members(request.use.process_set)
        if self._gone.intersection(members):
            self.expected[rank, request.use] = LEFT
            return
        parts = self._waiting.setdefault(request.use, {})
        assert rank not in parts
        parts[rank] = request
        self._end_if_complete(request.use)

    def joined(self, rank: int) -> None:
        self._joined.add(rank)
        for use in list(self._waiting):
            self._end_if_complete(use)

    def _end_if_complete(self, use: Use) -> None:
        members = self._members(use.process_set)
        parts = self._waiting[use]
        absent = set(members) - set(parts)
        if absent - self._joined:
            return
        del self._waiting[use]
        what = next(iter(parts.values())).what
        if len({part.what.encoded for part in parts.values()}) > 1:
            end = MISMATCH
        elif what.kind == Kind.BROADCAST and ROOT in absent:
            end = JOINED
        else:
            end = EXECUTED
        self.expected.update(((member, use), end) for member in parts)
        if end == EXECUTED and what.kind == Kind.ALLGATHER:
            self.rows[use] = [parts[m].rows if m in parts else 0 for m in members]

    def left(self, rank: int) -> None:
        self._gone.add(rank)
        for use, parts in list(self._waiting.items()):
            if rank in self._members(use.process_set):
                del self._waiting[use]
                self.expected.update(((member, use), LEFT) for member in parts)

    def check(self, rank: int, request: Request) -> None:
        """Compare the end of a request with what must have become of it."""
        # What was in flight when a rank read of its own leaving ends there, whatever the peers hear of it.
        allowed = {self.expected.get((rank, request.use), LEFT)}
        if rank in self._gone and EXECUTED not in allowed:
            allowed.add(LEFT)
        assert len(request.ends) == 1 and request.ends[0] in allowed, (rank, request, allowed)
