"""Trains deterministically, writes a hash of the weights per step: python repeatable.py OUTPUT_FILE."""

import json
import sys

import common
import keras
import numpy as np
import sirtaki.tensorflow as hvd
import tensorflow as tf

STEPS = 12
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(3)
model = keras.Sequential(
    [
        keras.layers.Input((10, 10, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(5),
    ]
)
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
data = np.random.default_rng(hvd.rank())

digests = []
for step in range(STEPS):
    model.train_on_batch(data.normal(size=(8, 10, 10, 1)), data.normal(size=(8, 5)))
    digests.append(common.digest(model.trainable_variables))
    common.assert_same_on_all_ranks(digests[-1], f"weights after step {step}")
if hvd.rank() == 0:
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(digests, file)
hvd.shutdown()
