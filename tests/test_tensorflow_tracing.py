"""What is settled while TensorFlow traces: names, shapes, errors. No rank talks to another here."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
import sirtaki.tensorflow as hvd  # noqa: E402


def tensor_names(function: tf.types.experimental.PolymorphicFunction, *args: object) -> list[str]:
    """The names of all collectives of a traced function, with those of the functions that it calls."""
    graph = function.get_concrete_function(*args).graph.as_graph_def()
    nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
    return sorted({node.attr["tensor_name"].s.decode() for node in nodes if node.op.startswith("Sirtaki")})


SCALAR = tf.TensorSpec([], tf.float32)
VECTOR = tf.TensorSpec([3], tf.float32)


def test_unnamed_calls_are_counted_within_their_function() -> None:
    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x) + hvd.allreduce(x * 2) + hvd.broadcast(x, 0)

    expected = ["allreduce.step.0", "allreduce.step.1", "broadcast.step.0"]
    assert tensor_names(step, SCALAR) == expected
    assert tensor_names(step, VECTOR) == expected, "a retrace must not change names"


def test_a_function_keeps_its_names_whoever_calls_it() -> None:
    @tf.function(autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x)

    @tf.function(autograph=False)
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(x) + hvd.allreduce(x)

    assert tensor_names(outer, SCALAR) == ["allreduce.inner.0", "allreduce.outer.0"]
    assert tensor_names(inner, SCALAR) == ["allreduce.inner.0"]


def test_branches_and_loops_count_within_their_function() -> None:
    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        x = tf.cond(x > 0, lambda: hvd.allreduce(x), lambda: hvd.allreduce(-x))
        (x,) = tf.while_loop(lambda x: x < 10, lambda x: (hvd.allreduce(x) + 1,), [x])
        return x

    expected = [
        "allreduce.step/cond_branch0.0",
        "allreduce.step/cond_branch1.0",
        "allreduce.step/while_body0.0",
    ]
    assert tensor_names(step, SCALAR) == expected
    assert tensor_names(step, tf.TensorSpec([], tf.float64)) == expected


def test_given_names_are_kept_and_gradients_take_theirs_from_them() -> None:
    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, name="mine") + hvd.allreduce(x)
        return tape.gradient(y, x)

    assert tensor_names(step, SCALAR) == [
        "allreduce.step.0",
        "allreduce.step.0.gradient",
        "mine",
        "mine.gradient",
    ]


def test_gradients_are_named_by_position() -> None:
    variables = [tf.Variable(1.0), tf.Variable([1.0, 2.0])]

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            loss = x * variables[0] + tf.reduce_sum(variables[1])
        tape = hvd.DistributedGradientTape(tape)
        return [*tape.gradient(loss, variables), tape.gradient(loss, variables[0])]

    assert tensor_names(step, SCALAR) == [
        "DistributedGradientTape#1.gradient.0",
        "DistributedGradientTape.gradient.0",
        "DistributedGradientTape.gradient.1",
    ]


@pytest.mark.parametrize("shape", [[], [3, 2], [None, 2], None])
def test_reductions_keep_static_shapes(shape: list[int | None] | None) -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec(shape, tf.float32)])
    def step(x: tf.Tensor) -> None:
        for result in (hvd.allreduce(x), hvd.broadcast(x, 0), *hvd.grouped_allreduce([x])):
            assert result.shape == x.shape or result.shape.rank is x.shape.rank is None

    step.get_concrete_function()


@pytest.mark.parametrize(("shape", "gathered"), [([3, 2], [None, 2]), ([None, None], [None, None]), (None, None)])
def test_allgather_knows_all_but_the_number_of_rows(
    shape: list[int | None] | None, gathered: list[int | None] | None
) -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec(shape, tf.float32)])
    def step(x: tf.Tensor) -> None:
        result = hvd.allgather(x).shape
        assert (result.as_list() if result.rank is not None else None) == gathered

    step.get_concrete_function()


def test_allgather_of_a_scalar_is_refused_while_tracing() -> None:
    with pytest.raises(ValueError, match="at least rank 1"):
        tf.function(hvd.allgather, autograph=False).get_concrete_function(SCALAR)


def test_xla_refuses_results_of_unknown_size_with_the_way_out() -> None:
    @tf.function(autograph=False, jit_compile=True)
    def step(x: tf.Tensor) -> tf.Tensor:
        return hvd.allgather(x)

    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        step.get_concrete_function(VECTOR)


def test_gradients_are_combined_by_operations_that_make_gradients():
    hvd.init()
    for op in (hvd.Min, hvd.Max, hvd.Product):
        for call in (
            lambda op=op: hvd.DistributedGradientTape(tf.GradientTape(), op=op),
            lambda op=op: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=op),
        ):
            with pytest.raises(ValueError, match="Average, Sum or Adasum"):
                call()


def test_static_shapes_are_as_exact_as_the_inputs():
    hvd.init()
    unknown_rows, unknown = tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec(None, tf.float32)
    known = tf.TensorSpec([5, 3], tf.float32)

    def shapes(call, spec):
        result = tf.function(call, autograph=False).get_concrete_function(spec).structured_outputs
        return [tuple(t.shape) if t.shape.rank is not None else None for t in tf.nest.flatten(result)]

    for call in (hvd.allreduce, lambda x: hvd.broadcast(x, 0), lambda x: hvd.grouped_allreduce([x])):
        assert shapes(call, known) == [(5, 3)]
        assert shapes(call, unknown_rows) == [(None, 3)]
        assert shapes(call, unknown) == [None]
    for call in (hvd.allgather, hvd.alltoall, lambda x: hvd.grouped_allgather([x])):
        assert shapes(call, known) == [(None, 3)]
        assert shapes(call, unknown) == [None]
    assert shapes(lambda x: hvd.alltoall(x, [5]), known) == [(None, 3), (1,)]
    for call in (hvd.reducescatter, lambda x: hvd.grouped_reducescatter([x])):
        assert shapes(call, known) == [(5, 3)]  # of one rank
        assert shapes(call, unknown_rows) == [(None, 3)]
        assert shapes(call, unknown) == [None]
    for call in (hvd.size_op, hvd.join):
        assert shapes(lambda _, call=call: call(), known) == [()]
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(ValueError, match="rank 1"):
            shapes(call, SCALAR)


@pytest.mark.parametrize("transformation", ["map", "filter", "interleave"])
def test_collectives_in_a_dataset_are_refused(transformation):
    hvd.init()
    dataset = tf.data.Dataset.from_tensor_slices([1.0, 2.0])
    calls = {
        "map": lambda: dataset.map(lambda x: hvd.allreduce(x)),
        "filter": lambda: dataset.filter(lambda x: hvd.allreduce(x) > 0),
        "interleave": lambda: dataset.interleave(lambda x: tf.data.Dataset.from_tensors(hvd.broadcast(x, 0))),
    }
    with pytest.raises(NotImplementedError, match=r"tf\.data"):
        calls[transformation]()


def test_factors_of_whole_numbers_are_refused():
    hvd.init()
    for factor in ("prescale_factor", "postscale_factor"):
        with pytest.raises(TypeError, match="int32"):
            hvd.allreduce(tf.constant([10, 20]), op=hvd.Sum, **{factor: 0.5})
        with pytest.raises(TypeError, match="int64"):
            hvd.grouped_allreduce([tf.constant([1], tf.int64)], **{factor: 2.5})
