"""Gradients of every collective, against a single process that has all ranks' tensors.

What is differentiated is the sum of all ranks' losses, and every rank knows what the others give: so each one computes
the losses of all ranks from a stack of their inputs, and TensorFlow's own gradient of that is what must come out.
"""

import functools
import itertools
import operator

import numpy as np
import sirtaki.tensorflow as hvd
import tensorflow as tf
from common import assert_raises, both_ways

RANK, SIZE = hvd.rank(), hvd.size()
ROWS = 2 * SIZE + 1


def inputs(shape, dtype, ties=False):
    """One tensor per rank, with values far from zero, and one that is zero; with `ties` some are equal on all ranks."""
    draw = np.random.default_rng(7)
    values = draw.uniform(0.5, 2.0, (SIZE, *shape)) * draw.choice([-1, 1], (SIZE, *shape))
    if dtype.is_complex:
        values = values + 1j * draw.uniform(0.5, 2.0, values.shape)
    if ties:
        values[:, 0] = values[0, 0]
    values[SIZE - 1].ravel()[-1] = 0
    return tf.constant(values, dtype)


def loss_of(result, rank):
    """A loss of its own on each rank, of second degree."""
    weights = tf.cast(tf.reshape(tf.range(1, tf.size(result) + 1), tf.shape(result)), result.dtype)
    value = tf.reduce_sum(weights * result * result) * tf.cast(rank + 1, result.dtype)
    return tf.math.real(value)


def shares(total):
    """What each rank gets of rows that are shared out."""
    sizes = [ROWS // SIZE + (r < ROWS % SIZE) for r in range(SIZE)]
    return tf.split(total, sizes)


def reduced(stack, op, prescale, postscale):
    stack = stack * tf.cast(prescale, stack.dtype)
    function = {
        hvd.Average: tf.reduce_mean,
        hvd.Sum: tf.reduce_sum,
        hvd.Min: tf.reduce_min,
        hvd.Max: tf.reduce_max,
        # Not tf.reduce_prod, whose second derivative is wrong for complex numbers.
        hvd.Product: lambda stack, axis: functools.reduce(operator.mul, tf.unstack(stack, axis=axis)),
    }[op]
    return function(stack, axis=0) * tf.cast(postscale, stack.dtype)


def splits_of(rank):
    """Rows from this rank to each; they add up to ROWS."""
    first = [1 + (rank + r) % 2 for r in range(SIZE - 1)]
    return [*first, ROWS - sum(first)]


def alltoall(stack):
    parts = [tf.split(stack[r], splits_of(r)) for r in range(SIZE)]
    return [tf.concat([parts[r][to] for r in range(SIZE)], axis=0) for to in range(SIZE)]


def cases():
    """Yield a name, the call, what each rank gets of a stack, the types, and whether values are equal on ranks."""
    floats = (tf.float32, tf.float64)
    scales = ((1.0, 1.0), (0.5, 3.0))
    for op, (pre, post) in itertools.product((hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product), scales):
        types = floats if op in (hvd.Min, hvd.Max) else (*floats, tf.complex128)
        keywords = {"op": op, "prescale_factor": pre, "postscale_factor": post}
        ties = op in (hvd.Min, hvd.Max)
        name = f"{op.name} {pre} {post}"
        yield (
            f"allreduce {name}",
            lambda x, k=keywords: hvd.allreduce(x, **k),
            lambda s, k=(op, pre, post): [reduced(s, *k)] * SIZE,
            types,
            ties,
        )
        yield (
            f"grouped_allreduce {name}",
            lambda x, k=keywords: tf.add_n(hvd.grouped_allreduce([x, 2 * x, tf.stop_gradient(x)], **k)[:2]),
            lambda s, k=(op, pre, post): [reduced(s, *k) + reduced(2 * s, *k)] * SIZE,
            types,
            ties,
        )
        yield (
            f"reducescatter {name}",
            lambda x, k=keywords: hvd.reducescatter(x, **k),
            lambda s, k=(op, pre, post): shares(reduced(s, *k)),
            types,
            ties,
        )
        yield (
            f"grouped_reducescatter {name}",
            lambda x, k=keywords: tf.add_n(hvd.grouped_reducescatter([x, 3 * x], **k)),
            lambda s, k=(op, pre, post): shares(reduced(s, *k) + reduced(3 * s, *k)),
            types,
            ties,
        )
    types = (*floats, tf.complex128)
    gathered = lambda s: [tf.reshape(s, [SIZE * ROWS, *s.shape[2:]])] * SIZE  # noqa: E731
    yield "allgather", hvd.allgather, gathered, types, False
    yield (
        "grouped_allgather",
        lambda x: tf.add_n(hvd.grouped_allgather([x, 2 * x])),
        lambda s: gathered(3 * s),
        types,
        False,
    )
    root = SIZE - 1
    yield "broadcast", lambda x: hvd.broadcast(x, root), lambda s: [s[root]] * SIZE, types, False
    yield "alltoall", lambda x: hvd.alltoall(x, splits_of(RANK))[0], alltoall, types, False


def first_and_second(x, call, loss):
    """The gradient by x, and the gradient by x of a function of it."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = loss(call(x))
        first = inner.gradient(value, x)
        again = tf.reduce_sum(tf.math.real(first * first))
    return first, outer.gradient(again, x)


def check_gradients():
    for name, call, result_of_all, types, ties in cases():
        for dtype in types:
            stack = inputs((ROWS, 2), dtype, ties)

            def total(results):
                return tf.add_n([loss_of(result, r) for r, result in enumerate(results)])

            first, second = first_and_second(stack, result_of_all, total)
            mine = stack[RANK]
            for way, both in both_ways(lambda x, c=call: first_and_second(x, c, lambda result: loss_of(result, RANK))):
                got_first, got_second = both(mine)
                what = f"{name} {dtype.name} {way}"
                np.testing.assert_allclose(got_first, first[RANK], rtol=1e-5, atol=1e-6, err_msg=what)
                np.testing.assert_allclose(got_second, second[RANK], rtol=1e-4, atol=1e-5, err_msg=f"{what}, second")
        print(f"rank {RANK}: {name} passed", flush=True)


def check_adasum_has_none():
    x = tf.Variable([1.0, 2.0])

    def attempt():
        with tf.GradientTape() as tape:
            y = hvd.allreduce(x, op=hvd.Adasum)
        return tape.gradient(y, x)

    for _, call in both_ways(attempt):
        assert_raises(LookupError, call, "Adasum", "no gradient")


def check_sets():
    """In a process set the others take no part, and averages divide by its members."""
    if SIZE < 3:
        return
    some = hvd.add_process_set([0, SIZE - 1])
    if some.included():
        stack = inputs((ROWS, 2), tf.float64)
        members = tf.stack([stack[r] for r in some.ranks])
        for op in (hvd.Average, hvd.Max, hvd.Product):
            with tf.GradientTape() as tape:
                tape.watch(members)
                total = reduced(members, op, 1.0, 1.0)
                loss = tf.add_n([loss_of(total, r) for r in some.ranks])
            expected = tape.gradient(loss, members)[some.rank()]
            mine = stack[RANK]
            with tf.GradientTape() as tape:
                tape.watch(mine)
                loss = loss_of(hvd.allreduce(mine, op=op, process_set=some), RANK)
            np.testing.assert_allclose(tape.gradient(loss, mine), expected, rtol=1e-9)
    hvd.barrier()
    hvd.remove_process_set(some)


check_gradients()
check_adasum_has_none()
check_sets()
