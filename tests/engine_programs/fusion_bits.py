"""Reduces 60 tensors and prints a hash of the results' bits, the same on every rank, and the number of batches.

Tensors are submitted in another order on each rank, so what travels with what differs from run to run.
"""

import hashlib

import numpy as np
import oracle
import sirtaki

TENSORS = 60

sirtaki.init()
rank = sirtaki.rank()
handles = {}
for i in np.random.default_rng().permutation(TENSORS):
    value = oracle.sample((1 + 977 * i,), [np.float32, np.float16][i % 2], rank, salt=i)
    handles[i] = sirtaki.allreduce_async(value, name=f"t{i}", op=sirtaki.ReduceOp(int(i % 3 == 0)))
digest = hashlib.sha256(b"".join(handles[i].result().tobytes() for i in range(TENSORS))).hexdigest()
metrics = sirtaki.metrics()
assert metrics["collectives"]["allreduce"]["tensors"] == TENSORS
batches = metrics["batches"]
digests = sirtaki.allgather_object(digest)
assert len(set(digests)) == 1, digests
if rank == 0:
    print("digest", digest)
    print("batches", batches)
