"""Collectives in functions that XLA compiles: results, gradients, order, errors, and training with Keras."""

import itertools

import common
import keras
import numpy as np
import sirtaki.tensorflow as hvd
import tensorflow as tf
from common import assert_raises, assert_same_on_all_ranks, digest
from sirtaki.tensorflow.arguments import TYPES

RANK, SIZE = hvd.rank(), hvd.size()
compiled = tf.function(jit_compile=True, autograph=False)
even = hvd.add_process_set(range(0, SIZE, 2))


def value(dtype, shape=(5, 2), seed=0):
    numbers = np.random.default_rng((seed, RANK)).integers(0, 4, size=shape)
    return tf.constant(numbers.astype(dtype.as_numpy_dtype))


def check_every_operation_and_type():
    """The same as without XLA, bit for bit."""
    for dtype in TYPES:
        x, y = value(dtype), value(dtype, (4,), 1)
        calls = {
            "allreduce": lambda x=x: hvd.allreduce(x, op=hvd.Max if dtype == tf.bool else hvd.Sum),  # noqa: B023
            "grouped": lambda x=x, y=y: hvd.grouped_allreduce([x, y], op=hvd.Max if dtype == tf.bool else hvd.Sum),  # noqa: B023
            "broadcast": lambda x=x: hvd.broadcast(x, SIZE - 1),
            "reducescatter": lambda x=x: hvd.reducescatter(x, op=hvd.Max if dtype == tf.bool else hvd.Sum),  # noqa: B023
        }
        if dtype in (tf.complex64, tf.complex128, tf.float16, tf.bfloat16, tf.float32, tf.float64):
            calls["average"] = lambda x=x: hvd.allreduce(x, prescale_factor=0.3, postscale_factor=1.7)
        if dtype == tf.float32:
            calls["mixed group"] = lambda x=x: hvd.grouped_allreduce([x, tf.cast(x, tf.int64)], op=hvd.Sum)
            calls["adasum"] = lambda x=x: hvd.allreduce(x, op=hvd.Adasum)
            calls["compressed"] = lambda x=x: hvd.allreduce(x, compression=hvd.Compression.bf16)
            calls["grouped_reducescatter"] = lambda x=x, y=y: hvd.grouped_reducescatter([x, y], op=hvd.Sum)
            calls["empty"] = lambda: hvd.allreduce(tf.zeros([0, 3]))
            calls["scalar"] = lambda: hvd.allreduce(float(RANK))
            calls["product"] = lambda x=x: hvd.allreduce(x, op=hvd.Product)
            if RANK % 2 == 0:
                calls["set"] = lambda x=x: hvd.allreduce(x, process_set=even)
        for name, call in calls.items():
            expected = tf.nest.flatten(call())
            for got, wanted in zip(tf.nest.flatten(compiled(call)()), expected, strict=True):
                assert got.dtype == wanted.dtype and got.shape == wanted.shape, (name, dtype)
                assert got.numpy().tobytes() == wanted.numpy().tobytes(), (name, dtype, got, wanted)


def check_gradients():
    """First and second derivatives, as without XLA."""
    x = tf.constant(np.random.default_rng(RANK).normal(size=(3, 2)) + 2)
    functions = {
        "average": lambda v: hvd.allreduce(v, prescale_factor=0.5),
        "max": lambda v: hvd.allreduce(v, op=hvd.Max),
        "product": lambda v: hvd.allreduce(v, op=hvd.Product),
        "group": lambda v: tf.concat(hvd.grouped_allreduce([v, v * v], op=hvd.Sum), 0),
        "broadcast": lambda v: hvd.broadcast(v, 0),
        "reducescatter": lambda v: hvd.reducescatter(v, op=hvd.Sum),
        "reducescatter max": lambda v: hvd.reducescatter(v, op=hvd.Max),
    }
    for name, function in functions.items():

        def derivatives(v, function=function):
            with tf.GradientTape() as outer:
                outer.watch(v)
                with tf.GradientTape() as inner:
                    inner.watch(v)
                    loss = tf.reduce_sum(function(v) ** 3)
                first = inner.gradient(loss, v)
                total = tf.reduce_sum(first**2)
            return first, outer.gradient(total, v)

        for got, expected in zip(compiled(derivatives)(x), tf.function(derivatives, autograph=False)(x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12, err_msg=name)


def check_order_is_that_of_the_trace():
    """Independent calls in an order of their own would wait for each other: names differ, sizes vary."""

    @compiled
    def many(x):
        results = [hvd.allreduce(x * float(i), op=hvd.Sum, name=f"independent.{i}") for i in range(30)]
        chosen = tf.cond(tf.reduce_sum(x) >= 0, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: hvd.allreduce(-x))
        _, looped = tf.while_loop(
            lambda i, _: i < 5,
            lambda i, total: (i + 1, total + hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(2 * x, op=hvd.Sum)),
            (tf.constant(0), tf.zeros_like(x)),
        )
        after = [hvd.allreduce(x * float(i), op=hvd.Sum, name=f"after.{i}") for i in range(30)]
        return results, chosen, looped, after

    for size in (1, 1000, 100_000):
        for _ in range(5):
            results, chosen, looped, after = many(tf.ones([size]))
            for i in range(30):
                assert float(results[i][0]) == float(after[i][0]) == SIZE * i
            assert float(chosen[-1]) == SIZE and float(looped[-1]) == 15 * SIZE

    graph = many.get_concrete_function(tf.TensorSpec([7])).graph
    emitted = [op for op in graph.get_operations() if op.type == "XlaCustomCallV2"]
    assert len(emitted) == 60
    for before, op in itertools.pairwise(emitted):
        inputs = {source.op.name for source in op.inputs}
        between = [flow for flow in graph.get_operations() if flow.type in ("While", "StatelessWhile")]
        assert before.name in inputs or any(flow.name in inputs for flow in between), op.name


def check_barrier_join_and_positions():
    @compiled
    def places():
        hvd.barrier()
        return hvd.size_op(), hvd.rank_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op(0)

    assert [int(one) for one in places()] == [SIZE, RANK, hvd.local_rank(), hvd.local_size(), 1]
    joined = int(compiled(hvd.join)())
    assert joined in range(SIZE)


def check_errors():
    assert_raises(
        NotImplementedError, lambda: compiled(lambda: hvd.allgather(tf.ones([2])))(), "allgather", "jit_compile"
    )
    assert_raises(
        NotImplementedError, lambda: compiled(lambda: hvd.alltoall(tf.ones([SIZE])))(), "alltoall", "jit_compile"
    )
    unknown = tf.function(
        lambda x: hvd.allreduce(x), jit_compile=True, autograph=False, input_signature=[tf.TensorSpec([None])]
    )
    assert_raises(NotImplementedError, lambda: unknown(tf.ones([2])), "shape")
    if SIZE > 1:
        error = assert_raises(
            tf.errors.OpError,
            lambda: compiled(lambda: hvd.allreduce(tf.ones([RANK + 1]), name="unlike"))(),
            "'unlike'",
            "shape",
        )
        assert isinstance(error, tf.errors.OpError)
    assert float(compiled(lambda: hvd.allreduce(1.0, op=hvd.Sum, name="fine"))()) == SIZE


def check_training_with_keras():
    """One call for the gradients of a step, and the weights of a training without XLA."""
    weights = {}
    for jit in (False, True):
        for make in (
            lambda: keras.optimizers.Adam(0.01, global_clipnorm=1.0),
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        ):
            keras.utils.set_random_seed(1)
            inputs = keras.layers.Input((3,), dtype="int32")
            flat = keras.layers.Flatten()(keras.layers.Embedding(5, 4)(inputs))
            model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(6, activation="tanh")(flat)))
            optimizer = hvd.DistributedOptimizer(make(), sparse_as_dense=True)
            model.compile(optimizer=optimizer, loss="mse", jit_compile=jit)
            data = np.random.default_rng(RANK)
            x, y = data.integers(0, 5, size=(40, 3)), data.normal(size=(40, 1))
            hvd.diagnostics.reset()
            model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
            counters = hvd.diagnostics.counters()
            assert counters.gradients == 10 * len(model.trainable_variables)
            assert counters.requests == (10 if jit else counters.gradients), counters
            assert_same_on_all_ranks(digest(model.trainable_variables), "weights")
            weights.setdefault(jit, []).append([weight.numpy() for weight in model.weights])
    for plain, fast in zip(weights[False], weights[True], strict=True):
        for a, b in zip(plain, fast, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def check_backward_passes():
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2, op=hvd.Sum)
    optimizer.build([variable])
    step = compiled(lambda gradient: optimizer.apply([gradient], [variable]))
    for i in range(1, 5):
        step(tf.fill([3], float(RANK + 1)))
        total = sum(rank + 1 for rank in range(SIZE)) * 2 * (i // 2)
        np.testing.assert_allclose(-variable.numpy(), [total] * 3)


for check in [value for name, value in dict(globals()).items() if name.startswith("check_")]:
    check()
    print(f"rank {RANK}: {check.__name__} passed", flush=True)
common.hvd.shutdown()
