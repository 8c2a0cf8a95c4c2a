"""Keras: wrapping, saving, loss scaling, callbacks, tapes, and the guard against unreduced training."""

import os
import sys
import warnings

import common
import keras
import numpy as np
import sirtaki.tensorflow as hvd
import tensorflow as tf
from common import assert_raises, assert_same_on_all_ranks, digest

RANK, SIZE = hvd.rank(), hvd.size()
SCRATCH = sys.argv[1]
data = np.random.default_rng(RANK)
INPUTS = data.normal(size=(32, 6)).astype("float32")
TARGETS = INPUTS.sum(axis=1, keepdims=True)


def make_model(*layers):
    keras.utils.set_random_seed(10 + RANK)  # different weights, for the callback to make equal
    return keras.Sequential([keras.layers.Input((6,)), *layers, keras.layers.Dense(1)])


def fit(model, *callbacks, epochs=1):
    return model.fit(INPUTS, TARGETS, batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks))


def reductions(function):
    hvd.diagnostics.reset()
    function()
    return hvd.diagnostics.counters().allreduced


def check_every_gradient_is_reduced_once():
    for eager in (False, True):
        for make in (
            lambda: keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=1.0),
            lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3),
            lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
        ):
            model = make_model(keras.layers.Dense(5, activation="relu"))
            original = make()
            optimizer = hvd.DistributedOptimizer(original)
            assert isinstance(optimizer, type(make())) and optimizer is original
            model.compile(optimizer=optimizer, loss="mse", run_eagerly=eager)
            callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
            steps = len(INPUTS) // 8
            count = reductions(lambda m=model, c=callback: fit(m, c))
            assert count == steps * len(model.trainable_variables), (eager, optimizer, count)
            assert_same_on_all_ranks(digest(model.trainable_variables), f"weights of {optimizer.name}")
            assert_same_on_all_ranks(digest(optimizer.variables), f"state of {optimizer.name}")


def check_saved_models_are_plain():
    model = make_model()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    path = os.path.join(SCRATCH, f"model{RANK}.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert digest(loaded.optimizer.variables) == digest(model.optimizer.variables)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    again = hvd.DistributedOptimizer(loaded.optimizer)  # built already, and its state is kept
    assert digest(again.variables) == digest(model.optimizer.variables)
    fit(loaded, hvd.callbacks.BroadcastGlobalVariablesCallback(0))


def check_wrong_optimizers():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    assert_raises(ValueError, lambda: hvd.DistributedOptimizer(optimizer), "twice")
    inside = keras.optimizers.LossScaleOptimizer(optimizer)
    assert_raises(ValueError, lambda: hvd.DistributedOptimizer(inside), "twice")
    assert_raises(TypeError, lambda: hvd.DistributedOptimizer("adam"), "adam")
    assert_raises(ValueError, lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=9), "9")


def step_of(optimizer, variable, weight, options):
    """Applies a gradient to `variable`, and returns it as the gradient by `weight`."""

    def step(gradient):
        optimizer.apply([gradient], [variable])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * gradient)
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, weight)

    return step


def check_options():
    """Each way to combine gradients gives the weights that it should, eagerly and in a graph, by optimizer and tape."""
    gradients = [tf.constant([1.0, 2.0, -4.0]) * (rank + 1) for rank in range(SIZE)]
    mean, total = sum(gradients) / SIZE, sum(gradients)
    half = tf.cast(mean, tf.float16)
    cases = [
        ({}, mean),
        ({"op": hvd.Sum}, total),
        ({"op": hvd.Average, "gradient_predivide_factor": 4.0}, mean),
        ({"compression": hvd.Compression.fp16}, tf.cast(half, tf.float32)),
        ({"compression": hvd.Compression.bf16}, tf.cast(tf.cast(mean, tf.bfloat16), tf.float32)),
    ]
    if SIZE == 2:  # the gradients are parallel, so their dot products are those of their lengths
        cases.append(({"op": hvd.Adasum}, (1 - 2 / 2) * gradients[0] + (1 - 2 / 8) * gradients[1]))
    for options, expected in cases:
        for eager in (True, False):
            variable = keras.Variable(np.zeros(3, "float32"))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
            optimizer.build([variable])
            weight = tf.Variable(tf.zeros([3]))

            step = step_of(optimizer, variable, weight, options)
            got = (step if eager else tf.function(step, autograph=False))(gradients[RANK])
            np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"{options} {eager}")
            np.testing.assert_allclose(-variable.numpy(), expected, rtol=1e-6, err_msg=f"{options} {eager}")
    for wrong, words in (
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "Average"),
        ({"gradient_predivide_factor": 0.0}, "positive"),
        ({"op": hvd.Max}, "Average, Sum or Adasum"),
    ):
        assert_raises(ValueError, lambda o=wrong: hvd.DistributedOptimizer(keras.optimizers.SGD(), **o), words)
        assert_raises(ValueError, lambda o=wrong: hvd.DistributedGradientTape(tf.GradientTape(), **o), words)
    assert_raises(TypeError, lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), compression=16), "compress")
    alone = [hvd.add_process_set([rank]) for rank in range(SIZE)][RANK]
    variable = keras.Variable(np.zeros(3, "float32"))
    hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=alone).apply([gradients[RANK]], [variable])
    np.testing.assert_allclose(-variable.numpy(), gradients[RANK])


def check_loss_scaling():
    """An overflow on one rank makes all of them skip the step, whichever of the two wraps the other."""
    for outside in (False, True):
        optimizer = keras.optimizers.SGD(1.0)
        if outside:
            optimizer = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))
        else:
            optimizer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(optimizer))
        variable = keras.Variable(np.ones(2, "float32"))
        optimizer.build([variable])
        scale = float(optimizer.dynamic_scale)
        eager = lambda gradient, o=optimizer, v=variable: o.apply([gradient], [v])  # noqa: E731
        for apply in (eager, tf.function(lambda gradient, e=eager: e(gradient), autograph=False)):
            before = variable.numpy()
            finite = tf.fill([2], scale * (RANK + 1))
            hvd.diagnostics.reset()
            apply(finite)
            moved = before - (SIZE + 1) / 2
            np.testing.assert_allclose(variable.numpy(), moved, rtol=1e-6)
            infinite = tf.fill([2], np.inf if RANK == SIZE - 1 else scale)
            apply(infinite)
            np.testing.assert_allclose(variable.numpy(), moved, rtol=1e-6)
            scale /= 2
            assert float(optimizer.dynamic_scale) == scale
            assert hvd.diagnostics.counters().allreduced == 2
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make_model(keras.layers.Dense(5))
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    count = reductions(lambda: fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0)))
    assert count == 4 * len(model.trainable_variables)
    assert_same_on_all_ranks(digest(model.trainable_variables), "weights under mixed precision")


def check_missing_and_sparse_gradients():
    table = keras.Variable(np.zeros((6, 2), "float32"))
    unused = keras.Variable(np.ones(3, "float32"))
    for sparse_as_dense in (False, True):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=sparse_as_dense)
        table.assign(np.zeros((6, 2)))
        slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([RANK, 5]), tf.constant([6, 2]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras tells about the missing gradient
            optimizer.apply([None, slices], [unused, table])
        expected = np.zeros((6, 2))
        expected[:SIZE] -= 1 / SIZE
        expected[5] -= 1
        np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
        np.testing.assert_array_equal(unused.numpy(), np.ones(3))


def check_tape():
    weights = [tf.Variable(2.0), tf.Variable([1.0, 2.0]), tf.Variable(5.0)]

    def step(persistent):
        with tf.GradientTape(persistent=persistent) as tape:
            loss = weights[0] * float(RANK) + tf.reduce_sum(weights[1])
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        first = tape.gradient(loss, {"a": weights[0], "b": weights[1:]})
        second = tape.gradient(loss, weights[0]) if persistent else first["a"]
        return first, second

    for call in (step, tf.function(step, autograph=False)):
        for persistent in (False, True):
            first, second = call(persistent)
            assert float(first["a"]) == float(second) == SIZE * (SIZE - 1) / 2
            np.testing.assert_array_equal(first["b"][0], [SIZE, SIZE])
            assert first["b"][1] is None
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = weights[0] * float(RANK + 1)
    assert float(tape.gradient(loss, weights[0])) == (SIZE + 1) / 2
    assert_raises(ValueError, lambda: hvd.DistributedGradientTape(tape), "twice")
    assert_raises(TypeError, lambda: hvd.DistributedGradientTape(None), "None")


def check_callbacks():
    model = make_model(keras.layers.Dropout(0.5, seed=7), keras.layers.BatchNormalization())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 if RANK == 0 else 9.0))
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    before = hvd.broadcast_object([weight.numpy() for weight in model.weights])
    seen = []
    at_start = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append([weight.numpy() for weight in model.weights])
    )
    history = fit(
        model,
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        at_start,
        epochs=2,
    )
    for root, own in zip(before, seen[0], strict=True):
        np.testing.assert_array_equal(root, own)
    assert float(optimizer.learning_rate) == np.float32(0.01)
    assert_same_on_all_ranks(history.history, "averaged metrics")
    states = hvd.allgather_object(int(model.layers[0].seed_generator.state.numpy()[0]))
    assert states[0] == 7 and len(set(states)) == SIZE, states


class OwnStep(keras.Model):
    """A model whose train_step reduces by tape, or not at all."""

    def __init__(self, reduces):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.reduces = reduces

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, batch):
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs) - targets) ** 2)
        if self.reduces:
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def warnings_of(function, category=hvd.UnreducedGradientsWarning):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [w for w in caught if issubclass(w.category, category)]


def check_guard():
    def forgotten():
        model = make_model()
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
        return model

    def own(reduces):
        model = OwnStep(reduces)
        model.compile(optimizer=keras.optimizers.SGD(0.01))
        return model

    both = (hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback())
    expected = 1 if SIZE > 1 else 0
    assert len(warnings_of(lambda: fit(forgotten()))) == expected
    assert len(warnings_of(lambda: fit(own(False)))) == expected
    assert len(warnings_of(lambda: fit(own(True), *both))) == 0
    for callback in both:
        if SIZE > 1:
            assert_raises(hvd.errors.UnreducedGradientsError, lambda c=callback: fit(forgotten(), c), "Wrap")
            assert_raises(hvd.errors.UnreducedGradientsError, lambda c=callback: fit(own(False), c), "Tape")
        else:
            fit(forgotten(), callback)
    os.environ["SIRTAKI_ALLOW_UNWRAPPED_OPTIMIZER"] = "1"
    assert len(warnings_of(lambda: fit(forgotten(), both[1]))) == 0
    del os.environ["SIRTAKI_ALLOW_UNWRAPPED_OPTIMIZER"]


def check_different_weights():
    """Nobody makes the ranks' weights equal: that is told, also of a model that its first batch builds."""

    def wrapped(layers, seed):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
        return model

    for layers in ([keras.layers.Input((6,))], []):
        expected = 1 if SIZE > 1 else 0
        told = warnings_of(lambda b=layers: fit(wrapped(b, RANK)), hvd.DifferentWeightsWarning)
        assert len(told) == expected
        assert not told or "ranks [1" in str(told[0].message)
        assert not warnings_of(lambda b=layers: fit(wrapped(b, 1)), hvd.DifferentWeightsWarning)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        if layers:
            broadcast = warnings_of(lambda b=layers, c=callback: fit(wrapped(b, RANK), c), hvd.DifferentWeightsWarning)
            assert not broadcast


def check_one_rank_builds_first():
    if SIZE == 1:
        return
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    if RANK == 0:
        model.build((None, 6))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    assert_raises(hvd.errors.MismatchError, lambda: fit(model, callback), "ranks [0]", "build")


def check_double_reduction():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    variable = keras.Variable(np.ones(2, "float32"))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * 3.0)
    gradients = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [variable.value])
    assert_raises(ValueError, lambda: optimizer.apply(gradients, [variable]), "reduced already")


for check in [value for name, value in dict(globals()).items() if name.startswith("check_")]:
    check()
    print(f"rank {RANK}: {check.__name__} passed", flush=True)
common.hvd.shutdown()
