"""`DistributedOptimizer`: any Keras 3 optimizer, with gradients that are reduced over all ranks.

Keras 3 has no hook between a gradient and its use, so the reduction happens at the entry of `apply`: before
clipping, weight decay, gradient accumulation and moving averages, which then see what one process with the
whole batch would see. Loss scaling needs care: `LossScaleOptimizer.apply` decides from the gradients whether
to skip the step, so if ours is inside it, the reduction is moved before that decision.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import keras
from sirtaki import Average, ProcessSet, global_process_set
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.gradient_reduction import GradientReduction, is_marked_as_reduced, resolve_for_gradients

# Set while a LossScaleOptimizer that has reduced already runs the optimizer inside it.
_reduced_outside: ContextVar[bool] = ContextVar("sirtaki_gradients_reduced_outside", default=False)
_counter = itertools.count()


class _Reducing:
    """The part that a distributed optimizer has in addition to its original class."""

    _sirtaki_reduction: GradientReduction
    _trainable_variables: list[Any]

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Reduces the gradients over all ranks, then does what the original optimizer does."""
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if not _reduced_outside.get():
            grads = reduce_for(self, grads, trainable_variables)
        return super().apply(grads, trainable_variables)  # type: ignore[misc]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    *,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes a Keras optimizer reduce its gradients over all ranks before it applies them.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, built or not. It is changed itself and keeps its state;
            it remains an instance of its class, and a saved model names the original class, so that plain
            Keras loads it. After loading or cloning a model, wrap its optimizer again.
        name: what the reductions are called, the same on every rank. Without it, optimizers are numbered
            in the order in which this function is called, which must then be the same on every rank.
        device_dense, device_sparse: Horovod's; they change nothing here.
        compression: how gradients travel, see `Compression`.
        gradient_predivide_factor: with `Average`, divides the gradients by this number before they are combined, and
            multiplies the average by it: for 16-bit gradients whose sum would not fit.
        op: `Average` (the default), `Sum` or `Adasum`.
        process_set: the ranks whose gradients are combined; only they may train with the optimizer.
        sparse_as_dense: reduces `tf.IndexedSlices`, as embeddings have, as dense tensors; by default the
            slices of all ranks are gathered, which is less to send if few rows are touched.

    Returns:
        The optimizer.

    Raises:
        TypeError: it is not a Keras 3 optimizer.
        ValueError: it reduces gradients already, or `op` or `gradient_predivide_factor` cannot be used.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
        >>> model.compile(optimizer=optimizer, loss="mse")
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"DistributedOptimizer works with Keras on TensorFlow, and Keras runs on "
            f"{keras.backend.backend()}; set KERAS_BACKEND=tensorflow"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer needs a Keras 3 optimizer object, such as keras.optimizers.SGD(), and got "
            f"{optimizer!r}"
        )
    if any(isinstance(part, _Reducing) for part in _parts(optimizer)):
        raise ValueError(
            f"the optimizer {optimizer.name!r} reduces its gradients already: a second DistributedOptimizer "
            "around it would reduce them twice; wrap it once"
        )
    reduction = GradientReduction(
        name=f"DistributedOptimizer.{name or next(_counter)}",
        op=resolve_for_gradients(op),
        sparse_as_dense=sparse_as_dense,
        compression=compression,
        predivide_factor=gradient_predivide_factor,
        process_set=process_set,
    )
    _move_reduction_before_finite_check()
    # Past Keras's and TensorFlow's __setattr__, which would track the attribute as state to save.
    object.__setattr__(optimizer, "_sirtaki_reduction", reduction)
    object.__setattr__(optimizer, "__class__", _distributed_class(type(optimizer)))
    return optimizer


def reduces_gradients(optimizer: Any) -> bool:
    """Whether every gradient that `optimizer` applies is reduced on the way."""
    if isinstance(optimizer, _Reducing):
        return True
    inner = _inner(optimizer)
    return bool(inner) and all(reduces_gradients(part) for part in inner)


def reduce_for(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
    """Reduces gradients the way that the distributed `optimizer` does."""
    if variables is None and optimizer.built:
        variables = optimizer._trainable_variables
    grads = list(grads)
    if any(is_marked_as_reduced(gradient) for gradient in grads):
        raise ValueError(
            f"the gradients for the optimizer {optimizer.name!r} come from a DistributedGradientTape and are reduced "
            "already; DistributedOptimizer would reduce them again. Use one of the two."
        )
    if variables is not None and len(variables) != len(grads):
        variables = None  # Keras explains it better in a moment
    reduction: GradientReduction = optimizer._sirtaki_reduction
    return reduction(grads, variables)


_distributed_classes: dict[type[Any], type[Any]] = {}


def _distributed_class(original: type[Any]) -> type[Any]:
    """A subclass that reduces. Instances show the original as their `__class__`.

    Keras writes `obj.__class__` into saved models, compares it, and makes copies through it.
    """
    if original not in _distributed_classes:
        _distributed_classes[original] = type(
            f"Distributed{original.__name__}",
            (_Reducing, original),
            {"__class__": property(lambda _: original), "__module__": __name__, "__doc__": original.__doc__},
        )
    return _distributed_classes[original]


def _inner(optimizer: Any) -> list[Any]:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return [optimizer.inner_optimizer]
    # MultiOptimizer, which old versions of Keras do not have.
    return list(getattr(optimizer, "_inner_optimizers", []))


def _parts(optimizer: Any) -> Iterator[Any]:
    yield optimizer
    for inner in _inner(optimizer):
        yield from _parts(inner)


@contextlib.contextmanager
def _reduction_done() -> Iterator[None]:
    token = _reduced_outside.set(True)
    try:
        yield
    finally:
        _reduced_outside.reset(token)


@functools.cache
def _move_reduction_before_finite_check() -> None:
    """Teaches `LossScaleOptimizer` to reduce first if the optimizer inside it is distributed.

    `Model.compile` wraps optimizers in one under mixed_float16. Its check would see this rank's gradients
    alone: a rank that skips a step would leave the others waiting for its gradients.
    """
    original = keras.optimizers.LossScaleOptimizer.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        if isinstance(self, _Reducing) or not reduces_gradients(self.inner_optimizer):
            return original(self, grads, trainable_variables)
        if not isinstance(self.inner_optimizer, _Reducing):
            raise ValueError(
                "inside a LossScaleOptimizer, wrap the MultiOptimizer in DistributedOptimizer and not its "
                "parts: whether to skip a step is decided from all gradients, after they are reduced"
            )
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        grads = reduce_for(self.inner_optimizer, grads, trainable_variables)
        with _reduction_done():
            return original(self, grads, trainable_variables)

    keras.optimizers.LossScaleOptimizer.apply = apply
