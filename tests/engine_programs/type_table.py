"""Every cell of the table of types and operations, against NumPy; the cells without meaning are refused."""

import sys

import ml_dtypes
import numpy as np
import oracle
import sirtaki
from sirtaki.dtypes import CELLS

ranks, hosts = int(sys.argv[1]), int(sys.argv[2])
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
host_of = [r * hosts // ranks for r in range(ranks)]
checked = refused = 0


def inputs(dtype, shape, salt):
    """A rank's random values: of the whole range of an integer, of either truth."""
    per_rank = []
    for r in range(size):
        draw = np.random.default_rng([r, salt])
        if dtype.kind == "b":
            per_rank.append(draw.random(shape) < 0.5)
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            per_rank.append(draw.integers(info.min, info.max, shape, dtype, endpoint=True))
        elif dtype.kind == "c":
            per_rank.append((draw.normal(size=shape) + 1j * draw.normal(size=shape)).astype(dtype))
        else:
            per_rank.append(np.asarray(draw.normal(size=shape)).astype(dtype))
    return [np.asarray(v) for v in per_rank]


def check(got, expected, what):
    assert oracle.same_values(got, expected), f"{what} on rank {rank}: {got!r} instead of {expected!r}"


for name, cells in CELLS.items():
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    for op in sirtaki.ReduceOp:
        what = f"{op.name} of {name}"
        if cells[op.name].startswith("no: "):
            for call in (sirtaki.allreduce, sirtaki.allreduce_, sirtaki.allreduce_async):
                try:
                    call(np.ones(3, dtype), op=op)
                except TypeError as error:
                    assert op.name in str(error) and name in str(error)
                else:
                    raise AssertionError(f"{what} was accepted")
            refused += 1
            continue
        if op == sirtaki.Adasum:
            continue  # sets_and_joins.py
        for salt, shape in enumerate(((), (1,), (0, 3), (13,), (37, 5), (70_001,))):
            values = inputs(dtype, shape, salt)
            expected = oracle.reduce_cell(values, host_of, op.name)
            check(sirtaki.allreduce(values[rank], op=op), expected, f"{what} {shape}")
            in_place = values[rank].copy()
            check(sirtaki.allreduce_(in_place, op=op), expected, f"{what} {shape} in place")
        values = [oracle.extremes(dtype, r) for r in range(size)]
        expected = oracle.reduce_cell(values, host_of, op.name)
        check(sirtaki.allreduce(values[rank], op=op), expected, f"{what}, extremes")
        rows = len(expected) // size * size
        each = rows // size
        got = sirtaki.reducescatter(values[rank][:rows], op)
        check(got, expected[rank * each : (rank + 1) * each], f"{what}, scattered")
        checked += 1
    # Factors: powers of two, which are exact, so the order of multiplying does not show.
    op = sirtaki.Max if dtype.kind == "b" else sirtaki.Sum
    if dtype.kind in "iub":
        for factor in ("prescale_factor", "postscale_factor"):
            try:
                sirtaki.allreduce(np.ones(3, dtype), op=op, **{factor: 2.0})
            except TypeError as error:
                assert name in str(error)
            else:
                raise AssertionError(f"{name} was scaled")
    else:
        values = inputs(dtype, (50,), 99)
        doubled = [v * dtype.type(2) for v in values]
        expected = oracle.reduce_cell(doubled, host_of, "Sum") * dtype.type(0.25)
        check(
            sirtaki.allreduce(values[rank], op=op, prescale_factor=2, postscale_factor=0.25), expected, f"scaled {name}"
        )

assert (checked, refused) == (15 * 5 - 2 - 4, 15 * 6 - (15 * 5 - 2 - 4) - 4), (checked, refused)
assert (sirtaki.allreduce(np.ones(3), op=sirtaki.Sum) == size).all()
print("all cells")
