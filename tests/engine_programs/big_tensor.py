"""Tensors of more than 2 GiB and of more than 2**31 elements."""

import numpy as np
import sirtaki

ELEMENTS = 2**31 + 11
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
# Both ends, both sides of what a signed number of 32 bits can count, and some between.
PLACES = np.array([0, 1, 2**30 + 7, 2**31 - 1, 2**31, 2**31 + 1, ELEMENTS - 1])


def values_at(places, giver):
    return (places * 7 + giver * 3) % 100 + 1


# Pages that nobody touches cost nothing, so memory is needed for what is written only.
x = np.ones(ELEMENTS, np.uint8)
x[PLACES] = values_at(PLACES, rank)
assert sirtaki.allreduce_(x, op=sirtaki.Sum) is x
assert (x[PLACES] == sum(values_at(PLACES, r) for r in range(size))).all(), x[PLACES]
step = 1 << 26
for begin in range(0, ELEMENTS, step):
    part = x[begin : begin + step]
    inside = PLACES[(PLACES >= begin) & (PLACES < begin + step)] - begin
    assert np.count_nonzero(part != size) <= len(inside), f"wrong between {begin} and {begin + step}"

if rank == 0:
    x[:] = 5
    x[PLACES] = values_at(PLACES, 9)
sirtaki.broadcast_(x, root_rank=0)
assert (x[PLACES] == values_at(PLACES, 9)).all(), x[PLACES]
assert x.sum(dtype=np.int64) == 5 * (ELEMENTS - len(PLACES)) + values_at(PLACES, 9).sum()

# Over 2**31 rows from all ranks together, and more from one than from the others.
del x
rows = 2**30 + 5 + rank
mine = np.full(rows, rank + 1, np.int8)
mine[-1] = 100 + rank
gathered = sirtaki.allgather(mine)
del mine
assert len(gathered) == sum(2**30 + 5 + r for r in range(size)) > 2**31
end = 0
for r in range(size):
    part = gathered[end : end + 2**30 + 5 + r]
    assert part[0] == r + 1 and part[-2] == r + 1 and part[-1] == 100 + r, (r, part)
    assert np.count_nonzero(part != r + 1) == 1
    end += len(part)
