"""Ranks that disagree: the same exception on all, naming everything; afterwards the engine works."""

import numpy as np
import sirtaki

sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
odd = rank == size - 1
f32 = np.float32

CASES = {
    "shape": (lambda n: sirtaki.allreduce(np.ones(4 if odd else 3), name=n), ["shape", "(3,)", "(4,)"]),
    "dimensions": (lambda n: sirtaki.allreduce(np.ones((3, 1) if odd else 3), name=n), ["shape", "(3, 1)"]),
    "type": (lambda n: sirtaki.allreduce(np.ones(3, f32 if odd else float), name=n), ["type", "float32", "float64"]),
    "op": (lambda n: sirtaki.allreduce(np.ones(3), name=n, op=sirtaki.ReduceOp(int(odd))), ["Average", "Sum"]),
    "scale": (lambda n: sirtaki.allreduce(np.ones(3), name=n, prescale_factor=1.0 + odd), ["prescale"]),
    "root": (lambda n: sirtaki.broadcast(np.ones(3), 1 if odd else 0, name=n), ["root rank", "root_rank=1"]),
    "gather": (lambda n: sirtaki.allgather(np.ones((2, 3 + odd)), name=n), ["shape", "(any, 3)", "(any, 4)"]),
    "kind": (
        lambda n: sirtaki.allgather(np.ones(3), name=n) if odd else sirtaki.allreduce(np.ones(3), name=n),
        ["operation", "allgather", "allreduce"],
    ),
    "group": (lambda n: sirtaki.grouped_allreduce([np.ones(3)] * (1 + odd), name=n), ["shape"]),
}

for case, (call, words) in CASES.items():
    for name in (f"tensor of {case}", None):
        try:
            call(name)
        except sirtaki.errors.MismatchError as error:
            text = str(error)
        else:
            raise AssertionError(f"{case}: no error on rank {rank}")
        texts = sirtaki.allgather_object(text)
        assert len(set(texts)) == 1, texts
        assert (name or "unnamed call") in text, text
        for word in words:
            assert word in text, f"{word!r} is not in: {text}"
        for r in range(size):
            assert str(r) in text, f"rank {r} is not in: {text}"
        again = sirtaki.allreduce(np.ones(3), name=name, op=sirtaki.Sum)
        assert (again == size).all()

# A new signature under a known name is fine when all ranks change it.
for shape in ((2,), (3,), (2,), (5, 5)):
    assert (sirtaki.allreduce(np.ones(shape), name="changing", op=sirtaki.Sum) == size).all()

# A name in flight: the submitter is told, and the first request is not disturbed. Rank 0 submits again while
# the others have not submitted at all, for they wait for its word.
first = None
if rank == 0:
    first = sirtaki.allreduce_async(np.ones(3), name="twice", op=sirtaki.Sum)
    second = sirtaki.allreduce_async(np.ones(3), name="twice", op=sirtaki.Sum)
    try:
        second.result()
    except sirtaki.errors.DuplicateNameError as error:
        assert "'twice'" in str(error) and "rank 0" in str(error)
    else:
        raise AssertionError("the second request was accepted")
    assert not first.poll()
    try:
        first.wait(timeout=0)
    except TimeoutError as error:
        assert "still in flight" in str(error)
    else:
        raise AssertionError("it cannot be done: the others have not submitted")
sirtaki.barrier()
if first is None:
    first = sirtaki.allreduce_async(np.ones(3), name="twice", op=sirtaki.Sum)
assert (first.result() == size).all()

for wrong, expected in (
    (lambda: sirtaki.allgather(np.float32(1)), sirtaki.errors.InvalidArgumentError),
    (lambda: sirtaki.broadcast(np.ones(1), size), sirtaki.errors.InvalidArgumentError),
    (lambda: sirtaki.broadcast(np.ones(1), -1), sirtaki.errors.InvalidArgumentError),
    (lambda: sirtaki.allreduce(np.array(["text"])), TypeError),
    (lambda: sirtaki.allreduce(np.ones(1), op=17), ValueError),
    (lambda: sirtaki.allreduce(np.ones(1), average=True, op=sirtaki.Sum), ValueError),
    (lambda: sirtaki.grouped_allreduce([]), ValueError),
    (lambda: sirtaki.allreduce_(np.ones((4, 4)).T[1:]), ValueError),
):
    try:
        wrong()
    except expected:
        pass
    else:
        raise AssertionError(f"no {expected.__name__}")
assert (sirtaki.allreduce(np.ones(3), op=sirtaki.Sum) == size).all()
