"""A small convolutional network learns scikit-learn's handwritten digits on all ranks together.

    sirtakirun -np 2 python examples/keras_digits.py

The lines marked with (hvd) are what makes a Keras script run on several ranks. The last line proves that
the ranks hold identical weights; the exit status is 1 if they do not.
"""

import hashlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import sirtaki.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

GLOBAL_BATCH = 64
EPOCHS = 20

hvd.init()  # (hvd)

# Each rank gets its share of the cores; without this, every rank starts a thread for each of them.
cores = max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
tf.config.threading.set_intra_op_parallelism_threads(cores)
tf.config.threading.set_inter_op_parallelism_threads(cores)
keras.utils.set_random_seed(2024)

digits = load_digits()
images = (digits.images[..., None] / 16.0).astype("float32")
labels = digits.target
order = np.random.default_rng(0).permutation(len(images))
held_out, training = order[:360], order[360:]
# Every rank trains on its own part (hvd); parts of one size, so that all take equally many steps.
share = len(training) // hvd.size()
own = training[hvd.rank() * share : (hvd.rank() + 1) * share]

model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(10),
    ]
)
steps = EPOCHS * -(-share // (GLOBAL_BATCH // hvd.size()))  # the last batch of an epoch is a smaller one
learning_rate = keras.optimizers.schedules.CosineDecay(0.003, steps)
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(learning_rate))  # (hvd)
model.compile(
    optimizer=optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    images[own],
    labels[own],
    batch_size=GLOBAL_BATCH // hvd.size(),
    epochs=EPOCHS,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # (hvd)
        hvd.callbacks.MetricAverageCallback(),  # (hvd)
    ],
    verbose=2 if hvd.rank() == 0 else 0,  # (hvd)
)

weights = b"".join(keras.ops.convert_to_numpy(weight).tobytes() for weight in model.trainable_weights)
digests = hvd.allgather_object(hashlib.sha256(weights).hexdigest())
identical = len(set(digests)) == 1
if hvd.rank() == 0:
    _, accuracy = model.evaluate(images[held_out], labels[held_out], batch_size=360, verbose=0)
    print(f"held-out accuracy: {accuracy:.4f}")
    verdict = "identical on" if identical else f"DIFFERENT ({digests}) between"
    print(f"trainable weights: sha256 {digests[0]}, {verdict} all {hvd.size()} ranks", flush=True)
hvd.shutdown()
sys.exit(0 if identical else 1)
