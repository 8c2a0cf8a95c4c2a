"""A signal interrupts a rank that waits for a tensor, wherever in the engine it meets it; the engine works on."""

import os
import signal

import numpy as np
import sirtaki

sirtaki.init()
rank = sirtaki.rank()
pids = sirtaki.allgather_object(os.getpid())

for i in range(20):
    handle = None
    if rank == 0:
        try:
            handle = sirtaki.allreduce_async(np.ones(1), name=f"withheld {i}")
            sirtaki.barrier(f"go {i}")
            handle.wait()
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the wait ended by itself, although rank 1 has not submitted")
    else:
        sirtaki.barrier(f"go {i}")
        os.kill(pids[0], signal.SIGINT)
    sirtaki.barrier(f"interrupted {i}")
    if rank != 0:
        handle = sirtaki.allreduce_async(np.ones(1), name=f"withheld {i}")
    assert handle.result()[0] == 1
