"""`DistributedGradientTape`: for custom training loops."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from sirtaki import Average, ProcessSet, global_process_set
from sirtaki.tensorflow import names
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.gradient_reduction import GradientReduction, mark_as_reduced, resolve_for_gradients


class DistributedGradientTape(tf.GradientTape):
    """A `tf.GradientTape` whose `gradient` is reduced over all ranks.

    Wrap a tape before or after it has recorded; both then are the same recording. Apply the result with a
    plain optimizer: a `DistributedOptimizer`, which would reduce it again, refuses it. `jacobian` and
    `batch_jacobian` are not reduced.

    Args:
        gradtape: the `tf.GradientTape`, persistent or not.
        device_dense, device_sparse: Horovod's; they change nothing here.
        compression, sparse_as_dense, op, gradient_predivide_factor, process_set: as for `DistributedOptimizer`.

    Raises:
        TypeError: `gradtape` is not a `tf.GradientTape`.
        ValueError: it is distributed already.

    Example:
        >>> with tf.GradientTape() as tape:
        ...     loss = compute_loss(model(images), labels)
        >>> tape = hvd.DistributedGradientTape(tape)
        >>> optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
        ...                               model.trainable_variables))
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        *,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(f"DistributedGradientTape needs a tf.GradientTape and got {gradtape!r}")
        if isinstance(gradtape, DistributedGradientTape) or "_sirtaki_reduction" in gradtape.__dict__:
            raise ValueError("this tape is distributed already: a second wrapper would reduce gradients twice")
        reduction = GradientReduction(
            name="DistributedGradientTape",
            op=resolve_for_gradients(op),
            sparse_as_dense=sparse_as_dense,
            compression=compression,
            predivide_factor=gradient_predivide_factor,
            process_set=process_set,
        )
        # One recording under two names: entering, watching or stopping either is seen by both.
        self.__dict__ = gradtape.__dict__
        self._sirtaki_reduction = reduction
        self._sirtaki_computes_jacobian = False

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradient of `target` with respect to `sources`, reduced; arguments as `tf.GradientTape`'s.

        Every rank must ask for the gradients of the same sources in the same order.
        """
        local = super().gradient(target, sources, output_gradients, unconnected_gradients)
        if self._sirtaki_computes_jacobian:
            return local
        reduction = dataclasses.replace(self._sirtaki_reduction, name=names.unique(self._sirtaki_reduction.name))
        reduced = reduction(tf.nest.flatten(local))
        for gradient in reduced:
            mark_as_reduced(gradient)
        return tf.nest.pack_sequence_as(sources, reduced)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The jacobian of this rank's target, not reduced; arguments as `tf.GradientTape`'s."""
        with self._local_gradients():
            return super().jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The jacobians of this rank's examples, not reduced; arguments as `tf.GradientTape`'s."""
        with self._local_gradients():
            return super().batch_jacobian(*args, **kwargs)

    @contextlib.contextmanager
    def _local_gradients(self) -> Iterator[None]:
        # tf.GradientTape computes jacobians through self.gradient.
        self._sirtaki_computes_jacobian = True
        try:
            yield
        finally:
            self._sirtaki_computes_jacobian = False
