"""Every operation, eagerly and in a tf.function, for every type and odd shape, and the gradients."""

import common
import numpy as np
import sirtaki
import sirtaki.tensorflow as hvd
import tensorflow as tf
from common import assert_raises, both_ways
from sirtaki.dtypes import CELLS
from sirtaki.tensorflow.arguments import TYPES

RANK, SIZE = hvd.rank(), hvd.size()
SUM_OF_RANKS = SIZE * (SIZE - 1) // 2
SHAPES = ((), (1,), (0,), (0, 3), (3, 5), (2, 3, 4), (1021,))


def check_allreduce():
    for dtype in (t for t in TYPES if t != tf.bool):
        for shape in SHAPES:
            tensor = tf.cast(tf.fill(shape, RANK + 1), dtype)
            for way, call in both_ways(lambda t: hvd.allreduce(t, op=hvd.Sum)):
                expected = np.full(shape, SUM_OF_RANKS + SIZE)
                result = call(tensor)
                assert result.dtype == dtype and result.shape == tensor.shape, (way, dtype, shape)
                np.testing.assert_array_equal(tf.cast(result, tf.float64), expected, f"{way} {dtype} {shape}")
            # Multiples of SIZE have an exact average in every type.
            average = hvd.allreduce(tf.cast(tf.fill(shape, (RANK + 1) * SIZE), dtype))
            np.testing.assert_array_equal(tf.cast(average, tf.float64), np.full(shape, SUM_OF_RANKS + SIZE))


def check_every_operation():
    """Every cell of the table of types: what NumPy gives, or a TypeError before anything is sent."""
    functions = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}
    values = [np.array([1, r, 2 + r % 2, 0, 1]) for r in range(SIZE)]  # exact in every type
    for dtype in TYPES:
        mine = tf.constant(values[RANK].astype(dtype.as_numpy_dtype), dtype)
        stack = np.stack([v.astype(dtype.as_numpy_dtype) for v in values])
        for op, function in functions.items():
            for way, call in both_ways(lambda t, o=op: hvd.allreduce(t, op=sirtaki.ReduceOp[o])):
                if CELLS[dtype.name][op].startswith("no: "):
                    assert_raises(TypeError, lambda c=call, m=mine: c(m), dtype.name, op)
                else:
                    expected = function(stack, axis=0).astype(dtype.as_numpy_dtype)
                    np.testing.assert_array_equal(call(mine).numpy(), expected, f"{op} {dtype} {way}")
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        same = tf.cast([1.0, -2.0, 4.0], dtype)
        np.testing.assert_allclose(tf.cast(hvd.allreduce(same, op=hvd.Adasum), tf.float64), [1, -2, 4], rtol=1e-2)
    assert_raises(TypeError, lambda: hvd.allreduce(tf.constant([1]), op=hvd.Adasum), "Adasum")
    assert_raises(ValueError, lambda: hvd.reducescatter(tf.ones([SIZE]), op=hvd.Adasum), "Adasum")


def check_compression():
    exact, rounded = tf.constant([1.0, 0.5]), tf.constant([0.1])
    for compression, error in ((hvd.Compression.none, 0), (hvd.Compression.fp16, 1e-3), (hvd.Compression.bf16, 1e-2)):
        for _, call in both_ways(lambda t, c=compression: hvd.allreduce(t, compression=c)):
            np.testing.assert_array_equal(call(exact), exact)
            assert abs(float(call(rounded)[0]) - 0.1) <= 0.1 * error + 1e-8
        group = hvd.grouped_allreduce([exact, tf.constant([3])], compression=compression, op=hvd.Sum)
        np.testing.assert_array_equal(group[0], exact * SIZE)
        assert group[0].dtype == tf.float32 and group[1].numpy().tolist() == [3 * SIZE]
        scattered = hvd.reducescatter(tf.ones([SIZE, 2]), compression=compression, op=hvd.Sum)
        assert scattered.dtype == tf.float32 and scattered.numpy().tolist() == [[SIZE, SIZE]]
    assert float(hvd.allreduce(tf.constant([0.1]), compression=hvd.Compression.fp16)[0]) != np.float32(0.1)

    class Doubling:
        """A compressor of the user's, with a state."""

        calls = 0

        def compress(self, tensor):
            self.calls += 1
            return tensor * 2, 0.5

        def decompress(self, tensor, ctx):
            return tensor * ctx

    own = Doubling()
    np.testing.assert_array_equal(hvd.allreduce(exact, compression=own), exact)
    assert own.calls == 1
    assert_raises(TypeError, lambda: hvd.allreduce(exact, compression="fp16"), "compress", "fp16")


def share_of(total, rank):
    rows = len(total)
    begin = rank * (rows // SIZE) + min(rank, rows % SIZE)
    return total[begin : begin + rows // SIZE + (rank < rows % SIZE)]


def check_reducescatter():
    for rows in (0, 1, SIZE, 3 * SIZE + 1):
        tensor = tf.reshape(tf.range(rows * 2, dtype=tf.float32), [rows, 2]) + float(RANK)
        total = np.arange(rows * 2.0).reshape(rows, 2) * SIZE + SUM_OF_RANKS
        for way, call in both_ways(lambda t: hvd.reducescatter(t, op=hvd.Sum)):
            np.testing.assert_array_equal(call(tensor), share_of(total, RANK), f"{way} {rows}")
        first, second = hvd.grouped_reducescatter([tensor, tf.cast(tensor, tf.int64)], op=hvd.Sum)
        np.testing.assert_array_equal(first, share_of(total, RANK))
        np.testing.assert_array_equal(second, share_of(total, RANK))
        np.testing.assert_allclose(hvd.reducescatter(tensor), share_of(total / SIZE, RANK), rtol=1e-6)
    assert_raises(tf.errors.InvalidArgumentError, lambda: hvd.reducescatter(1.0, name="one"), "one", "scalar")


def check_grouped_allgather():
    tensors = [tf.fill([RANK + 1, 2], float(RANK)), tf.fill([1], RANK), tf.fill([2, 0], float(RANK)), tf.ones([0, 2])]
    expected = [np.repeat(np.arange(SIZE), np.arange(SIZE) + 1)[:, None].repeat(2, axis=1), np.arange(SIZE)]
    for way, call in both_ways(lambda *t: hvd.grouped_allgather(list(t))):
        results = call(*tensors)
        np.testing.assert_array_equal(results[0], expected[0], way)
        np.testing.assert_array_equal(results[1], expected[1], way)
        assert results[2].shape == (2 * SIZE, 0) and results[3].shape == (0, 2)
        assert [r.dtype for r in results] == [t.dtype for t in tensors]
    assert hvd.grouped_allgather([]) == []


def check_alltoall():
    for dtype in TYPES:
        splits = [1 + (RANK + to) % 3 for to in range(SIZE)]
        rows = np.repeat(RANK * SIZE + np.arange(SIZE), splits)
        given = [1 + (r + RANK) % 3 for r in range(SIZE)]
        expected = np.repeat(np.arange(SIZE) * SIZE + RANK, given).astype(dtype.as_numpy_dtype)
        for way, call in both_ways(lambda t, s: hvd.alltoall(t, s)):
            received, counts = call(tf.cast(rows, dtype), tf.constant(splits))
            np.testing.assert_array_equal(received.numpy(), expected, f"{way} {dtype}")
            assert counts.dtype == tf.int32 and counts.numpy().tolist() == given
    for _, call in both_ways(hvd.alltoall):
        assert call(tf.fill([2 * SIZE, 3], RANK))[::2, 0].numpy().tolist() == list(range(SIZE))
        wrong = tf.errors.InvalidArgumentError
        if SIZE > 1:
            assert_raises(wrong, lambda c=call: c(tf.zeros([SIZE + 1])), "evenly", "splits")
        assert_raises(wrong, lambda c=call: c(tf.zeros([2]), [5] * SIZE), "split")
        assert_raises(TypeError, lambda c=call: c(tf.zeros([2]), [1.0] * SIZE), "whole numbers")


def check_process_sets():
    if SIZE == 1:
        return
    halves = [hvd.add_process_set(range(0, SIZE, 2)), hvd.add_process_set(range(1, SIZE, 2))]
    mine, other = halves if RANK % 2 == 0 else halves[::-1]
    n, first = mine.size(), mine.ranks[0]
    for way, call in both_ways(lambda t: hvd.allreduce(t, op=hvd.Sum, process_set=mine)):
        assert float(call(tf.constant(float(RANK)))) == sum(mine.ranks), way
    assert hvd.allgather(tf.constant([RANK]), process_set=mine).numpy().tolist() == mine.ranks
    assert float(hvd.broadcast(float(RANK), mine.ranks[-1], process_set=mine)) == mine.ranks[-1]
    assert hvd.alltoall(tf.fill([n], RANK), process_set=mine).numpy().tolist() == mine.ranks
    assert hvd.reducescatter(tf.ones([n]), op=hvd.Sum, process_set=mine).numpy().tolist() == [n]
    variable = tf.Variable(RANK)
    hvd.broadcast_([variable], first, process_set=mine)
    assert int(variable) == first
    hvd.barrier(process_set=mine)
    assert_raises(tf.errors.InvalidArgumentError, lambda: hvd.allreduce(1.0, process_set=other), f"rank {RANK}")
    number = mine.process_set_id
    for _, call in both_ways(lambda: (hvd.size_op(number), hvd.process_set_included_op(number))):
        assert [int(v) for v in call()] == [n, 1]
    assert int(hvd.process_set_included_op(other.process_set_id)) == 0
    for process_set in halves:
        assert hvd.remove_process_set(process_set)
    assert_raises(tf.errors.InvalidArgumentError, lambda: hvd.size_op(number), "no process set")
    assert_raises(hvd.errors.InvalidArgumentError, lambda: hvd.allreduce(1.0, process_set=mine), "not known")


def check_place():
    for _, call in both_ways(lambda: (hvd.size_op(), hvd.rank_op(), hvd.local_size_op(), hvd.local_rank_op())):
        assert [int(v) for v in call()] == [SIZE, RANK, hvd.local_size(), hvd.local_rank()]


def check_barrier_and_join():
    @tf.function(autograph=False)
    def waits(x):
        with tf.control_dependencies([hvd.barrier()]):
            return hvd.allreduce(x, op=hvd.Sum)

    for _ in range(3):
        assert float(waits(tf.constant(1.0))) == SIZE
    for i in range(RANK + 1):
        # Those with fewer batches have joined, and count as zeros.
        assert float(hvd.allreduce(1.0, op=hvd.Sum, name=f"batch {i}")) == SIZE - i
    assert int(hvd.join()) == SIZE - 1
    for _, call in both_ways(hvd.join):
        assert int(call()) in range(SIZE)


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
    for dtype in TYPES:
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
        for dtype in TYPES:
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
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    assert_raises(ValueError, lambda: hvd.allreduce(slices, op=hvd.Max), "IndexedSlices", "Sum")
    assert_raises(TypeError, lambda: hvd.allreduce(1.0, process_set=[0]), "ProcessSet")
    assert_raises(TypeError, lambda: hvd.broadcast(tf.constant(["text"]), 0), "string")
    assert_raises(ValueError, lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum), "average")
    assert_raises(ValueError, lambda: hvd.allreduce(1.0, op=77), "77")
    assert_raises(tf.errors.InvalidArgumentError, lambda: hvd.allgather(1.0, name="single"), "single", "scalar")
    assert_raises(tf.errors.InvalidArgumentError, lambda: hvd.broadcast(1.0, SIZE), str(SIZE))


def check_broadcast_variables():
    import keras

    variables = [
        *(tf.Variable(tf.cast(tf.fill([2, 3], RANK + 1), dtype)) for dtype in TYPES),
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


def check_jacobians_are_refused():
    x = tf.constant([1.0, 2.0]) * (RANK + 1)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
    distributed = hvd.DistributedGradientTape(tape)
    for method in ("jacobian", "batch_jacobian"):
        assert_raises(NotImplementedError, lambda m=method: getattr(distributed, m)(y, x), method, "tf.GradientTape")
    jacobian = tape.jacobian(y, x)
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
