"""The control plane as a state machine: any interleaving of ranks gives one consistent log."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sirtaki import _native
from sirtaki.errors import MISMATCH_CODE
from sirtaki.kinds import Kind
from sirtaki.negotiation import Signature, disagreement_text

FLOAT32, FLOAT64 = 11, 12


def signature(shape=(4,), dtype=FLOAT32, kind=Kind.ALLREDUCE, op=1):
    return _native.encode_signature(kind, op, dtype, 0, 1.0, 1.0, [list(shape)])


class Job:
    """Ranks that speak to one sequencer; decides rare events the way the engine does."""

    def __init__(self, size, threshold=1 << 20):
        self.sequencer = _native.Sequencer(size, threshold)
        self.log = []
        self.names = {}
        self.signatures = {}

    def submit(self, rank, name, encoded, payloads=()):
        scoped = _native.scoped_name(0, name)
        self.sequencer.intern_name(rank, scoped)
        self.sequencer.intern_signature(rank, encoded)
        self.settle()
        self.sequencer.submit(rank, self.names[scoped], self.signatures[encoded], payloads)
        self.settle()

    def settle(self):
        for event in self.sequencer.take_rare_events():
            if event["kind"] == "new_name":
                self.sequencer.assign_name(event["bytes"])
            elif event["kind"] == "new_signature":
                self.sequencer.assign_signature(event["bytes"])
            else:
                sent = [(r, Signature.decode(s)) for r, s in event["signatures"]]
                text = disagreement_text(self.sequencer.describe(event["key"]), sent)
                self.sequencer.refuse(event["key"], MISMATCH_CODE, text)
        self.sequencer.plan()
        for entry in self.sequencer.take_log():
            if entry[0] == "assign_name":
                self.names[entry[2]] = entry[1]
            elif entry[0] == "assign_signature":
                self.signatures[entry[2]] = entry[1]
            else:
                self.log.append(entry)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(1, 64), tensors=st.integers(1, 6))
def test_every_tensor_is_executed_once_whatever_the_order(data, size, tensors):
    job = Job(size)
    todo = data.draw(st.permutations([(rank, t) for rank in range(size) for t in range(tensors)]))
    submitted = dict.fromkeys(range(tensors), 0)
    for rank, t in todo:
        executed = [key for entry in job.log for key in entry[2]]
        assert executed == [job.names[_native.scoped_name(0, f"t{u}")] for u in complete_order(job, submitted, size)]
        job.submit(rank, f"t{t}", signature((t + 1,)))
        submitted[t] += 1
    assert [entry[0] for entry in job.log] == ["execute"] * tensors
    assert [entry[1] for entry in job.log] == list(range(1, tensors + 1))


def complete_order(job, submitted, size):
    """Tensors that all ranks have submitted, in the order of the log."""
    complete = {job.names[_native.scoped_name(0, f"t{t}")]: t for t, n in submitted.items() if n == size}
    logged = [key for entry in job.log for key in entry[2]]
    assert sorted(logged) == sorted(complete)
    return [complete[key] for key in logged]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(2, 64))
def test_disagreement_is_an_error_for_all_and_the_name_is_free_again(data, size):
    job = Job(size)
    odd = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    for rank in data.draw(st.permutations(range(size))):
        job.submit(rank, "w", signature(dtype=FLOAT64 if rank in odd else FLOAT32))
    ((kind, _, whom, code, text),) = job.log
    assert (kind, whom, code) == ("error", -1, MISMATCH_CODE)
    assert "'w'" in text and "float32" in text and "float64" in text and "type" in text
    job.log.clear()
    for rank in data.draw(st.permutations(range(size))):
        job.submit(rank, "w", signature())
    assert [entry[0] for entry in job.log] == ["execute"]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(2, 16))
def test_who_waits_for_a_rank_that_left_is_told(data, size):
    job = Job(size)
    leaver = data.draw(st.integers(0, size - 1))
    others = [r for r in range(size) if r != leaver]
    before = data.draw(st.sets(st.sampled_from(others)))
    for rank in before:
        job.submit(rank, "w", signature())
    job.sequencer.leave(leaver)
    job.settle()
    for rank in set(others) - before:
        job.submit(rank, "w", signature())
    told = [entry[2] for entry in job.log if entry[0] == "error"]
    assert sorted(told) == others
    assert all(f"rank {leaver} has shut down" in entry[4] for entry in job.log if entry[0] == "error")
    assert ("left", leaver) in job.log
    assert not job.sequencer.all_left()
    for rank in others:
        job.sequencer.leave(rank)
    assert job.sequencer.all_left()


def test_what_is_complete_runs_before_a_rank_leaves():
    job = Job(2)
    for rank in (0, 1):
        scoped = _native.scoped_name(0, "w")
        job.sequencer.intern_name(rank, scoped)
        job.sequencer.intern_signature(rank, signature())
        job.settle()
        job.sequencer.submit(rank, job.names[scoped], job.signatures[signature()])
    job.sequencer.leave(1)
    job.settle()
    assert [entry[0] for entry in job.log] == ["execute", "left"]


def test_gather_carries_the_rows_of_every_rank():
    job = Job(3)
    for rank, rows in ((2, 7), (0, 0), (1, 5)):
        job.submit(rank, "g", signature((-1, 4), kind=Kind.ALLGATHER), [rows])
    ((_, _, _, rows, _, _),) = job.log
    assert rows == [0, 5, 7]


@pytest.mark.parametrize(
    "record",
    [
        lambda s: s.submit(5, 1, 1),
        lambda s: s.submit(0, 1, 1),
        lambda s: s.submit(0, _native.unnamed_key(0, 0), 9),
        lambda s: s.submit(0, _native.unnamed_key(3, 0), 1),
    ],
)
def test_records_that_break_the_protocol_are_refused(record):
    sequencer = _native.Sequencer(2, 0)
    sequencer.assign_signature(signature())
    with pytest.raises(RuntimeError):
        record(sequencer)


@settings(max_examples=200, deadline=None)
@given(
    ready=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100), st.sampled_from(["", "a", "b"])), max_size=40),
    threshold=st.integers(0, 200),
)
def test_fusion_plan(ready, threshold):
    batches = _native.plan_fusion(ready, threshold)
    assert sorted(i for batch in batches for i in batch) == list(range(len(ready)))
    assert [batch[0] for batch in batches] == sorted(batch[0] for batch in batches)
    for batch in batches:
        assert batch == sorted(batch)
        if len(batch) > 1:
            assert len({(ready[i][0], ready[i][2]) for i in batch}) == 1
            assert ready[batch[0]][2] != ""
            assert sum(ready[i][1] for i in batch) <= threshold
    # A batch is closed only by a tensor of its kind that no longer fits.
    kinds = {}
    for batch in batches:
        set_and_class = (ready[batch[0]][0], ready[batch[0]][2])
        if set_and_class in kinds and set_and_class[1]:
            assert sum(ready[i][1] for i in kinds[set_and_class]) + ready[batch[0]][1] > threshold
        kinds[set_and_class] = batch


def test_what_waits_names_who_is_missing():
    job = Job(3)
    job.submit(2, "a", signature())
    job.submit(0, "b", signature())
    job.submit(0, "a", signature())
    serials, names, submitted, missing = zip(*job.sequencer.incomplete(), strict=True)
    assert names == ("a", "b")
    assert submitted == ([0, 2], [0])
    assert missing == ([1], [1, 2])
    job.submit(1, "a", signature())
    job.submit(1, "a", signature())
    later = job.sequencer.incomplete()
    assert [entry[1] for entry in later] == ["b", "a"]
    assert later[1][0] not in serials
