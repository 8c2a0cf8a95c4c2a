"""A random workload until the job fails. Arguments: seed of the workload, the victim's rank, a number of calls.

After so many calls the victim prints its process id. The others report, as one line of JSON, the error that ends them.
Every collective is called, in the whole job and in overlapping process sets, and from a second thread as well.
"""

import json
import os
import random
import sys
import threading
import time

import numpy as np
import sirtaki

seed, victim, calls = map(int, sys.argv[1:])
rng = random.Random(seed)  # the same on all ranks
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
own = random.Random(f"{seed} {rank}")  # how long this rank computes
total = size * (size - 1) // 2


def elements(draw=rng):
    """From one element to sizes that need many chunks."""
    return int(10 ** draw.uniform(0, 6.5))


def check(right, what):
    if not right:
        print(f"rank {rank} got a wrong result of {what}", flush=True)
        os._exit(1)


def allreduce():
    n = elements()
    check((sirtaki.allreduce(np.full(n, rank, np.float64), op=sirtaki.Sum) == total).all(), "allreduce")


def in_place():
    x = np.full(elements(), rank + 1, np.float32)
    check((sirtaki.allreduce_(x, op=sirtaki.Sum) == total + size).all(), "allreduce_")


def several_at_once():
    arrays = [np.full(elements(), rank, np.int64) for _ in range(rng.randint(1, 8))]
    names = [f"tensor {i}" for i in range(len(arrays))]
    order = own.sample(range(len(arrays)), len(arrays))
    handles = [sirtaki.allreduce_async(arrays[i], name=names[i], op=sirtaki.Sum) for i in order]
    check(all((handle.result() == total).all() for handle in handles), "allreduce_async")


def grouped():
    shapes = [elements() for _ in range(rng.randint(1, 4))]
    types = [rng.choice((np.float32, np.int32)) for _ in shapes]
    arrays = [np.full(n, rank, dtype) for n, dtype in zip(shapes, types, strict=True)]
    check(all((x == total).all() for x in sirtaki.grouped_allreduce(arrays, op=sirtaki.Sum)), "grouped_allreduce")


def extreme():
    check((sirtaki.allreduce(np.full(elements(), rank, np.float16), op=sirtaki.Max) == size - 1).all(), "Max")


def adasum():
    # Equal on all ranks, and what ranks agree on counts once.
    x = np.linspace(1, 2, elements())
    check(np.allclose(sirtaki.allreduce(x, op=sirtaki.Adasum), x), "Adasum")


def allgather():
    n = elements() // size
    gathered = sirtaki.allgather(np.full(n + rank, rank, np.int32))
    check((gathered == np.repeat(np.arange(size), [n + r for r in range(size)])).all(), "allgather")


def grouped_allgather():
    n = elements() // size
    first, second = sirtaki.grouped_allgather([np.full(n, rank), np.full((1, 3), rank, np.int8)])
    right = (first == np.repeat(np.arange(size), n)).all() and (second[:, 0] == np.arange(size)).all()
    check(right, "grouped_allgather")


def broadcast():
    root = rng.randrange(size)
    check((sirtaki.broadcast(np.full(elements(), rank), root) == root).all(), "broadcast")


def alltoall():
    n = elements() // size
    # To rank r go n + r rows that tell from whom to whom.
    rows = np.repeat(rank * size + np.arange(size), [n + r for r in range(size)])
    received, given = sirtaki.alltoall(rows, splits=[n + r for r in range(size)])
    right = (given == n + rank).all() and (received == np.repeat(np.arange(size) * size + rank, n + rank)).all()
    check(right, "alltoall")


def reducescatter():
    n = elements()
    share = sirtaki.reducescatter(np.arange(n, dtype=np.float64), op=sirtaki.Sum)
    begin = rank * (n // size) + min(rank, n % size)
    right = np.arange(begin, begin + n // size + (rank < n % size)) * size
    check((share == right).all(), "reducescatter")


def in_a_set():
    chosen, n = rng.choice(sets), elements()
    if chosen.included():
        result = sirtaki.allreduce(np.full(n, rank, np.int32), op=sirtaki.Sum, process_set=chosen)
        check((result == sum(chosen.ranks)).all(), "allreduce in a set")


def compute():
    # Ranks fall out of step, and some are asleep when the signal comes.
    time.sleep(own.uniform(0, 0.01))


WORK = (
    *(allreduce, in_place, several_at_once, grouped, extreme, adasum, allgather, grouped_allgather, broadcast),
    *(alltoall, reducescatter, in_a_set, in_a_set, sirtaki.barrier, compute),
)
errors_of_thread = []


def work_beside():
    """What the second thread does until the job fails."""
    draw = random.Random(f"{seed} thread")
    try:
        for i in range(10**9):
            chosen, n = draw.choice((*sets, sirtaki.global_process_set)), elements(draw) // 10
            if chosen.included():
                name = f"beside {i % 50}"
                result = sirtaki.allreduce(np.full(n, rank), name=name, op=sirtaki.Min, process_set=chosen)
                check((result == chosen.ranks[0]).all(), "Min in the thread")
    except sirtaki.errors.SirtakiError as error:
        errors_of_thread.append(error)


number = 0
try:
    sets = [sirtaki.add_process_set(rng.sample(range(size), rng.randint(1, size))) for _ in range(3)]
    thread = threading.Thread(target=work_beside)
    if rng.random() < 0.5:
        thread.start()
    while True:
        if rank == victim and number == calls:
            print(f"pid {os.getpid()} has reached the moment", flush=True)
        rng.choice(WORK)()
        number += 1
except sirtaki.errors.SirtakiError as error:
    at = time.monotonic()
    try:
        sirtaki.barrier()
        again = False
    except type(error) as second:
        again = str(second) == str(error)
    if thread.ident is not None:
        thread.join()
        again = again and [(type(e), str(e)) for e in errors_of_thread] == [(type(error), str(error))]
    report = {
        "rank": rank,
        "error": type(error).__name__,
        "ranks": list(getattr(error, "ranks", ())),
        "text": str(error),
    }
    print("survivor", json.dumps({**report, "again": again, "at": at}), flush=True)
    raise
