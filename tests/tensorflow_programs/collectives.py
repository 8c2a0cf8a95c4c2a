"""Every operation, eagerly and in a tf.function, for every type and odd shape, and the gradients."""

import common
import numpy as np
import sirtaki.tensorflow as hvd
import tensorflow as tf
from common import assert_raises, both_ways
from sirtaki.tensorflow import ops

RANK, SIZE = hvd.rank(), hvd.size()
SUM_OF_RANKS = SIZE * (SIZE - 1) // 2
SHAPES = ((), (1,), (0,), (0, 3), (3, 5), (2, 3, 4), (1021,))


def check_allreduce():
    for dtype in ops.REDUCIBLE:
        for shape in SHAPES:
            tensor = tf.cast(tf.fill(shape, RANK + 1), dtype)
            for way, call in both_ways(lambda t: hvd.allreduce(t, op=hvd.Sum)):
                expected = np.full(shape, SUM_OF_RANKS + SIZE)
                result = call(tensor)
                assert result.dtype == dtype and result.shape == tensor.shape, (way, dtype, shape)
                np.testing.assert_array_equal(tf.cast(result, tf.float64), expected, f"{way} {dtype} {shape}")
            # Multiples of SIZE have an exact average in every type.
            average = hvd.allreduce(tensor * SIZE)
            np.testing.assert_array_equal(tf.cast(average, tf.float64), np.full(shape, SUM_OF_RANKS + SIZE))


def check_scaling():
    third = 1.0 / 3.0  # a float32 attribute would lose half of its digits
    for dtype, tolerance in ((tf.float32, 1e-6), (tf.float64, 1e-15)):
        tensor = tf.constant([3.0, 5.0], dtype)
        for _, call in both_ways(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=third, postscale_factor=2.0)):
            expected = np.array([3.0, 5.0]) * third * 2.0 * SIZE
            np.testing.assert_allclose(call(tensor), expected, rtol=tolerance)
    old_style = hvd.allreduce(tf.constant([1.0]), average=False)
    np.testing.assert_array_equal(old_style, [float(SIZE)])


def check_grouped_allreduce():
    tensors = [
        tf.fill([3], float(RANK)),
        tf.fill([2, 2], RANK),
        tf.constant(float(RANK)),
        tf.zeros([0]),
        tf.fill([4], tf.cast(RANK, tf.float64)),
    ]
    for way, call in both_ways(lambda *t: hvd.grouped_allreduce(list(t), op=hvd.Sum)):
        results = call(*tensors)
        for result, tensor in zip(results, tensors, strict=True):
            assert result.dtype == tensor.dtype
            np.testing.assert_array_equal(result, np.full(tensor.shape, SUM_OF_RANKS), way)
    assert hvd.grouped_allreduce([]) == []


def check_allgather():
    for dtype in ops.MOVABLE:
        rows = RANK + 1 if RANK % 3 != 2 else 0
        tensor = tf.cast(tf.fill([rows, 2], RANK + 1), dtype)
        expected = np.concatenate([np.full([r + 1 if r % 3 != 2 else 0, 2], r + 1) for r in range(SIZE)])
        for way, call in both_ways(hvd.allgather):
            result = call(tensor)
            assert result.dtype == dtype
            np.testing.assert_array_equal(result.numpy(), expected.astype(dtype.as_numpy_dtype), f"{way} {dtype}")
    assert hvd.allgather(tf.zeros([0, 3])).shape == (0, 3)
    np.testing.assert_array_equal(hvd.allgather(tf.constant([RANK])), np.arange(SIZE))


def check_broadcast():
    for root in range(SIZE):
        ways = both_ways(lambda t, root=root: hvd.broadcast(t, root))
        for dtype in ops.MOVABLE:
            for shape in SHAPES if root == 0 else SHAPES[:1]:
                tensor = tf.cast(tf.fill(shape, RANK + 1), dtype)
                for way, call in ways:
                    result = call(tensor)
                    assert result.dtype == dtype and result.shape == tensor.shape
                    expected = np.full(shape, root + 1).astype(dtype.as_numpy_dtype)
                    np.testing.assert_array_equal(result.numpy(), expected, f"{way} {dtype} {shape}")


def check_inputs_survive():
    """A result may lie in its input's buffer only where nobody can look at the input again."""
    tensor = tf.fill([5], float(RANK))
    variable = tf.Variable(tensor)
    hvd.allreduce(tensor, op=hvd.Sum)
    hvd.allreduce(variable, op=hvd.Sum)
    np.testing.assert_array_equal(tensor, np.full(5, RANK))
    np.testing.assert_array_equal(variable, np.full(5, RANK))

    @tf.function(autograph=False)
    def reduce_constant():
        return hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum, prescale_factor=3.0)

    for _ in range(3):
        np.testing.assert_array_equal(reduce_constant(), [3.0 * SIZE, 6.0 * SIZE])


def gradient_of(function, variable):
    with tf.GradientTape() as tape:
        result = function(variable)
        pattern = tf.range(1.0, tf.cast(tf.size(result), tf.float32) + 1.0)
        loss = tf.reduce_sum(result * tf.reshape(pattern, tf.shape(result)))
        loss *= float(RANK + 1)
    return tape.gradient(loss, variable)


def check_gradients():
    weights = SUM_OF_RANKS + SIZE  # of the ranks' losses
    variable = tf.Variable(tf.fill([2, 2], float(RANK)))
    pattern = np.array([[1.0, 2.0], [3.0, 4.0]])
    cases = {
        "average": (hvd.allreduce, pattern * weights / SIZE),
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), pattern * weights),
        "scaled": (lambda x: hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5), pattern * weights / 2),
        "group": (lambda x: hvd.grouped_allreduce([x, x * 2.0], op=hvd.Sum)[0], pattern * weights),
        "broadcast": (lambda x: hvd.broadcast(x, SIZE - 1), pattern * weights * (RANK == SIZE - 1)),
        "gather": (hvd.allgather, (pattern + 4.0 * RANK) * weights),
    }
    for name, (function, expected) in cases.items():
        for way, call in both_ways(lambda x, f=function: gradient_of(f, x)):
            np.testing.assert_allclose(call(variable), expected, rtol=1e-6, err_msg=f"{name} {way}")
    uneven = tf.Variable(tf.ones([RANK + 1, 3]))
    for way, call in both_ways(lambda x: gradient_of(hvd.allgather, x)):
        begin = 3 * (RANK * (RANK + 1) // 2)
        expected = (np.arange(begin, begin + 3 * (RANK + 1)) + 1.0).reshape(-1, 3) * weights
        np.testing.assert_allclose(call(uneven), expected, rtol=1e-6, err_msg=way)


def check_slices():
    slices = tf.IndexedSlices(tf.fill([RANK + 1, 2], float(RANK + 1)), tf.range(RANK + 1), tf.constant([9, 2]))
    expected = np.zeros([9, 2])
    for rank in range(SIZE):
        expected[: rank + 1] += rank + 1
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, SIZE)):
        dense = tf.convert_to_tensor(hvd.allreduce(slices, op=op))
        np.testing.assert_allclose(dense, expected / divisor, rtol=1e-6)


def check_loops_and_nesting():
    @tf.function
    def inner(x):
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def outer(x):
        total = tf.zeros_like(x)
        for _ in tf.range(20):
            total += hvd.allreduce(x, op=hvd.Sum)
        return total + inner(x) + inner(x * 2.0) + inner(tf.ones([])) * x

    np.testing.assert_array_equal(outer(tf.ones([2])), np.full(2, 24.0 * SIZE))

    @tf.function(autograph=False)
    def uses_result_on_root_only(x):
        reduced = hvd.allreduce(x, op=hvd.Sum)
        return reduced if RANK == 0 else x

    assert uses_result_on_root_only(tf.constant(1.0)) == (SIZE if RANK == 0 else 1)


def check_mismatches():
    """Errors carry the same text everywhere, and the job goes on working."""
    if SIZE == 1:
        return
    last = SIZE - 1
    odd_shape = tf.zeros([2 if RANK == last else 3])
    odd_type = tf.zeros([3], tf.float64 if RANK == last else tf.float32)
    for case, call in {
        "shape": lambda: hvd.allreduce(odd_shape, name="odd.shape"),
        "type": lambda: hvd.allreduce(odd_type, name="odd.type"),
        "op": lambda: hvd.allreduce(tf.zeros([3]), op=hvd.Sum if RANK == last else hvd.Average, name="odd.op"),
        "root": lambda: hvd.broadcast(tf.zeros([3]), 1 if RANK == last else 0, name="odd.root"),
        "columns": lambda: hvd.allgather(tf.zeros([3, 2 if RANK == last else 3]), name="odd.columns"),
    }.items():
        for way, attempt in both_ways(call):
            error = assert_raises(tf.errors.FailedPreconditionError, attempt, f"odd.{case}")
            if way == "eager":
                assert error.op is None or "Sirtaki" in error.op.type
            np.testing.assert_array_equal(hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="after"), [SIZE, SIZE])


def check_arguments():
    assert_raises(TypeError, lambda: hvd.allreduce(tf.constant([True])), "bool", "cast")
    assert_raises(TypeError, lambda: hvd.broadcast(tf.constant(["text"]), 0), "string")
    assert_raises(ValueError, lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum), "average")
    assert_raises(ValueError, lambda: hvd.allreduce(1.0, op=77), "77")
    assert_raises(tf.errors.InvalidArgumentError, lambda: hvd.allgather(1.0, name="single"), "single", "scalar")
    assert_raises(tf.errors.InvalidArgumentError, lambda: hvd.broadcast(1.0, SIZE), str(SIZE))


def check_broadcast_variables():
    import keras

    variables = [
        *(tf.Variable(tf.cast(tf.fill([2, 3], RANK + 1), dtype)) for dtype in ops.MOVABLE),
        tf.Variable(RANK),
        keras.Variable(np.full([3], RANK, "uint32"), dtype="uint32", trainable=False),
        keras.random.SeedGenerator(RANK).state,
    ]
    hvd.broadcast_variables(variables, root_rank=SIZE - 1)
    common.assert_same_on_all_ranks(common.digest(variables), "broadcast variables")
    assert int(variables[-3].numpy()) == SIZE - 1
    if SIZE > 1:
        uneven = variables if RANK == 0 else variables[1:]
        assert_raises(hvd.errors.MismatchError, lambda: hvd.broadcast_variables(uneven, 0), "rank 1", "variables")


def check_calls_of_functions():
    """Functions that only read variables, called twice or with the same names inside, in one function."""
    scale = tf.Variable(1.0)
    first, second = tf.Variable([1.0, 1.0]), tf.Variable([1.0, 1.0])

    @tf.function(autograph=False)
    def inner(x):
        return hvd.allreduce(x * scale, op=hvd.Sum)

    @tf.function(autograph=False)
    def twice(a, b):
        return inner(a), inner(b)

    def gradients(variable):
        @tf.function(autograph=False)
        def compute(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * x)
            return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [variable])[0]

        return compute

    first_gradients, second_gradients = gradients(first), gradients(second)

    @tf.function(autograph=False)
    def both(a, b):
        return first_gradients(a), second_gradients(b)

    for i in range(30):
        one, hundred = twice(tf.constant(float(i)), tf.constant(100.0 * i))
        assert (float(one), float(hundred)) == (i * SIZE, 100 * i * SIZE)
        one, hundred = both(tf.fill([2], float(i)), tf.fill([2], 100.0 * i))
        assert one.numpy().tolist() == [i * SIZE] * 2
        assert hundred.numpy().tolist() == [100 * i * SIZE] * 2


def check_jacobians_are_local():
    x = tf.constant([1.0, 2.0]) * (RANK + 1)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
    jacobian = hvd.DistributedGradientTape(tape).jacobian(y, x)
    assert jacobian.numpy().tolist() == [[2.0 * (RANK + 1), 0.0], [0.0, 4.0 * (RANK + 1)]]
    assert_raises(ValueError, lambda: hvd.DistributedGradientTape(tape, op=hvd.Sum), "already")


def check_dense_meets_sparse():
    if SIZE == 1:
        return
    dense = tf.ones([3, 2])
    sparse = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    gradient = sparse if RANK == SIZE - 1 else dense
    for way, reduce in common.both_ways(lambda: hvd.allreduce(gradient, name="one of a kind")):
        assert_raises(tf.errors.FailedPreconditionError, reduce, "operation", "'one of a kind'")
        assert float(hvd.allreduce(1.0, op=hvd.Sum, name=f"after {way}")) == SIZE


for check in [value for name, value in dict(globals()).items() if name.startswith("check_")]:
    check()
    print(f"rank {RANK}: {check.__name__} passed", flush=True)
hvd.shutdown()
assert_raises(tf.errors.FailedPreconditionError, lambda: hvd.allreduce(tf.ones([2])))
