"""`DistributedGradientTape`: for custom training loops."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import tensorflow as tf
from sirtaki import Average, ProcessSet, global_process_set
from sirtaki.tensorflow import names
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.gradient_reduction import (
    GradientReduction,
    Groups,
    mark_as_reduced,
    resolve_for_gradients,
    resolve_groups,
)


class DistributedGradientTape(tf.GradientTape):
    """A `tf.GradientTape` whose `gradient` is reduced over all ranks.

    Wrap a tape before or after it has recorded; both then are the same recording. Apply the result with a
    plain optimizer: a `DistributedOptimizer`, which would reduce it again, refuses it.

    Args:
        gradtape: the `tf.GradientTape`, persistent or not.
        device_dense, device_sparse, num_groups: as for `DistributedOptimizer`.
        compression, sparse_as_dense, op, gradient_predivide_factor, process_set, scale_local_gradients: likewise.
        groups: a number of groups, or lists of sources whose gradients are reduced as one.

    Raises:
        TypeError: `gradtape` is not a `tf.GradientTape`.
        ValueError: it is distributed already, or an argument cannot be used.

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
        num_groups: int = 0,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
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
            groups=resolve_groups(num_groups, groups),
            scale_local_gradients=scale_local_gradients,
        )
        # One recording under two names: entering, watching or stopping either is seen by both.
        self.__dict__ = gradtape.__dict__
        self._sirtaki_reduction = reduction

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
        reduction = dataclasses.replace(self._sirtaki_reduction, name=names.unique(self._sirtaki_reduction.name))
        reduced = reduction(tf.nest.flatten(local), tf.nest.flatten(sources))
        for gradient in reduced:
            mark_as_reduced(gradient)
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """Makes a source this rank's own: its gradient is not reduced. On all ranks alike."""
        self._sirtaki_reduction.local_variables.add_variable(source)

    def jacobian(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError: use the tape that was wrapped."""
        _refuse("jacobian")

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError: use the tape that was wrapped."""
        _refuse("batch_jacobian")


class PartialDistributedGradientTape(DistributedGradientTape):
    """A `DistributedGradientTape` for models of which some layers belong to each rank alone.

    Args:
        local_layers: a Keras layer or a list of layers, whose gradients are not reduced. They may be built later.

    Other arguments are those of `DistributedGradientTape`.

    Example:
        >>> with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[head]) as tape:
        ...     loss = compute_loss(model(images), labels)
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
        num_groups: int = 0,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        local_layers: Any = None,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            gradtape,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
        self._sirtaki_reduction.local_variables.add_layers(local_layers or [])


def _refuse(method: str) -> NoReturn:
    raise NotImplementedError(
        f"{method} of a distributed tape: gradients are sums over batches, so all ranks' together make that of the "
        "whole batch, but a jacobian has a row for each example and there is nothing to reduce. Call it on the "
        "tf.GradientTape itself, which was wrapped, and put together what you need with hvd.allgather"
    )
