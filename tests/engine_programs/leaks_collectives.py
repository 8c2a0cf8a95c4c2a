"""Many small collectives leave nothing. Argument: number of collectives."""

import sys

import numpy as np
import resources
import sirtaki

count = int(sys.argv[1])
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
one = np.ones(4, np.float32)
done = 0


def go(blocks, unnamed):
    """Unnamed allreduces in blocks with 30 calls of other kinds, with ever new names and often with new sizes."""
    global done
    for _ in range(blocks):
        for _ in range(unnamed):
            sirtaki.allreduce(one, op=sirtaki.Sum)
        for i in range(10):
            assert sirtaki.allreduce(one, name=f"new name {done + i}", op=sirtaki.Sum)[0] == size
        for i in range(5):
            assert sirtaki.allgather(np.zeros((rank + i, 2)), name=f"rows {done + i}").shape[0] == sum(
                r + i for r in range(size)
            )
        for i in range(5):
            assert sirtaki.broadcast(np.full(3, rank), i % size)[0] == i % size
        handles = [sirtaki.allreduce_async(one, name=f"async {i}", op=sirtaki.Sum) for i in range(6)]
        assert all(handle.result()[0] == size for handle in handles)
        # More lengths than the caches hold signatures; two collectives each. NumPy and malloc keep some blocks of each
        # length below 1 KiB for the next array.
        text = "x" * (1024 + done // 1000 % 300 * 17)
        assert sirtaki.broadcast_object(text, 0) == text
        assert sirtaki.allgather_object((rank, text)) == [(r, text) for r in range(size)]
        done += 1000


# By then every length has been, and the caches of names and signatures are full (SIRTAKI_CACHE_CAPACITY of the test),
# so that every new one evicts another.
go(600, 10)
before = resources.held()
go(count // 1000, 970)
# A leaked object of 64 bytes in each of the 30 rarer calls of a block is 2 KiB per 1,000 collectives; the bound is a
# twentieth of that, and what tables and caches of the last sizes hold more or less.
resources.compare(
    f"{count} collectives",
    before,
    resources.held(),
    heap=64 * 1024 + count // 10,
    blocks=1000 + count // 1000,
    resident=4096,
)
