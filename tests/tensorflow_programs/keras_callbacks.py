"""What `fit` and the callbacks do for all ranks together: metrics, decisions, numbers of batches, learning rates."""

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
SGD = keras.optimizers.SGD


def rows(count, seed=0):
    """Different data on each rank."""
    data = np.random.default_rng((seed, RANK))
    inputs = data.normal(size=(count, 4)).astype("float32")
    return inputs, inputs.sum(axis=1, keepdims=True) * (RANK + 1)


def make_model(rate=0.0, metrics=(), optimizer=None, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    options = {"loss": "mse", "metrics": list(metrics), **options}
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer or SGD(rate)), **options)
    return model


def fit(model, x, y=None, *callbacks, **options):
    options = {"batch_size": 8, "verbose": 0, "shuffle": False, **options}
    return model.fit(x, y, callbacks=list(callbacks), **options)


class Largest(keras.metrics.Metric):
    """Keeps no sum: the ranks' values are averaged, weighted by samples."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_true)))

    def result(self):
        return self.largest + 0  # Keras reads logs late: the variable itself will have moved on


def check_metrics_are_those_of_all_data():
    """With uneven parts, for training and validation, and for metrics that are no averages."""
    training, validation = rows(16 - 2 * RANK), rows(5 + 3 * RANK, seed=1)
    metrics = ["mae", keras.metrics.RootMeanSquaredError(name="rmse")]
    model = make_model(metrics=[*metrics, Largest()])
    callback = hvd.callbacks.MetricAverageCallback()
    history = fit(model, *training, callback, epochs=2, validation_data=validation).history
    for prefix, own in (("", training), ("val_", validation)):
        by_rank = hvd.allgather_object(own)
        inputs, targets = (np.concatenate([part[i] for part in by_rank]) for i in (0, 1))
        error = model.predict(inputs, verbose=0) - targets
        expected = {"loss": np.mean(error**2), "mae": np.mean(np.abs(error)), "rmse": np.sqrt(np.mean(error**2))}
        weights = [len(part[0]) for part in by_rank]
        expected["largest"] = np.average([max(0, part[1].max()) for part in by_rank], weights=weights)
        for key, value in expected.items():
            np.testing.assert_allclose(history[prefix + key], [value] * 2, rtol=1e-5, err_msg=prefix + key)
    assert_same_on_all_ranks(history, "averaged metrics")


class Batches(keras.utils.PyDataset):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return rows(8, seed=index)


def check_uneven_batches():
    """Ranks with different numbers of batches take equally many, whatever the data."""
    fewest, own = 3, 3 + RANK
    x, y = rows(8 * own - 2)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    filtered = dataset.filter(lambda x, y: True)
    split = rows(10 * own)

    def endless():
        yield from (rows(8, seed=i) for i in range(2 * own))

    cases = {
        "arrays": ((x, y), {}),
        "arrays in a dict": (({"a": x}, {"b": y}), {"dict": True}),
        "arrays with a split": (split, {"validation_split": 0.2}),
        "dataset": ((dataset,), {}),
        "dataset of unknown length": ((filtered,), {}),
        "dataset of unknown length, several steps at once": ((filtered,), {"steps_per_execution": 2}),
        "generator": ((endless(),), {"epochs": 1, "fewest": 6}),
        "generator with steps": ((endless(),), {"steps_per_epoch": own}),
        "Keras dataset": ((Batches(own),), {}),
    }
    for name, (data, options) in cases.items():
        options = dict(options)
        model = make_model(0.01, steps_per_execution=options.pop("steps_per_execution", 1))
        if options.pop("dict", False):
            inputs = {"a": keras.layers.Input((4,), name="a")}
            model = keras.Model(inputs, {"b": keras.layers.Dense(1, name="b")(inputs["a"])})
            model.compile(optimizer=hvd.DistributedOptimizer(SGD(0.01)), loss="mse")
        epochs, steps = options.pop("epochs", 2), options.pop("fewest", fewest if SIZE > 1 else own)
        if SIZE == 1 and name.startswith("generator"):
            steps = 2 * own if "steps" not in name else own
        hvd.diagnostics.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras says that the data have ended
            broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
            history = fit(model, *data, *([] if len(data) == 2 else [None]), broadcast, epochs=epochs, **options)
        count = hvd.diagnostics.counters().gradients
        assert count == steps * epochs * 2, f"{name}: {count} gradients in {epochs} epochs of {steps} steps"
        assert len(history.epoch) == epochs
        assert_same_on_all_ranks(digest(model.trainable_variables), name)
    if SIZE > 1:
        unlike = (filtered, None) if RANK == 0 else (x, y)
        assert_raises(hvd.errors.MismatchError, lambda: fit(make_model(), *unlike), "rank 1", "steps_per_epoch")


class OnBatch(keras.callbacks.Callback):
    """Does something at the end of one batch, on one rank."""

    def __init__(self, rank, batch, action):
        super().__init__()
        self.wanted, self.action, self.batches = (rank, batch), action, 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if (RANK, batch) == self.wanted:
            self.action(self.model)


class OnEpoch(keras.callbacks.Callback):
    """Does something at the end of one epoch, on one rank."""

    def __init__(self, rank, epoch, action):
        super().__init__()
        self.wanted, self.action = (rank, epoch), action

    def on_epoch_end(self, epoch, logs=None):
        if (RANK, epoch) == self.wanted:
            self.action(self.model)


def stop(model):
    model.stop_training = True


def check_one_decision_for_all_ranks():
    x, y = rows(32)
    last = SIZE - 1
    callback = OnBatch(last, 1, stop)
    fit(make_model(0.01), x, y, callback)
    assert callback.batches == 2
    history = fit(make_model(0.01), x, y, OnEpoch(last, 1, stop), epochs=5)
    assert history.epoch == [0, 1]

    poisoned = y.copy()
    if RANK == last:
        poisoned[9] = np.nan
    seen = OnBatch(-1, 0, stop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(make_model(0.01), x, poisoned, keras.callbacks.TerminateOnNaN(), seen)
    assert seen.batches == 2, seen.batches

    # Each by itself would stop at another epoch, and on some ranks never.
    def worsening(epoch):
        return [0.1, 0.2, 0.0][epoch] if RANK == 0 else [0.9, 0.1, 0.0][epoch]

    class Curve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["curve"] = worsening(epoch)

    averaged = [worsening(epoch) / SIZE + (SIZE - 1) / SIZE * [0.9, 0.1, 0.0][epoch] for epoch in range(3)]
    assert SIZE == 1 or averaged[1] < averaged[0]
    stopping = keras.callbacks.EarlyStopping(monitor="curve", patience=1, mode="min")
    averaging = hvd.callbacks.MetricAverageCallback()
    history = fit(make_model(0.01), x, y, Curve(), averaging, stopping, epochs=3)
    assert_same_on_all_ranks(history.epoch, "epochs")
    assert len(history.epoch) == (2 if SIZE == 1 else 3)

    # Nobody has asked for averages: they are made where a callback decides, on one rank or on all.
    for everywhere in (True, False):
        plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=0, min_delta=1e9)
        model = make_model(0.01)
        history = fit(model, x, y, *([plateau] if everywhere or RANK == 0 else []), epochs=3).history
        assert_same_on_all_ranks(history["loss"], "losses")
        rate = float(model.optimizer.learning_rate)
        assert_same_on_all_ranks(rate, "learning rates")
        np.testing.assert_allclose(rate, 0.01 * 0.5**2)
    model = make_model(0.01)
    fit(model, x, y, OnEpoch(last, 0, lambda model: setattr(model.optimizer, "learning_rate", 7.0)), epochs=2)
    assert_same_on_all_ranks(float(model.optimizer.learning_rate), "learning rates")
    assert float(model.optimizer.learning_rate) == (np.float32(0.01) if SIZE > 1 else 7.0)


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate))


def check_learning_rates():
    x, y = rows(32)  # four batches
    rates = Rates()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2)
    later = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.1, start_epoch=2)
    history = fit(make_model(0.1), x, y, warmup, later, rates, epochs=3)
    expected = [0.1 / SIZE * (1 + (i + 1) / 8 * (SIZE - 1)) for i in range(8)] + [0.01] * 4
    np.testing.assert_allclose(rates.seen, expected, rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], expected[3::4], rtol=1e-5)

    rates = Rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.1, multiplier=lambda epoch: 1 / (1 + epoch), staircase=False, momentum_correction=False
    )
    fit(make_model(0.1), x, y, schedule, rates, epochs=2)
    np.testing.assert_allclose(rates.seen, [0.1 / (1 + i / 4) for i in range(8)], rtol=1e-5)

    # The velocity of Keras's SGD contains the learning rate; corrected, it is what it would be at the new one.
    for corrected in (True, False):
        model = make_model(optimizer=SGD(0.1, momentum=0.9))
        schedule = hvd.callbacks.LearningRateScheduleCallback(
            0.1, multiplier=lambda epoch: 0.1**epoch, momentum_correction=corrected
        )
        velocities = []

        class Velocities(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                velocities.append(model.optimizer.momentums[0].numpy())  # noqa: B023

        fit(model, x, y, schedule, epochs=1)
        before = model.optimizer.momentums[0].numpy()
        fit(model, x, y, schedule, Velocities(), epochs=2, initial_epoch=1)
        np.testing.assert_allclose(velocities[0], before * (0.1 if corrected else 1.0), rtol=1e-5)
    endless = (rows(8) for _ in iter(int, 1))
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1)
    fit(make_model(0.1), endless, None, warmup, steps_per_epoch=2)
    assert warmup.steps_per_epoch == 2


def check_best_model_checkpoint():
    x, y = rows(32)
    path = os.path.join(SCRATCH, f"best_of_{SIZE}_{RANK}.keras")
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=path)
    model = make_model(0.01)
    fit(model, x, y, hvd.callbacks.BroadcastGlobalVariablesCallback(0), best, epochs=2)
    assert os.path.exists(path) == (RANK == 0)
    if RANK == 0:
        loaded = keras.models.load_model(path)
        assert digest(loaded.weights) == digest(model.weights)
    unset = hvd.callbacks.BestModelCheckpoint()
    assert_raises(ValueError, lambda: fit(make_model(), x, y, unset), "filepath")


def check_local_layers():
    """Gradients of local layers are not reduced, their weights and slots not broadcast, by optimizer and tape."""
    for scaled in (True, False):
        keras.utils.set_random_seed(1)
        inputs = keras.layers.Input((4,))
        head = keras.layers.Dense(1, name="head")
        model = keras.Model(inputs, head(keras.layers.Dense(3, name="body")(inputs)))
        head.kernel.assign(head.kernel + RANK)
        own_head = head.kernel.numpy()
        x, y = rows(8)

        def gradients(make_tape, model=model, x=x, y=y):
            with make_tape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        local = gradients(tf.GradientTape)
        reduced = gradients(
            lambda head=head, scaled=scaled: hvd.PartialDistributedGradientTape(
                tf.GradientTape(), local_layers=head, scale_local_gradients=scaled
            )
        )
        by_rank = hvd.allgather_object([gradient.numpy() for gradient in local])
        factor = SIZE if scaled else 1
        for i, (gradient, variable) in enumerate(zip(reduced, model.trainable_variables, strict=True)):
            mean = np.mean([gradients[i] for gradients in by_rank], axis=0)
            expected = by_rank[RANK][i] / factor if "head" in variable.path else mean
            np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6, err_msg=variable.path)

        before = [variable.numpy() for variable in model.trainable_variables]
        optimizer = SGD(1.0, momentum=0.5)
        if scaled:
            optimizer = hvd.PartialDistributedOptimizer(optimizer, local_layers=[head])
        else:
            optimizer = hvd.DistributedOptimizer(optimizer, scale_local_gradients=False)
            for variable in head.trainable_variables:
                optimizer.register_local_var(variable)
        model.compile(optimizer=optimizer, loss="mse")
        with warnings.catch_warnings():
            warnings.simplefilter("error", hvd.DifferentWeightsWarning)
            fit(model, x, y)
        for i, (old, variable) in enumerate(zip(before, model.trainable_variables, strict=True)):
            mean = np.mean([gradients[i] for gradients in by_rank], axis=0)
            expected = by_rank[RANK][i] / factor if "head" in variable.path else mean
            np.testing.assert_allclose(old - variable.numpy(), expected, rtol=1e-4, atol=1e-5, err_msg=variable.path)
        slot = next(v for v in optimizer.variables if "head_kernel" in v.path)
        kept = slot.numpy(), head.kernel.numpy()
        seen = []
        first = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs, s=seen, h=head, o=slot: s.append((o.numpy(), h.kernel.numpy()))
        )
        fit(model, x, y, hvd.callbacks.BroadcastGlobalVariablesCallback(0), first)
        np.testing.assert_array_equal(kept[0], seen[0][0])
        np.testing.assert_array_equal(kept[1], seen[0][1])
        of_root = hvd.broadcast_object(own_head)
        assert RANK == 0 or not np.array_equal(own_head, of_root)
        assert_same_on_all_ranks(digest(model.get_layer("body").weights), "weights of the shared layer")


def check_train_on_batch_warns():
    model = make_model()
    model.compile(optimizer=SGD(0.1), loss="mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model.train_on_batch(*rows(8))
    told = [one for one in caught if issubclass(one.category, hvd.UnreducedGradientsWarning)]
    assert len(told) == (1 if SIZE > 1 else 0)


def check_bypassing_raises():
    optimizer = hvd.DistributedOptimizer(SGD(0.1))
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer.build([variable])
    gradient = tf.ones(2)
    assert_raises(
        hvd.errors.UnreducedGradientsError, lambda: optimizer.update_step(gradient, variable, tf.constant(0.1)), "apply"
    )
    optimizer.apply([gradient], [variable])
    np.testing.assert_allclose(variable.numpy(), [-0.1, -0.1])


def check_shard():
    count = 4 * SIZE + SIZE - 1
    x, y = np.arange(count), np.arange(count) * 10
    own = list(range(RANK, 4 * SIZE, SIZE))
    all_own = list(range(RANK, count, SIZE))
    for dropped, expected in (("drop", own), ("keep", all_own)):
        assert list(hvd.shard(x, dropped)) == expected
        parts = hvd.shard({"x": x, "y": [y]}, dropped)
        assert list(parts["y"][0]) == [10 * i for i in expected]
        known = tf.data.Dataset.from_tensor_slices((x, y))
        for dataset in (known, known.filter(lambda x, y: True)):
            assert [int(i) for i, _ in hvd.shard(dataset, dropped)] == expected, (dropped, dataset)
        ragged = known.map(lambda x, y: (tf.range(x), y)).shard(1, 0)
        assert [len(i) for i, _ in hvd.shard(ragged, dropped)] == expected
    mine, labels, weights = hvd.shard((x, y), "pad")
    assert len(mine) == len(labels) == -(-count // SIZE)
    totals = hvd.allgather_object(float(np.sum(weights * mine)))
    assert sum(totals) == x.sum()
    numbers = [Batches(count), hvd.shard(Batches(count)), hvd.shard(Batches(count), "keep")]
    assert [len(one) for one in numbers[1:]] == [4, len(all_own)]
    np.testing.assert_array_equal(numbers[1][2][0], numbers[0][RANK + 2 * SIZE][0])
    assert_raises(hvd.errors.InvalidArgumentError, lambda: hvd.shard((x, y[1:])), "equally many")
    assert_raises(hvd.errors.InvalidArgumentError, lambda: hvd.shard(x, "pad"), "tuple")
    assert_raises(hvd.errors.InvalidArgumentError, lambda: hvd.shard(x, "lose"), "drop")
    assert_raises(TypeError, lambda: hvd.shard(iter([1])), "tf.data.Dataset")
    keras.utils.set_random_seed(3)
    hvd.set_random_seed(3)
    draws = hvd.allgather_object(float(np.random.rand()))
    assert len(set(draws)) == SIZE


for check in [value for name, value in dict(globals()).items() if name.startswith("check_")]:
    check()
    print(f"rank {RANK}: {check.__name__} passed", flush=True)
common.hvd.shutdown()
