"""Rank 1 takes no part any more; the others hear of it inside a tf.function.

python lost_rank.py killed|left|stopped|stalled
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
    if how == "stalled":
        # It hears of it too, and must not leave before.
        assert_raises(tf.errors.DeadlineExceededError, lambda: hvd.allreduce(tf.ones([10]), name="other"), "'other'")
        sys.exit(5)
    if how != "left":
        os.kill(os.getpid(), signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
    hvd.shutdown()
else:
    kind = tf.errors.DeadlineExceededError if how == "stalled" else tf.errors.AbortedError
    error = assert_raises(kind, lambda: reduce_some(tf.ones([10])), "rank 1")
    print(f"rank {hvd.rank()} heard: {error}", flush=True)
