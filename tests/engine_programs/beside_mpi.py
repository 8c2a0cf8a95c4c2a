"""The application uses mpi4py from another thread while the engine works."""

import threading

import numpy as np
import sirtaki
from mpi4py import MPI

sirtaki.init()
world = MPI.COMM_WORLD
failures = []


def application():
    try:
        for i in range(200):
            total = world.allreduce(i)
            assert total == i * world.size
    except BaseException as error:
        failures.append(error)


thread = threading.Thread(target=application)
thread.start()
for i in range(200):
    result = sirtaki.allreduce(np.full(1000 + i, sirtaki.rank(), np.float32), op=sirtaki.Sum)
    assert (result == sum(range(sirtaki.size()))).all()
thread.join()
assert not failures, failures
