"""One rank fails; the others say what they see. Arguments: how it fails, which rank, when.

how: kill (SIGKILL), raise (uncaught exception), os-exit, exit (leaves in order)
when: computing (the others wait for a tensor that it never submits), reducing (in the midst of an allreduce)
"""

import os
import signal
import sys
import threading

import numpy as np
import sirtaki

how, victim, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sirtaki.init()
rank = sirtaki.rank()
big = np.ones(30_000_000, np.float32)


def fail():
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "os-exit":
        os._exit(3)
    if how == "raise":
        raise ValueError("no more of this")
    sys.exit(0)


try:
    sirtaki.allreduce_(big)
    if rank == victim and when == "computing":
        fail()
    if rank == victim:
        # The other thread runs while this one is inside the engine.
        threading.Thread(target=fail).start()
    while True:
        sirtaki.allreduce_(big)
except sirtaki.errors.RanksFailedError as error:
    print("RanksFailedError", error.ranks, error, flush=True)
    try:
        sirtaki.barrier()
    except sirtaki.errors.RanksFailedError as again:
        assert str(again) == str(error)
        print("and again", flush=True)
except sirtaki.errors.RankLeftError as error:
    print("RankLeftError", error, flush=True)
