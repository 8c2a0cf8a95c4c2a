"""A random workload until the job fails. Arguments: seed of the workload, the victim's rank, a number of calls.

After so many calls the victim prints its process id. The others report, as one line of JSON, the error that ends them.
"""

import json
import os
import random
import sys
import time

import numpy as np
import sirtaki

seed, victim, calls = map(int, sys.argv[1:])
rng = random.Random(seed)  # the same on all ranks
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
own = random.Random(f"{seed} {rank}")  # how long this rank computes


def elements():
    """From one element to sizes that need many chunks."""
    return int(10 ** rng.uniform(0, 6.5))


def check(right, what):
    if not right:
        print(f"rank {rank} got a wrong result of {what}", flush=True)
        os._exit(1)


def one_call(number):
    kind = rng.choice(("allreduce", "in place", "async", "allgather", "broadcast", "barrier", "compute"))
    if kind == "allreduce":
        n = elements()
        check((sirtaki.allreduce(np.full(n, rank, np.float64), op=sirtaki.Sum) == total).all(), kind)
    elif kind == "in place":
        x = np.full(elements(), rank + 1, np.float32)
        check((sirtaki.allreduce_(x, op=sirtaki.Sum) == total + size).all(), kind)
    elif kind == "async":
        arrays = [np.full(elements(), rank, np.int64) for _ in range(rng.randint(1, 8))]
        names = [f"tensor {i}" for i in range(len(arrays))]
        order = own.sample(range(len(arrays)), len(arrays))
        handles = [sirtaki.allreduce_async(arrays[i], name=names[i], op=sirtaki.Sum) for i in order]
        check(all((handle.result() == total).all() for handle in handles), kind)
    elif kind == "allgather":
        n = elements() // size
        gathered = sirtaki.allgather(np.full(n + rank, rank, np.int32))
        check((gathered == np.repeat(np.arange(size), [n + r for r in range(size)])).all(), kind)
    elif kind == "broadcast":
        root = rng.randrange(size)
        check((sirtaki.broadcast(np.full(elements(), rank), root) == root).all(), kind)
    elif kind == "barrier":
        sirtaki.barrier()
    else:
        # Ranks fall out of step, and some are asleep when the signal comes.
        time.sleep(own.uniform(0, 0.01))


total = size * (size - 1) // 2
number = 0
try:
    while True:
        if rank == victim and number == calls:
            print(f"pid {os.getpid()} has reached the moment", flush=True)
        one_call(number)
        number += 1
except sirtaki.errors.SirtakiError as error:
    at = time.monotonic()
    try:
        sirtaki.barrier()
        again = False
    except type(error) as second:
        again = str(second) == str(error)
    report = {
        "rank": rank,
        "error": type(error).__name__,
        "ranks": list(getattr(error, "ranks", ())),
        "text": str(error),
    }
    print("survivor", json.dumps({**report, "again": again, "at": at}), flush=True)
    raise
