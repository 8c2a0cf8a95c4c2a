"""Alltoall, reducescatter, grouped and in-place forms, process sets, join and Adasum, against NumPy."""

import sys
import threading

import numpy as np
import oracle
import sirtaki

ranks, hosts = int(sys.argv[1]), int(sys.argv[2])
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
assert size == ranks
host_of = [r * hosts // ranks for r in range(ranks)]


def check(got, expected, what):
    assert oracle.same_bits(got, expected), f"{what} on rank {rank}: {got!r} instead of {expected!r}"


def refused(kind, call, *words):
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__}")


# Alltoall: every pair of ranks has a number of rows of its own, some none.
for salt, dtype in enumerate((np.float32, np.bool_, np.complex128, np.int8)):
    for scale in (1, 1000):
        splits = [[(3 * s + 5 * r + salt) % 4 * scale for r in range(size)] for s in range(size)]
        values = [oracle.sample((sum(row), 3), np.float64, s, salt).astype(dtype) for s, row in enumerate(splits)]
        parts = [np.split(v, np.cumsum(row)[:-1]) for v, row in zip(values, splits, strict=True)]
        rows, given = sirtaki.alltoall(values[rank], splits[rank])
        check(rows, np.concatenate([parts[s][rank] for s in range(size)]), f"alltoall {np.dtype(dtype).name}")
        assert given.tolist() == [splits[s][rank] for s in range(size)]
rows, given = sirtaki.alltoall(np.arange(2 * size) + 100 * rank)
check(rows, np.concatenate([np.arange(2 * rank, 2 * rank + 2) + 100 * s for s in range(size)]), "even alltoall")
refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.alltoall(np.ones(3), [1] * size + [0]), "splits")
refused(
    sirtaki.errors.InvalidArgumentError,
    lambda: sirtaki.alltoall(np.ones(3), [4] + [0] * (size - 2) + [-1] * (size > 1)),
)
refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.alltoall(np.float32(1)), "scalar")
if size > 1:
    refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.alltoall(np.ones(size + 1)), "evenly")

# Reducescatter has an allreduce's bits, and every row once.
for count in (0, 1, size - 1, size, 3 * size + 2, 70_001):
    for op in (sirtaki.Sum, sirtaki.Average):
        values = [oracle.sample((count, 2), np.float32, r, salt=count) for r in range(size)]
        whole = oracle.allreduce(values, host_of, op == sirtaki.Average)
        each, longer = divmod(count, size)
        begin = rank * each + min(rank, longer)
        share = whole[begin : begin + each + (rank < longer)]
        check(sirtaki.reducescatter(values[rank], op), share, f"reducescatter of {count} rows")
groups = [
    [oracle.sample((size * k, 2), (np.float32, np.int64)[k % 2], r, salt=k) for k in range(5)] for r in range(size)
]
for k, got in enumerate(sirtaki.grouped_reducescatter(groups[rank], sirtaki.Sum, name="shares")):
    whole = oracle.allreduce([g[k] for g in groups], host_of, False)
    check(got, whole[rank * k : (rank + 1) * k], f"grouped reducescatter {k}")
refused(ValueError, lambda: sirtaki.reducescatter(np.ones(size), sirtaki.Adasum), "Adasum")
refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.reducescatter(np.float32(1)), "scalar")

# Groups and forms in place.
parts = [[np.full((r + k, 2), 10 * r + k, (np.int16, np.float64)[k % 2]) for k in range(4)] for r in range(size)]
for k, got in enumerate(sirtaki.grouped_allgather(parts[rank])):
    check(got, np.concatenate([p[k] for p in parts]), f"grouped allgather {k}")
x = np.full(5, rank)
assert sirtaki.broadcast_(x, size - 1) is x and (x == size - 1).all()
assert sirtaki.broadcast_async_(x, 0, name="b").result() is x
xs = [np.full(3, rank + 1.0), np.full(2, rank, np.int32)]
assert all(a is b for a, b in zip(sirtaki.grouped_allreduce_(xs, op=sirtaki.Sum), xs, strict=True))
assert (xs[0] == size * (size + 1) / 2).all() and (xs[1] == size * (size - 1) // 2).all()
sirtaki.barrier_async(name="bar").result()


# Adasum is a tree of pairs.
def adasum(a, b):
    dot, aa, bb = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    return (1 - dot / (2 * aa) if aa else 1.0) * a + (1 - dot / (2 * bb) if bb else 1.0) * b


for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-5), (np.float16, 5e-3)):
    for shape in ((), (1,), (1001, 7)):
        values = [oracle.sample(shape, dtype, r, salt=3) for r in range(size)]
        if size > 2:
            values[1] = np.zeros_like(values[1])
        tree = [v.astype(np.float64) for v in values]
        while len(tree) > 1:
            tree = [adasum(*tree[i : i + 2]) if i + 1 < len(tree) else tree[i] for i in range(0, len(tree), 2)]
        got = sirtaki.allreduce(values[rank], op=sirtaki.Adasum)
        assert got.dtype == dtype and np.allclose(got, tree[0], tolerance, tolerance), (got, tree[0])
        same = sirtaki.allgather_object(got.tobytes())
        assert len(set(same)) == 1
equal = np.arange(1.0, 6.0)
assert np.allclose(sirtaki.allreduce(equal, op=sirtaki.Adasum), equal)
refused(TypeError, lambda: sirtaki.allreduce(np.ones(3, np.int32), op=sirtaki.Adasum), "Adasum")

# Process sets that overlap, used by several threads at once, each rank in an order of its own.
pairs = [sorted({i, (i + 1) % size}) for i in range(size)]
sets = [sirtaki.add_process_set(pair) for pair in pairs] + [sirtaki.add_process_set(range(size))]
mine = [s for s in sets if s.included()]
assert all(s.rank() == s.ranks.index(rank) and s.size() == len(s.ranks) for s in mine)
failures = []


def use(process_set, salt):
    try:
        for k in range(30):
            values = [oracle.sample((k * 50,), np.float32, r, salt=salt + k) for r in process_set.ranks]
            own = values[process_set.rank()]
            hosts_of_set = [host_of[r] for r in process_set.ranks]
            got = sirtaki.allreduce(own, op=sirtaki.Sum, process_set=process_set)
            check(got, oracle.allreduce(values, hosts_of_set, False), f"{process_set} {k}")
            got = sirtaki.allreduce(own, name="same name in all sets", process_set=process_set)
            check(got, oracle.allreduce(values, hosts_of_set, True), f"{process_set} {k}")
            assert sirtaki.allgather_object(rank, process_set=process_set) == process_set.ranks
            root = process_set.ranks[k % process_set.size()]
            assert sirtaki.broadcast_object(rank, root, process_set=process_set) == root
            check(
                sirtaki.alltoall(np.full(process_set.size(), rank), process_set=process_set)[0],
                np.array(process_set.ranks),
                "alltoall in a set",
            )
    except Exception as error:
        failures.append(error)
        raise


threads = [threading.Thread(target=use, args=(s, 1000 * sets.index(s))) for s in mine]
for thread in threads[rank % len(threads) :] + threads[: rank % len(threads)]:
    thread.start()
for thread in threads:
    thread.join()
assert not failures

# The same from one thread: requests of all sets in flight together, handed in and waited for in orders of each
# rank's own.
draw = np.random.default_rng(rank)
for k in range(20):
    handles = {}
    for i in draw.permutation(len(mine)):
        handles[i] = sirtaki.allreduce_async(np.full(3, rank), name=f"ring {k}", op=sirtaki.Sum, process_set=mine[i])
    for i in draw.permutation(len(mine)):
        assert (handles[i].result() == sum(mine[i].ranks)).all()
# And with calls that wait, in the order of the sets beginning with another one on each rank: a ring of ranks that each
# wait for the next. What all need is in flight before anybody waits, so nobody waits for ever.
for k in range(5):
    begun = [sirtaki.barrier_async(name=f"around {k}", process_set=s) for s in mine]
    for handle in begun[rank % len(mine) :] + begun[: rank % len(mine)]:
        handle.result()
outside = [s for s in sets if not s.included()]
for s in outside:
    refused(sirtaki.errors.InvalidArgumentError, lambda s=s: sirtaki.barrier(process_set=s), f"rank {rank}", "not in")
for s in mine[:1]:
    if s.size() < size:
        absent = next(r for r in range(size) if r not in s.ranks)
        refused(
            sirtaki.errors.InvalidArgumentError,
            lambda s=s, absent=absent: sirtaki.broadcast(np.ones(1), absent, process_set=s),
            "root",
        )
refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.add_process_set([size]), f"{size - 1}")
refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.add_process_set([0, 0]))
refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.add_process_set(sets[0]), "already")
refused(
    sirtaki.errors.InvalidArgumentError, lambda: sirtaki.barrier(process_set=sirtaki.ProcessSet([0])), "add_process_set"
)
refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.remove_process_set(sirtaki.global_process_set))
if size > 1:
    refused(sirtaki.errors.MismatchError, lambda: sirtaki.add_process_set([rank]), "process set")
    # What is in flight in a set ends with it.
    late = sirtaki.add_process_set(range(size))
    handle = sirtaki.allreduce_async(np.ones(2), name="late", process_set=late) if rank == 0 else None
    assert sirtaki.remove_process_set(late)
    if handle is not None:
        refused(sirtaki.errors.InvalidArgumentError, handle.result, "'late'", "removed")
    refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.barrier(process_set=late))
for s in sets:
    assert sirtaki.remove_process_set(s) and not sirtaki.remove_process_set(s)

# Join, several times over: rank r has r batches more than rank 0, and the last of each is asynchronous.
for _ in range(3):
    for k in range(rank + 1):
        taking_part = range(k, size)
        values = [oracle.sample((700,), np.float32, r, salt=50 + k) for r in taking_part]
        handle = sirtaki.allreduce_async(values[rank - k], name=f"batch {k}", op=sirtaki.Sum)
        if k < rank:
            check(handle.result(), oracle.allreduce(values, [host_of[r] for r in taking_part], False), f"batch {k}")
            got = sirtaki.allreduce(np.ones(2))
            sirtaki.barrier()
            assert sirtaki.allgather(np.array([rank])).tolist()[-1] == size - 1
            assert sirtaki.broadcast_object(rank, size - 1) == size - 1
    last = sirtaki.join()
    assert last == size - 1 or size == 1
    handle.result()
    assert sirtaki.allgather_object(rank) == list(range(size)), "unnamed calls are counted alike again"
if size > 1 and rank == 0:
    sirtaki.join()
elif size > 1:
    # Rank 0 has joined, or will: it takes part in nothing before.
    refused(sirtaki.errors.RankJoinedError, lambda: sirtaki.broadcast(np.ones(2), 0), "rank 0", "join")
    refused(sirtaki.errors.RankJoinedError, lambda: sirtaki.reducescatter(np.ones(size)), "rank 0", "join")
    refused(sirtaki.errors.RankJoinedError, lambda: sirtaki.alltoall(np.ones(size)), "rank 0", "join")
    assert (sirtaki.allreduce(np.ones(2), op=sirtaki.Sum) == size - 1).all()
    assert (sirtaki.allreduce(np.full(2, float(size)), op=sirtaki.Average) == size - 1).all()
    sirtaki.join()
else:
    sirtaki.join()
handle = sirtaki.join_async() if size == 1 or rank != 0 else None
if handle is not None and size > 1:
    refused(sirtaki.errors.InvalidArgumentError, lambda: sirtaki.barrier(), "join")
if size > 1 and rank == 0:
    handle = sirtaki.join_async()
handle.result()

# Ever new names and shapes: those unused for longest are forgotten, and come back.
for k in range(300):
    name = f"n{k % 150}" if k % 3 else "often"
    assert (sirtaki.allreduce(np.ones(k % 100 + 1), name=name, op=sirtaki.Sum) == size).all()
print("all well")
