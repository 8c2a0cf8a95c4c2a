"""Children of ranks are no ranks, use before init is told, and several threads may call at once."""

import gc
import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import sirtaki
from sirtaki.errors import NotInitializedError

for function in (sirtaki.rank, sirtaki.size, sirtaki.barrier, lambda: sirtaki.allreduce(np.ones(1))):
    try:
        function()
    except NotInitializedError as error:
        assert "sirtaki.init()" in str(error)
    else:
        raise AssertionError("it worked without init")

sirtaki.init()
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()


def in_forked_child(queue):
    answers = []
    for call in (sirtaki.rank, lambda: sirtaki.allreduce(np.ones(1)), sirtaki.init):
        try:
            call()
            answers.append("worked")
        except NotInitializedError as error:
            answers.append(str(error))
    queue.put(answers)


if size > 1:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=in_forked_child, args=(queue,))
    child.start()
    for answer in queue.get():
        assert "forked" in answer, answer
    child.join()
    assert child.exitcode == 0

    # A child that holds a handle of its parent and lets go of everything. It ends as multiprocessing's children do,
    # without exit functions: MPI_Finalize in a forked child is MPI's to forbid.
    handle = sirtaki.allreduce_async(np.ones(1), name="from before the fork")
    pid = os.fork()
    if pid == 0:
        try:
            handle.result()
            os._exit(8)
        except NotInitializedError:
            del handle
            sirtaki.job._job = None
            gc.collect()
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert handle.result()[0] == 1

    # One string, so that the lines of two ranks cannot mix.
    program = "import sirtaki; sirtaki.init(); print(f'{sirtaki.rank()} {sirtaki.size()}\\n', end='')"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.split() == ["0", "1"], output
    assert "becomes a job of one rank" in output.stderr

    # A job that a rank launches is a job of its own.
    if rank == 0:
        command = [sys.executable, "-m", "sirtaki.launcher", "--no-label", "-np", "2", sys.executable, "-c", program]
        output = subprocess.run(command, capture_output=True, text=True, check=True)
        assert sorted(output.stdout.split()) == ["0", "1", "2", "2"], output

failures = []


def many(thread):
    try:
        for i in range(100):
            x = sirtaki.allreduce(np.full(10, float(thread)), name=f"thread {thread} call {i}", op=sirtaki.Sum)
            assert (x == thread * size).all()
    except BaseException as error:
        failures.append(error)


threads = [threading.Thread(target=many, args=(t,)) for t in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not failures, failures

# Records past the capacity of the rings to rank 0, which does not read while it computes.
if rank != 0:
    handles = [sirtaki.allreduce_async(np.ones(1), name="n" * 1000 + str(i)) for i in range(1500)]
sirtaki.barrier("all submitted but rank 0")
if rank == 0:
    handles = [sirtaki.allreduce_async(np.ones(1), name="n" * 1000 + str(i)) for i in range(1500)]
for handle in handles:
    assert handle.result()[0] == 1
assert os.environ.get("SIRTAKI_RANK_PID") == (str(os.getpid()) if size > 1 else None)
