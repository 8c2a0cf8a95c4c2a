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


def go(until):
    """Blocks of 1,000: 970 unnamed allreduces, and 30 calls of other kinds with ever new names and sizes."""
    global done
    while done < until:
        for _ in range(970):
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
        # Lengths of all sorts, so that signatures are ever new as well; two collectives each.
        text = "x" * (done // 1000 * 37 % 5000)
        assert sirtaki.broadcast_object(text, 0) == text
        assert sirtaki.allgather_object((rank, text)) == [(r, text) for r in range(size)]
        done += 1000


# By then the caches of names are full (SIRTAKI_CACHE_CAPACITY of the test), and every new name evicts one.
go(max(count // 10, 20_000))
before = resources.held()
go(done + count)
# One leaked object of 64 bytes in each block of 30 rarer calls is 2 KiB per 1,000 collectives; the bound is 1 KiB per
# 1,000, and 2 MiB for what the allocator keeps of objects of different sizes.
resources.compare(f"{count} collectives", before, resources.held(), 2048 + count // 1000)
