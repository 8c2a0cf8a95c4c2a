"""Every NumPy collective against the oracle, over types, shapes and ways to call. Arguments: ranks, hosts."""

import sys

import ml_dtypes
import numpy as np
import oracle
import sirtaki

SHAPES = [(), (1,), (3, 4), (0,), (2, 0, 3), (1023,), (9000,), (300_001,), (700_001,)]
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32, np.int64]

ranks, hosts = int(sys.argv[1]), int(sys.argv[2])
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
assert size == ranks
host_of = [r * hosts // ranks for r in range(ranks)]
local = [r for r in range(ranks) if host_of[r] == host_of[rank]]
assert sirtaki.local_rank() == local.index(rank)
assert sirtaki.local_size() == len(local)
assert sirtaki.cross_size() == sum(host_of.count(h) > sirtaki.local_rank() for h in range(hosts))
assert 0 <= sirtaki.cross_rank() < sirtaki.cross_size()


def check(result, expected, what):
    assert oracle.same_bits(result, expected), f"{what} on rank {rank}: got {result!r}, expected {expected!r}"


for dtype in DTYPES:
    for shape in SHAPES:
        values = [oracle.sample(shape, dtype, r) for r in range(size)]
        before = values[rank].copy()
        for op in (sirtaki.Sum, sirtaki.Average):
            expected = oracle.allreduce(values, host_of, op == sirtaki.Average)
            what = f"allreduce {op.name} {np.dtype(dtype).name} {shape}"
            check(sirtaki.allreduce(values[rank], op=op), expected, what)
            check(values[rank], before, f"input of {what}")
            in_place = values[rank].copy()
            assert sirtaki.allreduce_(in_place, op=op) is in_place
            check(in_place, expected, f"in place {what}")
        for root in {0, size - 1}:
            what = f"broadcast from {root} {np.dtype(dtype).name} {shape}"
            check(sirtaki.broadcast(values[rank], root), values[root], what)
        if shape:
            parts = [np.repeat(v, r + 1, axis=0) for r, v in enumerate(values)]
            parts[-1] = parts[-1][:0]  # a rank without rows
            what = f"allgather {np.dtype(dtype).name} {shape}"
            check(sirtaki.allgather(parts[rank]), np.concatenate(parts), what)

# The other types move as well; type_table.py reduces them.
for dtype in (np.bool_, np.uint8, np.int16, np.uint32, np.uint64, np.complex64, np.complex128):
    value = np.arange(7).astype(dtype)
    check(sirtaki.broadcast(value * (rank == 0), 0), value, f"broadcast {np.dtype(dtype).name}")
    expected = np.concatenate([value] * size)
    check(sirtaki.allgather(value), expected, f"allgather {np.dtype(dtype).name}")

# Layouts that are not plain rows of this machine's bytes.
values = [oracle.sample((40, 30), np.float64, r, salt=1) for r in range(size)]
expected = oracle.allreduce(values, host_of, average=False)
check(sirtaki.allreduce(values[rank].astype(">f8"), op=sirtaki.Sum), expected, "big-endian")
check(sirtaki.allreduce(np.asfortranarray(values[rank]), op=sirtaki.Sum), expected, "Fortran order")
check(sirtaki.allreduce(np.repeat(values[rank], 2, axis=1)[:, ::2], op=sirtaki.Sum), expected, "strided")
read_only = values[rank].copy()
read_only.flags.writeable = False
check(sirtaki.allreduce(read_only, op=sirtaki.Sum), expected, "read-only")
check(sirtaki.allreduce(rank + 0.5, op=sirtaki.Sum), np.array(sum(r + 0.5 for r in range(size))), "a plain number")

# Scale factors.
values = [oracle.sample((1000,), np.float32, r, salt=2) for r in range(size)]
expected = oracle.allreduce([v * np.float32(0.3) for v in values], host_of, average=True) * np.float32(1.7)
check(sirtaki.allreduce(values[rank], prescale_factor=0.3, postscale_factor=1.7), expected, "scaled")
for wrong in (dict(prescale_factor=2.0), dict(postscale_factor=0.5)):
    try:
        sirtaki.allreduce(np.ones(3, np.int32), **wrong)
    except TypeError as error:
        assert "int32" in str(error)
    else:
        raise AssertionError("integers were scaled")

# Many at once, submitted in an order of each rank's own; then groups of mixed types.
count = 200
order = np.random.default_rng(rank).permutation(count)
handles = {}
for i in order:
    value = oracle.sample((i * 7 % 50, 3), DTYPES[i % 6], rank, salt=10 + i)
    handles[i] = sirtaki.allreduce_async(value, name=f"tensor {i}", op=sirtaki.Sum)
for i in range(count):
    values = [oracle.sample((i * 7 % 50, 3), DTYPES[i % 6], r, salt=10 + i) for r in range(size)]
    check(sirtaki.synchronize(handles[i]), oracle.allreduce(values, host_of, False), f"tensor {i}")
    assert sirtaki.poll(handles[i])
for name in (None, "group"):
    groups = [[oracle.sample((5, i), DTYPES[i % 6], r, salt=300 + i) for i in range(13)] for r in range(size)]
    for i, result in enumerate(sirtaki.grouped_allreduce(groups[rank], name=name)):
        expected = oracle.allreduce([g[i] for g in groups], host_of, average=True)
        check(result, expected, f"group member {i}")

# A handle that nobody keeps must not take its memory with it while the engine still writes there.
for i in range(20):
    sirtaki.allreduce_async(np.ones(100_000), name=f"dropped {i}")

assert sirtaki.broadcast_object({"rank": rank, "big": "x" * 100_000}, size - 1)["rank"] == size - 1
assert sirtaki.broadcast_object(None, 0, name="nothing") is None
assert sirtaki.allgather_object(("r", rank, b"y" * rank)) == [("r", r, b"y" * r) for r in range(size)]
for _ in range(50):
    sirtaki.barrier()
sirtaki.shutdown()
assert not sirtaki.is_initialized()
sirtaki.init()
check(sirtaki.allreduce(np.ones(3), op=sirtaki.Sum), np.full(3, float(size)), "after a second init")
