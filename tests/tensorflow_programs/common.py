"""What every rank program here begins with: few threads, a quiet TensorFlow, a job."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import hashlib

import numpy as np
import sirtaki.tensorflow as hvd
import tensorflow as tf

# Several ranks share two cores in the tests. One thread computes; the others let ops be in flight.
tf.config.threading.set_intra_op_parallelism_threads(int(os.environ.get("SIRTAKI_TEST_THREADS", "1")))
tf.config.threading.set_inter_op_parallelism_threads(2)
hvd.init()


def both_ways(function):
    """The function as it is, and as a `tf.function`."""
    return ("eager", function), ("graph", tf.function(function, autograph=False))


def assert_raises(kind, function, *words):
    """Calls `function` and returns the error, which must be of the type and name all the words."""
    try:
        function()
    except kind as error:
        text = str(error)
        for word in words:
            assert word in text, f"{word!r} is not in the message: {text}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def digest(variables):
    """A hash of the values' bytes."""
    sha = hashlib.sha256()
    for variable in variables:
        sha.update(np.ascontiguousarray(tf.convert_to_tensor(variable).numpy()).tobytes())
    return sha.hexdigest()


def assert_same_on_all_ranks(value, what):
    """`value` must be equal on every rank."""
    by_rank = hvd.allgather_object(value)
    assert all(other == by_rank[0] for other in by_rank), f"{what} differs between ranks: {by_rank}"
