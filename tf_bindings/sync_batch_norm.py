"""`SyncBatchNormalization`: batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from sirtaki import ProcessSet, Sum, global_process_set
from sirtaki.tensorflow import names
from sirtaki.tensorflow.reductions import allreduce


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Keras's `BatchNormalization` with the mean and variance of all ranks' batches together.

    In training, forward and backward, it is what one process with the whole batch computes; ranks may have different
    numbers of examples, and masks. The moving statistics are therefore equal on all ranks. It costs two small
    reductions for each layer and step: the variance is computed from the distances to the common mean, since a
    difference of mean squares would lose its digits.

    A saved model has a plain `BatchNormalization` with ``synchronized=True`` in its place, so that plain Keras loads
    it; `load_model` of `sirtaki.tensorflow.keras` makes it synchronised again.

    Args:
        fused: Horovod's; only False is possible.
        process_set: the ranks whose batches make one.
        **kwargs: those of `keras.layers.BatchNormalization`.

    Raises:
        ValueError: `fused` is True.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(8), hvd.SyncBatchNormalization(), keras.layers.ReLU()])
    """

    def __init__(self, fused: bool = False, *, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True: it reduces between the two steps")
        kwargs["synchronized"] = True
        super().__init__(**kwargs)
        self._sirtaki_process_set = process_set

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """What Keras writes into saved models."""
        return keras.layers.BatchNormalization

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        axes = list(self._reduction_axes)
        if mask is None:
            weights = tf.ones_like(inputs)
        else:
            weights = tf.broadcast_to(tf.cast(tf.expand_dims(mask, -1), inputs.dtype), tf.shape(inputs))
        total = tf.reduce_sum(inputs * weights, axes)
        count = tf.reduce_sum(weights, axes)
        sums = self._over_ranks(tf.stack([total, count]), "mean")
        mean = tf.math.divide_no_nan(sums[0], sums[1])
        shape = [1 if axis in axes else size for axis, size in enumerate(tf.unstack(tf.shape(inputs)))]
        squares = tf.reduce_sum(weights * tf.square(inputs - tf.reshape(mean, shape)), axes)
        variance = tf.math.divide_no_nan(self._over_ranks(squares, "variance"), sums[1])
        return mean, variance

    def _over_ranks(self, tensor: Any, part: str) -> Any:
        # A name with the layer's in it: what one layer calls must not meet what another does, in whatever order eager
        # ranks get there.
        name = names.unique(f"SyncBatchNormalization.{self.name}.{part}")
        return allreduce(tensor, op=Sum, name=name, process_set=self._sirtaki_process_set)
