"""The application uses mpi4py while the engine works: from several threads, with communicators of its own."""

import threading

import numpy as np
import sirtaki
from mpi4py import MPI

sirtaki.init()
world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
failures = []


def guarded(function, *args):
    def run():
        try:
            function(*args)
        except BaseException as error:
            failures.append(error)

    return threading.Thread(target=run)


def collectives(comm, rounds):
    members = comm.allgather(rank)
    for i in range(rounds):
        assert comm.allreduce(rank + i) == sum(members) + i * len(members)


def messages(comm, rounds):
    """Blocking calls: each rank sends to the next and receives from the one before."""
    right, left = (rank + 1) % size, (rank - 1) % size
    data = np.full(5000, rank)
    got = np.empty_like(data)
    for i in range(rounds):
        comm.Sendrecv(data, right, i, got, left, i)
        assert (got == left).all()
        if rank == 0:
            comm.send(i, right, tag=rounds)
            assert comm.recv(source=left, tag=rounds) == i
        else:
            comm.send(comm.recv(source=left, tag=rounds), right, tag=rounds)


def engine(thread, rounds):
    for i in range(rounds):
        value = np.full(1000 + i, rank, np.float32)
        result = sirtaki.allreduce(value, name=f"thread {thread} call {i}", op=sirtaki.Sum)
        assert (result == sum(range(size))).all()


# Two halves, in reverse order of ranks; a duplicate each for the threads, as MPI asks for.
half = world.Split(rank % 2, key=-rank)
duplicates = [world.Dup(), world.Dup()]
# mpi4py duplicates a communicator at its first collective of Python objects; duplications of two communicators
# by two threads at once hang in MPICH 5.0, with or without Sirtaki. So the first call comes before the threads.
for communicator in (world, half):
    communicator.allreduce(0)
threads = [
    guarded(collectives, world, 200),
    guarded(collectives, half, 200),
    guarded(messages, duplicates[0], 50),
    guarded(messages, duplicates[1], 50),
    guarded(engine, 1, 100),
    guarded(engine, 2, 100),
]
for thread in threads:
    thread.start()
engine(0, 100)
for thread in threads:
    thread.join()
assert not failures, failures

# A set of the application's communicators; those of the other half are described by their ranks.
members = sorted(half.allgather(rank))
ours = sirtaki.ProcessSet(half)
other = sirtaki.ProcessSet([r for r in range(size) if r not in members])
sets = [ours, other] if rank % 2 == 0 else [other, ours]
for process_set in sets:
    sirtaki.add_process_set(process_set)
assert ours.ranks == members and ours.included() and not other.included()
busy = guarded(collectives, half, 100)
busy.start()
for _ in range(100):
    total = sirtaki.allreduce(np.full(100, rank, np.int64), op=sirtaki.Sum, process_set=ours)
    assert (total == sum(members)).all()
busy.join()
assert not failures, failures
for communicator in (half, *duplicates):
    communicator.Free()
assert sirtaki.allreduce(np.ones(3), op=sirtaki.Sum, process_set=ours)[0] == len(members)
