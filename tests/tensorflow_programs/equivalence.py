"""Twenty steps of training for each optimizer and option, here or in one process with the joined batch.

On one rank this is plain Keras, without anything of Sirtaki in it: the reference. On several, each rank trains on its
part of every batch. Writes the weights after training, which the test compares.
"""

import itertools
import sys
import warnings
from dataclasses import dataclass, field

import common
import keras
import numpy as np
import sirtaki
import sirtaki.tensorflow as hvd
import tensorflow as tf
from common import assert_same_on_all_ranks, digest

RANK, SIZE = hvd.rank(), hvd.size()
REFERENCE = SIZE == 1
STEPS, BATCH = 20, 8
keras.config.set_floatx("float64")
warnings.simplefilter("ignore")  # Keras tells about missing gradients
data = np.random.default_rng(5)
INPUTS = data.normal(size=(STEPS * BATCH, 6))
TOKENS = data.integers(0, 9, size=(STEPS * BATCH, 3))
TARGETS = np.tanh(INPUTS @ data.normal(size=(6, 2)))
SGD = keras.optimizers.SGD
own_set = hvd.global_process_set if REFERENCE else hvd.add_process_set(range(SIZE))


def mine(array, batch=BATCH):
    """This rank's part of each batch."""
    part = batch // SIZE
    return np.concatenate([array[i + RANK * part : i + (RANK + 1) * part] for i in range(0, len(array), batch)])


def dense_model():
    inputs = keras.layers.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", name="hidden")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, name="top")(hidden))


def with_embedding():
    tokens = keras.layers.Input((3,), dtype="int32")
    flat = keras.layers.Flatten()(keras.layers.Embedding(9, 2, name="table")(tokens))
    return keras.Model(tokens, keras.layers.Dense(2, name="top")(flat))


def frozen():
    model = dense_model()
    model.get_layer("hidden").trainable = False
    return model


def constrained():
    inputs = keras.layers.Input((6,))
    outputs = keras.layers.Dense(2, kernel_constraint=keras.constraints.MaxNorm(0.7), kernel_regularizer="l2")(inputs)
    return keras.Model(inputs, outputs)


class WithUnused(keras.Model):
    """Has a layer that the loss does not depend on, and a model inside."""

    def __init__(self):
        super().__init__()
        self.unused = keras.layers.Dense(3)
        self.inside = dense_model()

    def build(self, shape):
        self.unused.build(shape)
        self.inside.build(shape)

    def call(self, inputs):
        return self.inside(inputs)


class OwnStep(WithUnused):
    """Trains in its own way, through the optimizer."""

    def train_step(self, batch):
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs) - targets) ** 2)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


def two_outputs():
    inputs = keras.layers.Input((6,))
    hidden = keras.layers.Dense(4, activation="relu")(inputs)
    return keras.Model(inputs, {"first": keras.layers.Dense(1)(hidden), "second": keras.layers.Dense(1)(hidden)})


@dataclass
class Case:
    """A training and what it is compared with.

    Attributes:
        optimizer: makes the optimizer.
        reference: makes the one of the plain process, if it is not the same.
        wrap: the arguments of DistributedOptimizer.
        model: makes the model; the arguments of `compile` beside optimizer and loss.
        batch: of the plain process, if it is not that of all ranks together.
        gradients: how many a step reduces, if not one for each trainable weight.
        one_by_one: calls train_on_batch.
    """

    optimizer: object
    reference: object = None
    wrap: dict = field(default_factory=dict)
    model: object = dense_model
    compile: dict = field(default_factory=dict)
    batch: int = BATCH
    gradients: int | None = None
    one_by_one: bool = False
    around: object = staticmethod(lambda optimizer: optimizer)


def optimizers():
    """One of each kind that this version of Keras ships."""
    special = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap"}
    kinds = {name: kind for name, kind in vars(keras.optimizers).items() if isinstance(kind, type)}
    found = {name: Case(lambda k=kind: k(0.02)) for name, kind in kinds.items() if name not in special}
    assert len(found) >= 12, found
    if "MultiOptimizer" in kinds:
        found["MultiOptimizer"] = Case(
            lambda: keras.optimizers.MultiOptimizer(
                keras.optimizers.OptimizerMap(SGD(0.1), {"hidden/.*": keras.optimizers.Adam(0.02)})
            )
        )
    scaled = keras.optimizers.LossScaleOptimizer
    found["LossScaleOptimizer outside"] = Case(
        lambda: SGD(0.1), reference=lambda: scaled(SGD(0.1)), around=lambda optimizer: scaled(optimizer)
    )
    found["LossScaleOptimizer inside"] = Case(lambda: scaled(SGD(0.1), initial_scale=64.0))
    return found


def options():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.2, 5, 0.5)
    adam = lambda **more: keras.optimizers.Adam(0.02, **more)  # noqa: E731
    by_layer = lambda model: [[layer.kernel, layer.bias] for layer in model.layers[1:]]  # noqa: E731
    return {
        "momentum": Case(lambda: SGD(0.1, momentum=0.9, nesterov=True)),
        "accumulation": Case(lambda: adam(gradient_accumulation_steps=2)),
        "clipnorm": Case(lambda: adam(clipnorm=0.05)),
        "global_clipnorm": Case(lambda: SGD(0.1, global_clipnorm=0.05)),
        "clipvalue": Case(lambda: SGD(0.1, clipvalue=0.01)),
        "weight_decay": Case(lambda: SGD(0.1, weight_decay=0.1)),
        "ema": Case(lambda: adam(use_ema=True, ema_overwrite_frequency=3)),
        "schedule": Case(lambda: SGD(schedule)),
        "loss_scale_factor": Case(lambda: SGD(0.1, loss_scale_factor=16.0)),
        "sum": Case(lambda: SGD(0.1), reference=lambda: SGD(0.1 * 2), wrap={"op": hvd.Sum}),
        "predivide": Case(adam, wrap={"gradient_predivide_factor": 3.0}),
        "process set": Case(adam, wrap={"process_set": own_set}),
        "groups": Case(adam, wrap={"groups": 2}),
        "groups by variable": Case(adam, wrap={"groups": by_layer}),
        "passes averaged": Case(
            adam,
            wrap={"backward_passes_per_step": 2, "average_aggregated_gradients": True},
            batch=2 * BATCH,
            gradients=2,
        ),
        "passes summed": Case(
            lambda: SGD(0.1),
            reference=lambda: SGD(0.2),
            wrap={"backward_passes_per_step": 2},
            batch=2 * BATCH,
            gradients=2,
        ),
        "passes and loss scale": Case(
            lambda: SGD(0.1),
            wrap={"backward_passes_per_step": 4, "average_aggregated_gradients": True},
            around=keras.optimizers.LossScaleOptimizer,
            batch=4 * BATCH,
            gradients=1,
        ),
        "embedding": Case(adam, model=with_embedding),
        # With Adam, rows without a gradient would stand still if it is sparse, and go on if it is dense.
        "embedding as dense": Case(lambda: SGD(0.1), model=with_embedding, wrap={"sparse_as_dense": True}),
        "embedding, passes": Case(
            lambda: SGD(0.1),
            model=with_embedding,
            wrap={"backward_passes_per_step": 2, "average_aggregated_gradients": True},
            batch=2 * BATCH,
            gradients=1.5,
        ),
        "embedding, groups": Case(adam, model=with_embedding, wrap={"groups": 1}),
        "frozen layer": Case(adam, model=frozen),
        "constraint and regularizer": Case(lambda: SGD(0.1), model=constrained),
        "missing gradients": Case(adam, model=WithUnused, gradients=4),
        "own train_step": Case(adam, model=OwnStep, gradients=4),
        "two outputs": Case(adam, model=two_outputs),
        "eager": Case(adam, compile={"run_eagerly": True}),
        "eager, groups": Case(adam, compile={"run_eagerly": True}, wrap={"groups": by_layer}),
        "eager, passes": Case(
            adam,
            compile={"run_eagerly": True},
            wrap={"backward_passes_per_step": 2, "average_aggregated_gradients": True},
            batch=2 * BATCH,
            gradients=2,
        ),
        "steps_per_execution": Case(adam, compile={"steps_per_execution": 5}),
        "steps_per_execution, passes": Case(
            adam,
            compile={"steps_per_execution": 5},
            wrap={"backward_passes_per_step": 2, "average_aggregated_gradients": True},
            batch=2 * BATCH,
            gradients=2,
        ),
        "train_on_batch": Case(adam, one_by_one=True),
    }


def fit(model, case):
    takes_tokens = model.layers and "Embedding" in {type(layer).__name__ for layer in model.layers}
    inputs = mine(TOKENS if takes_tokens else INPUTS)
    targets = mine(TARGETS)
    if case.model is two_outputs:
        targets = {"first": targets[:, :1], "second": targets[:, 1:]}
    size = case.batch if REFERENCE else BATCH // SIZE
    if case.one_by_one:
        for begin in range(0, len(inputs), size):
            model.train_on_batch(inputs[begin : begin + size], targets[begin : begin + size])
    else:
        model.fit(inputs, targets, batch_size=size, shuffle=False, verbose=0)


def train(name, case):
    keras.utils.set_random_seed(3)
    model = case.model()
    if not model.built:
        model.build((None, 6))
    optimizer = (case.reference or case.optimizer)() if REFERENCE else case.optimizer()
    if not REFERENCE:
        groups = case.wrap.get("groups")
        wrap = {**case.wrap, "groups": groups(model)} if callable(groups) else case.wrap
        optimizer = case.around(hvd.DistributedOptimizer(optimizer, **wrap))
    compile_options = dict(case.compile)
    if not REFERENCE or case.batch == BATCH:
        model.compile(optimizer=optimizer, loss="mse", **compile_options)
    else:
        compile_options.pop("steps_per_execution", None)
        model.compile(optimizer=optimizer, loss="mse", **compile_options)
    before = digest(model.trainable_variables)
    hvd.diagnostics.reset()
    bytes_before = sent()
    fit(model, case)
    assert digest(model.trainable_variables) != before, f"{name}: nothing was learnt"
    if not REFERENCE:
        check_what_was_reduced(name, case, model, sent() - bytes_before)
    return [weight.numpy() for weight in model.weights]


def sent():
    collectives = sirtaki.metrics()["collectives"]
    return collectives["allreduce"]["bytes"]


def check_what_was_reduced(name, case, model, allreduced_bytes):
    """Every gradient was reduced, in full, as often as it should, and the ranks agree."""
    count = hvd.diagnostics.counters().gradients
    per_step = len(model.trainable_variables) if case.gradients is None else case.gradients
    assert count == per_step * STEPS, f"{name}: {count} gradients were reduced in {STEPS} steps, not {per_step} in each"
    gathered = hvd.diagnostics.counters().allgathered
    if case.gradients is None and gathered == 0:
        expected = 8 * sum(int(np.prod(weight.shape)) for weight in model.trainable_variables) * STEPS
        assert allreduced_bytes == expected, f"{name}: {allreduced_bytes} bytes were reduced and not {expected}"
    assert_same_on_all_ranks(digest(model.trainable_variables), f"{name}: weights")
    optimizer = model.optimizer
    state = [variable for part in parts(optimizer) for variable in part.variables]
    assert_same_on_all_ranks(digest(state), f"{name}: state of the optimizer")


def parts(optimizer):
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] + ([] if inner is None else parts(inner))


results = {}
cases = {**optimizers(), **options()}
for name, case in cases.items():
    for position, weight in zip(itertools.count(), train(name, case), strict=False):
        results[f"{name}/{position}"] = weight
    print(f"rank {RANK}: {name} passed", flush=True)
if RANK == 0:
    np.savez(sys.argv[1], **results)
common.hvd.shutdown()
