"""Trains a small network and writes the loss of each step: python loss_curve.py FLOAT_TYPE OUTPUT_FILE."""

import json
import sys

import common
import keras
import numpy as np
import sirtaki.tensorflow as hvd

STEPS, GLOBAL_BATCH = 50, 24
float_type, output = sys.argv[1:]

keras.utils.set_random_seed(5)
keras.config.set_floatx(float_type)
model = keras.Sequential(
    [
        keras.layers.Input((6, 6, 1)),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dense(3),
    ]
)
# The norm is reached in most steps: clipping must see the reduced gradients.
optimizer = keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.05, weight_decay=1e-3)
model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse")
hvd.broadcast_variables(model.variables, root_rank=0)

generator = np.random.default_rng(1)
inputs = generator.normal(size=(STEPS, GLOBAL_BATCH, 6, 6, 1)).astype(float_type)
targets = np.sin(inputs[..., 0].sum(axis=2)[..., :3])
share = GLOBAL_BATCH // hvd.size()
own = slice(hvd.rank() * share, (hvd.rank() + 1) * share)

losses = []
hvd.diagnostics.reset()
for step in range(STEPS):
    model.reset_metrics()
    local = float(model.train_on_batch(inputs[step, own], targets[step, own]))
    before = hvd.diagnostics.counters().allreduced
    assert before == (step + 1) * len(model.trainable_variables) + step, (before, step)
    # Keras reports the loss of this rank's share of the batch.
    losses.append(float(hvd.allreduce(np.array(local), name="loss")))
    common.assert_same_on_all_ranks(common.digest(model.trainable_variables), f"weights after step {step}")
if hvd.rank() == 0:
    with open(output, "w", encoding="utf-8") as file:
        json.dump(losses, file)
hvd.shutdown()
