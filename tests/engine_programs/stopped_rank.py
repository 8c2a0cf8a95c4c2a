"""Ranks are stopped with SIGSTOP; all say what they see. Arguments: how, which rank, when.

how: stop               the rank stays stopped
     stop-and-continue  the first of the others that has raised continues it
     stop-for           the rank is stopped for 1.5 s
     stop-all           all ranks are stopped for 3 s and go on one after the other; then again in the other order
when: computing (the others wait for a tensor that it has not submitted), reducing (in the midst of an allreduce)
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import sirtaki

how, victim, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
pids = sirtaki.allgather_object(os.getpid())
big = np.ones(10_000_000, np.float32)


def stop():
    if how in ("stop", "stop-and-continue"):
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    # From outside: somebody must be left who continues them.
    steps = []
    for who, seconds in [([pids[victim]], 1.5)] if how == "stop-for" else [(pids, 3), (pids[::-1], 3)]:
        steps += [f"kill -STOP {pid}" for pid in who] + [f"sleep {seconds}"]
        steps += [f"kill -CONT {pid}; sleep 0.3" for pid in who]
    subprocess.run(["sh", "-c", "; ".join(steps)], start_new_session=True, check=True)


try:
    sirtaki.allreduce_(big)
    if rank == victim and when == "computing":
        stop()
    if rank == victim and when == "reducing":
        threading.Thread(target=stop).start()
    # Long enough for a late accusation to come, and for the other thread to have run.
    end = time.monotonic() + 2 if how in ("stop-for", "stop-all") else float("inf")
    while not sirtaki.broadcast(np.array(time.monotonic() > end), root_rank=0):
        sirtaki.allreduce_(big)
    print("went on", flush=True)
except sirtaki.errors.UnresponsiveError as error:
    print("UnresponsiveError", error.ranks, error, flush=True)
    if how == "stop-and-continue" and rank == (0 if victim != 0 else 1):
        os.kill(pids[victim], signal.SIGCONT)
    raise
