"""Jobs of some of the launched ranks. Argument: which case."""

import os
import sys

import numpy as np
import sirtaki
from sirtaki.errors import InvalidArgumentError, MismatchError

case = sys.argv[1]
world_rank, world_size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])


def check_job(members):
    """A collective of each kind gives what the members alone give."""
    assert (sirtaki.rank(), sirtaki.size()) == (members.index(world_rank), len(members)), members
    total = sirtaki.allreduce(np.full(1000, world_rank + 1.0), op=sirtaki.Sum)
    assert (total == sum(members) + len(members)).all(), total
    gathered = sirtaki.allgather(np.array([world_rank]))
    assert gathered.tolist() == members, gathered
    assert sirtaki.broadcast_object(world_rank, len(members) - 1) == members[-1]
    sirtaki.barrier()


def refused(comm, words, process_sets=None):
    try:
        sirtaki.init(comm, process_sets)
    except InvalidArgumentError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"init({comm!r}) worked")


if case == "halves":
    half = world_size // 2
    members = list(range(half)) if world_rank < half else list(range(half, world_size))
    for _ in range(3):
        sirtaki.init(members)
        check_job(members)
        sirtaki.init()
        sirtaki.init(members)
        if len(members) > 1:
            refused(members[::-1], "other processes")
            refused([world_rank], "other processes")
        sirtaki.shutdown()
    # Other jobs over other groups, in turn.
    sirtaki.init()
    check_job(list(range(world_size)))
    sirtaki.shutdown()
    members = list(range(world_rank % 2, world_size, 2))
    sirtaki.init(members[::-1])
    check_job(members[::-1])
elif case == "communicators":
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    sirtaki.init(world)
    sirtaki.init(list(range(world_size)))
    check_job(list(range(world_size)))
    sirtaki.shutdown()
    split = world.Split(world_rank % 2, key=-world_rank)
    members = list(range(world_rank % 2, world_size, 2))[::-1]
    sirtaki.init(split, process_sets=[sirtaki.ProcessSet(split), [0]])
    check_job(members)
    assert sirtaki.ProcessSet(split) is not None
    mine = sirtaki.add_process_set(split)
    assert mine.ranks == list(range(len(members)))
    if len(members) < world_size:
        try:
            sirtaki.add_process_set(world)
        except InvalidArgumentError as error:
            assert "not ranks of the job" in str(error) or "one rank" in str(error)
        else:
            raise AssertionError("a set of processes outside the job was accepted")
    sirtaki.shutdown()
    # The job has left the application's communicator as it was.
    assert split.allreduce(1) == len(members)
    split.Free()
    sirtaki.init(MPI.COMM_SELF)
    check_job([world_rank])
    sirtaki.init(MPI.COMM_SELF)
    sirtaki.init([world_rank])
    refused(world, "other processes")
    assert sirtaki.add_process_set(MPI.COMM_SELF).ranks == [0]
elif case == "errors":
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    refused([], "at least one")
    refused([0, 0], "once")
    refused([world_rank, world_size], f"from 0 to {world_size - 1}")
    refused([-1, world_rank], "from 0 to")
    refused([r for r in range(world_size) if r != world_rank], f"world rank {world_rank} is not in")
    refused(MPI.COMM_NULL, "COMM_NULL")
    refused(3, "list of world ranks")
    refused(["a"], "list of world ranks")
    color = int(world_rank == 0)
    half = world.Split(color)
    between = half.Create_intercomm(0, world, 1 if color else 0)
    refused(between, "intracommunicator")
    refused(None, "process set", [["a"]])
    refused(None, "sequence", 3)
    assert not sirtaki.is_initialized()
    sirtaki.init()
    check_job(list(range(world_size)))
    refused(None, "exists already", [[0]])
elif case == "process sets":
    first = sirtaki.ProcessSet([0])
    sirtaki.init(process_sets=[first, range(world_size)])
    assert first.process_set_id is not None
    if first.included():
        assert sirtaki.allreduce(np.ones(2), process_set=first).tolist() == [1, 1]
    sirtaki.shutdown()
    try:
        sirtaki.init(process_sets=[[world_rank % 2]])
    except MismatchError:
        print("told")
    sirtaki.shutdown()
    refused(None, "rank", [[world_size]])
elif case == "bystander":
    # The last rank takes part in no job.
    from mpi4py import MPI

    if world_rank < world_size - 1:
        sirtaki.init(range(world_size - 1))
        check_job(list(range(world_size - 1)))
    else:
        assert MPI.COMM_WORLD.Get_rank() == world_rank
elif case == "contradictions":
    # An order of its own on each rank, or sets that overlap.
    ranks = list(range(world_size))
    sirtaki.init(ranks[world_rank:] + ranks[:world_rank] if sys.argv[2] == "order" else ranks[world_rank:])
    print("joined", flush=True)
elif case == "many rounds":
    from mpi4py import MPI

    split = MPI.COMM_WORLD.Split(0, key=-world_rank)
    for _ in range(int(sys.argv[2])):
        for comm in (None, split):
            sirtaki.init(comm)
            sirtaki.barrier()
            sirtaki.shutdown()
else:
    raise AssertionError(case)
