"""The control plane alone, with simulated ranks that act in any order, against a model of what must come out.

A simulated rank keeps the books that native/engine.cc keeps: it asks for numbers of names and signatures, submits
when the log has told it both, and ends requests as the log says. Records on their way to the sequencer, events that
wait for a decision, and log entries on their way to each rank are all delayed at random, each rank at a pace of its
own. Everything random comes from one seed.

    python tests/control_plane_simulation.py --runs 1000    # a longer search than the tests make
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from control_plane_model import (
    AVERAGE,
    ELEMENT_BYTES,
    EXECUTED,
    JOINED,
    LEFT,
    MISMATCH,
    SUM,
    Model,
    Request,
    Use,
    What,
)
from sirtaki import _native
from sirtaki.errors import MISMATCH_CODE
from sirtaki.kinds import Kind

RANK_LEFT_CODE = 4
RANK_JOINED_CODE = 11
_ENDS_OF_CODES = {MISMATCH_CODE: MISMATCH, RANK_LEFT_CODE: LEFT, RANK_JOINED_CODE: JOINED}


class Rank:
    """The books of one rank, as in native/engine.cc."""

    def __init__(self, rank: int, threads: list[deque[Request]], leaves_early: bool, joins: bool) -> None:
        self.rank = rank
        # Each thread submits its requests one after the other ended: all uses of one name are one thread's, and so
        # are all unnamed calls (which need not wait).
        self.threads = threads
        self.leaves_early = leaves_early
        self.is_to_join = joins
        self.joining = False
        self.up: deque[tuple[str, Any]] = deque()  # records on their way to the sequencer
        self.log_position = 0
        self.next_sequence = 1
        self.leaving = False
        self.left = False
        self.requests: list[Request] = []
        self._busy: dict[tuple[int, str], Request] = {}
        self._in_flight: dict[int, tuple[Request, int]] = {}  # by key, with the number of the signature
        self._names: dict[bytes, int | None] = {}
        self._signatures: dict[bytes, int | None] = {}
        self._unassigned: list[Request] = []

    def submit(self, thread: deque[Request]) -> bool:
        """Submit the next request of a thread; return whether there was one that may be submitted now."""
        if not thread or self.leaving:
            return False
        use = thread[0].use
        if use.name is not None and (use.process_set, use.name) in self._busy:
            return False
        request = thread.popleft()
        self.requests.append(request)
        if use.name is not None:
            self._busy[use.process_set, use.name] = request
        self._unassigned.append(request)
        self._send_what_has_numbers()
        return True

    def leave(self) -> bool:
        if self.leaving:
            return False
        self.leaving = True
        self.up.append(("leave", None))
        return True

    def join(self) -> bool:
        """Join once all has been told to the sequencer, whatever is in flight; return whether that was now."""
        if not self.is_to_join or any(self.threads) or self._unassigned:
            return False
        self.is_to_join = False
        self.joining = True
        self.up.append(("join", None))
        return True

    def idle(self) -> bool:
        waits = self.is_to_join or self.joining
        return not waits and not any(self.threads) and all(request.ends for request in self.requests)

    def read(self, entry: tuple[Any, ...], in_batch: Callable[[int, list[Request], list[int]], None]) -> None:
        """Do what an entry of the log says."""
        self.log_position += 1
        match entry:
            case ("assign_name", number, scoped):
                assert self._names.get(scoped) is None, "a name has one number"
                self._names[scoped] = number
                self._send_what_has_numbers()
            case ("assign_signature", number, encoded):
                assert self._signatures.get(encoded) is None, "a signature has one number"
                self._signatures[encoded] = number
                self._send_what_has_numbers()
            case ("forget_name", number, scoped):
                if self._names.get(scoped) == number:
                    del self._names[scoped]
                    self._send_what_has_numbers()
            case ("forget_signature", number, encoded):
                if self._signatures.get(encoded) == number:
                    del self._signatures[encoded]
                    self._send_what_has_numbers()
            case ("forget_mark",):
                self.up.append(("forgotten", None))
            case ("execute", sequence, keys, payloads, process_set, absent):
                assert sequence == self.next_sequence
                self.next_sequence += 1
                if self.rank not in self.members(process_set) or self.rank in absent:
                    assert not any(key in self._in_flight for key in keys)
                    return
                batch = [self._in_flight.pop(key)[0] for key in keys]
                in_batch(self.rank, batch, payloads)
                for request in batch:
                    self._end(request, EXECUTED)
            case ("error", key, whom, code, text):
                assert text
                if whom not in (-1, self.rank):
                    return
                if key in self._in_flight:
                    self._end(self._in_flight.pop(key)[0], _ENDS_OF_CODES[code])
                else:
                    assert whom == -1  # not a member, absent, or gone
            case ("joined", rank):
                assert self.joining and not self._in_flight and not self._unassigned
                self.joining = False
            case ("left", rank):
                if rank == self.rank:
                    self.left = True
                    for request in [*(r for r, _ in self._in_flight.values()), *self._unassigned]:
                        self._end(request, LEFT)
                    self._in_flight.clear()
                    self._unassigned.clear()
            case _:
                raise AssertionError(f"the log has an entry of an unknown kind: {entry}")

    def _end(self, request: Request, how: str) -> None:
        request.ends.append(how)
        if request.use.name is not None:
            del self._busy[request.use.process_set, request.use.name]

    def _send_what_has_numbers(self) -> None:
        rest = []
        for request in self._unassigned:
            use = request.use
            if request.what.encoded not in self._signatures:
                self._signatures[request.what.encoded] = None
                self.up.append(("signature", request.what.encoded))
            if use.name is None:
                key: int | None = _native.unnamed_key(use.process_set, use.occurrence)
            else:
                scoped = _native.scoped_name(use.process_set, use.name)
                if scoped not in self._names:
                    self._names[scoped] = None
                    self.up.append(("name", scoped))
                key = self._names[scoped]
            signature = self._signatures.get(request.what.encoded)
            if key is None or signature is None:
                rest.append(request)
                continue
            assert key not in self._in_flight
            self._in_flight[key] = (request, signature)
            self.up.append(("submit", (key, signature, request)))
        self._unassigned = rest


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run is drawn from."""

    seed: int
    size: int
    tensors: int = 4
    uses: int = 3
    disagreements: float = 0.0  # part of the uses in which a rank differs
    early_leavers: int = 0
    threshold: int = 64
    capacity: int = 1 << 20  # of names and signatures
    sets: int = 0  # process sets beside the one of all ranks
    joins: bool = False  # ranks have unequally much to submit, and join


class Simulation:
    """A job of simulated ranks around one sequencer."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.random = random.Random(setup.seed)
        self.sequencer = _native.Sequencer(setup.size, setup.threshold, setup.capacity)
        self._sets = [list(range(setup.size))]
        self._sets += [
            sorted(self.random.sample(self._sets[0], self.random.randint(1, setup.size))) for _ in range(setup.sets)
        ]
        self.num_forgotten = 0
        self._uses_of = [self.random.randint(0, setup.uses) if setup.joins else setup.uses for _ in range(setup.size)]
        self.model = Model(self.members)
        self.log: list[tuple[Any, ...]] = []
        self.undecided: list[dict[str, Any]] = []
        self.batches: dict[int, list[Request]] = {}
        # Seldom many kinds in one run, so that batches come about.
        self._dtypes = self.random.sample(list(ELEMENT_BYTES), self.random.randint(1, len(ELEMENT_BYTES)))
        self._ops = self.random.choice([[AVERAGE], [SUM], [AVERAGE, SUM]])
        leavers = set(self.random.sample(range(setup.size), setup.early_leavers))
        plan = self._draw_plan()
        self.ranks = [
            Rank(rank, [self._thread(rank, thread) for thread in plan], rank in leavers, setup.joins)
            for rank in range(setup.size)
        ]
        self._add_sets()
        # Some ranks and some kinds of steps are much slower than others.
        self._steps = ["submit", "up", "log", "decide", "plan"]
        self._step_pace = [10 ** self.random.uniform(-1.5, 0) for _ in self._steps]
        self._rank_pace = [10 ** self.random.uniform(-1, 0) for _ in range(setup.size)]

    def members(self, process_set: int) -> list[int]:
        return self._sets[process_set]

    def _add_sets(self) -> None:
        """Make the sets known before anything else happens."""
        numbers: dict[bytes, int] = {}
        for number, ranks in enumerate(self._sets[1:], start=1):
            encoded = _native.encode_signature(Kind.ADD_PROCESS_SET, 0, 0, 0, 1.0, 1.0, [], ranks)
            self.sequencer.assign_signature(encoded)
            for entry in self.sequencer.take_log():
                if entry[0] == "assign_signature":
                    numbers[entry[2]] = entry[1]
                if entry[0] == "forget_mark":
                    for rank in range(self.setup.size):
                        self.sequencer.forgotten(rank)
            for rank in range(self.setup.size):
                # Far from the unnamed calls that the ranks count.
                self.sequencer.submit(rank, _native.unnamed_key(0, 10**6 + number), numbers[encoded])
            ((kind, sequence, _, payloads, _, _),) = self.sequencer.take_log()
            assert kind == "execute" and payloads == [number]
            for simulated in self.ranks:
                simulated.next_sequence = sequence + 1
        for simulated in self.ranks:
            simulated.members = self.members

    def _thread(self, rank: int, thread: list[tuple[Use, What]]) -> deque[Request]:
        # A rank that joins has the first uses of every tensor: cut otherwise, programs would wait for each other.
        return deque(
            self._part(rank, use, what)
            for use, what in thread
            if rank in self.members(use.process_set) and use.occurrence < self._uses_of[rank]
        )

    def _draw_plan(self) -> list[list[tuple[Use, What]]]:
        """What the members do together: for each thread the uses of its tensors."""
        plan = []
        for process_set in range(len(self._sets)):
            plan += [
                [(Use(process_set, name, k), self._draw_what()) for k in range(self.setup.uses)]
                for name in [*(f"t{t}" for t in range(self.setup.tensors)), None]
            ]
        return plan

    def _draw_what(self) -> What:
        draw = self.random
        kind = draw.choices([Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST, Kind.BARRIER], [6, 1, 1, 1])[0]
        if kind == Kind.BARRIER:
            return What(kind, AVERAGE, 0, ())
        shape = tuple(draw.randint(0, 5) for _ in range(draw.randint(1, 2)))
        if kind == Kind.ALLGATHER:
            shape = (-1, *shape[1:])
        op = draw.choice(self._ops) if kind == Kind.ALLREDUCE else AVERAGE
        return What(kind, op, draw.choice(self._dtypes), shape)

    def _part(self, rank: int, use: Use, what: What) -> Request:
        # Which uses are disputed is a matter of the use, who differs a matter of rank and use.
        disputed = random.Random(f"{self.setup.seed} {use}").random() < self.setup.disagreements
        if disputed and self.random.random() < 0.3:
            what = self._draw_what()
        return Request(use, what, self.random.randint(0, 9) if what.kind == Kind.ALLGATHER else 0)

    def run(self) -> None:
        """Let everything happen, in random order, until nothing can; then check what came out."""
        while self._any_step():
            pass
        self.check()

    def _any_step(self) -> bool:
        """Take a random step that is possible now; return whether there was one."""
        for step in self._in_random_order(self._steps, self._step_pace):
            if step == "decide":
                if self._decide():
                    return True
            elif step == "plan":
                if self._plan():
                    return True
            else:
                for rank in self._in_random_order(self.ranks, self._rank_pace):
                    if self._step_of(step, rank):
                        return True
        return False

    def _in_random_order(self, items: list[Any], weights: list[float]) -> Iterator[Any]:
        yield self.random.choices(items, weights)[0]
        # Not every order, which would cost most of the time; the first try is free anyway.
        start = self.random.randrange(len(items))
        yield from items[start:]
        yield from items[:start]

    def _step_of(self, step: str, rank: Rank) -> bool:
        if step == "submit":
            start = self.random.randrange(len(rank.threads))
            if any(rank.submit(thread) for thread in rank.threads[start:] + rank.threads[:start]):
                return True
            if rank.join():
                return True
            may_leave = rank.idle() or (rank.leaves_early and self.random.random() < 0.2)
            return may_leave and rank.leave()
        if step == "up":
            if not rank.up:
                return False
            self._handle(rank.rank, *rank.up.popleft())
            return True
        if rank.left or rank.log_position == len(self.log):
            return False
        rank.read(self.log[rank.log_position], self._in_batch)
        return True

    def _handle(self, rank: int, record: str, content: Any) -> None:
        if record == "name":
            self.sequencer.intern_name(rank, content)
        elif record == "signature":
            self.sequencer.intern_signature(rank, content)
        elif record == "submit":
            key, signature, request = content
            self.sequencer.submit(rank, key, signature, [request.rows] if request.what.kind == Kind.ALLGATHER else [])
            self.model.submitted(rank, request)
        elif record == "forgotten":
            self.sequencer.forgotten(rank)
        elif record == "join":
            self.sequencer.join(rank)
            self.model.joined(rank)
        else:
            self.sequencer.leave(rank)
            self.model.left(rank)
        self.undecided += self.sequencer.take_rare_events()
        self._take_log()

    def _decide(self) -> bool:
        if not self.undecided:
            return False
        event = self.undecided.pop(self.random.randrange(len(self.undecided)))
        if event["kind"] == "new_name":
            self.sequencer.assign_name(event["bytes"])
        elif event["kind"] == "new_signature":
            self.sequencer.assign_signature(event["bytes"])
        else:
            assert len({encoded for _, encoded in event["signatures"]}) > 1
            self.sequencer.refuse(event["key"], MISMATCH_CODE, "they differ")
        self._take_log()
        return True

    def _plan(self) -> bool:
        self.sequencer.plan()
        return self._take_log()

    def _take_log(self) -> bool:
        entries = self.sequencer.take_log()
        self.log += entries
        self.num_forgotten += sum(entry[0] in ("forget_name", "forget_signature") for entry in entries)
        return bool(entries)

    def _in_batch(self, rank: int, batch: list[Request], rows: list[int]) -> None:
        """Check a batch that a rank executes, and that the others execute the same."""
        first = batch[0]
        if len(batch) > 1:
            assert len({request.use.process_set for request in batch}) == 1
            assert first.what.fusion_class is not None
            assert {request.what.fusion_class for request in batch} == {first.what.fusion_class}
            assert sum(request.what.num_bytes for request in batch) <= self.setup.threshold
        assert rows == (self.model.rows[first.use] if first.what.kind == Kind.ALLGATHER else [])
        sequence = self.ranks[rank].next_sequence - 1
        uses = [request.use for request in self.batches.setdefault(sequence, batch)]
        assert [request.use for request in batch] == uses

    def check(self) -> None:
        """Check that all has come to its end, and to the right one."""
        assert self.sequencer.all_left()
        assert not self.sequencer.incomplete() and not self.undecided
        assert all(rank.left for rank in self.ranks)
        for rank in self.ranks:
            for request in rank.requests:
                self.model.check(rank.rank, request)
            # Only who leaves early leaves anything undone.
            assert rank.leaves_early or not any(rank.threads)
        gone = set()
        for entry in self.log:
            if entry[0] == "left":
                gone.add(entry[1])
            assert entry[0] != "error" or entry[2] not in gone, "nobody is left to hear of it"
        executed = Counter(request.use for batch in self.batches.values() for request in batch)
        assert all(times == 1 for times in executed.values())
        assert executed.keys() == {use for (_, use), end in self.model.expected.items() if end == EXECUTED}
        if self.setup.early_leavers == 0:
            assert all(end != LEFT for end in self.model.expected.values())


def main() -> None:
    """Run many simulations and print the setup of the first that goes wrong."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.runs):
        draw = random.Random(seed)
        size = draw.choice([1, 2, 3, 4, 8, 16, 64])
        setup = Setup(
            seed=seed,
            size=size,
            tensors=draw.randint(0, 6),
            uses=draw.randint(1, 4),
            disagreements=draw.choice([0.0, 0.3]),
            early_leavers=draw.choice([0, 0, draw.randint(0, size)]),
            threshold=draw.choice([0, 16, 64, 1000]),
            capacity=draw.choice([1 << 20, 1, 4, 10]),
            sets=draw.choice([0, 0, 3]),
        )
        if setup.early_leavers == 0:
            setup = dataclasses.replace(setup, joins=draw.random() < 0.5)
        try:
            Simulation(setup).run()
        except Exception:
            print(f"fails: {setup}")
            raise
    print(f"{arguments.runs} runs as the model says")


if __name__ == "__main__":
    main()
