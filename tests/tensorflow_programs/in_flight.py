"""All reductions of a function are in flight at once, and their results lie in the inputs' buffers.

Nothing is timed. Rank 0 runs one function with all reductions while the others make the same calls one by
one, each waiting for its result, first to last and last to first: were the function's ops chained, in any
order, one of the two would never end.
"""

import common  # noqa: F401
import numpy as np
import sirtaki.tensorflow as hvd
import tensorflow as tf

RANK, SIZE = hvd.rank(), hvd.size()
COUNT = 24


@tf.function(autograph=False)
def reduce_many(x):
    # Each input is the only use of a fresh buffer, as a gradient is.
    return [hvd.allreduce(x + float(i + 1), op=hvd.Sum, name=f"many.{i}") for i in range(COUNT)]


@tf.function(autograph=False)
def reduce_unnamed(x):
    return [hvd.allreduce(x + float(i + 1), op=hvd.Sum) for i in range(COUNT)]


x = tf.ones([1000])
for order in (range(COUNT), reversed(range(COUNT))):
    if RANK == 0:
        results = dict(enumerate(reduce_many(x)))
    else:
        results = {i: hvd.allreduce(x + float(i + 1), op=hvd.Sum, name=f"many.{i}") for i in order}
    for i, result in results.items():
        np.testing.assert_array_equal(result, np.full(1000, SIZE * (i + 2.0)))

for function in (reduce_many, reduce_unnamed):
    function(x)
    hvd.diagnostics.reset()
    function(x)
    counters = hvd.diagnostics.counters()
    assert counters.allreduced == counters.requests == COUNT, counters
    assert counters.in_place == COUNT, counters
    assert counters.in_flight == 0, counters

    graph = function.get_concrete_function(x).graph
    reductions = {op for op in graph.get_operations() if op.type == "SirtakiAllreduce"}
    assert len(reductions) == COUNT
    for op in reductions:
        assert not reductions & set(op.control_inputs), f"{op.name} waits for {op.control_inputs}"
hvd.shutdown()
