"""Rank 1 ends without a word, or leaves; the others hear of it inside a tf.function, as one kind of error.

python lost_rank.py killed|left
"""

import os
import signal
import sys

import tensorflow as tf
from common import assert_raises, hvd

how = sys.argv[1]


@tf.function(autograph=False)
def reduce_some(x):
    return [hvd.allreduce(x * float(i + 1)) for i in range(4)]


reduce_some(tf.ones([10]))
if hvd.rank() == 1:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.shutdown()
else:
    error = assert_raises(tf.errors.AbortedError, lambda: reduce_some(tf.ones([10])), "rank 1")
    print(f"rank {hvd.rank()} heard: {error}", flush=True)
