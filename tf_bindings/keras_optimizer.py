"""Keras 3 optimizers that reduce their gradients.

Keras 3 has no hook between a gradient and its use, so the reduction happens at the entry of `apply`: before
clipping, weight decay, gradient accumulation and moving averages, which then see what one process with the
whole batch would see. Loss scaling needs care: `LossScaleOptimizer.apply` decides from the gradients whether
to skip the step, so if ours is inside it, the reduction is moved before that decision.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from sirtaki.tensorflow.gradient_step import GradientStep, check_not_bypassed, is_applying_reduced


class ReducingOptimizer:
    """The part that a distributed Keras 3 optimizer has in addition to its original class."""

    _sirtaki_step: GradientStep
    _trainable_variables: list[Any]
    name: str

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Reduces the gradients over all ranks, then does what the original optimizer does."""
        apply = super().apply  # type: ignore[misc]
        if is_applying_reduced():
            return apply(grads, trainable_variables)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        return reduce_then(self, grads, trainable_variables, lambda reduced: apply(reduced, trainable_variables))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        """What the original optimizer does with one gradient, if that is reduced."""
        check_not_bypassed(self.name)
        return super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]

    def register_local_var(self, var: Any) -> None:
        """Makes a variable this rank's own: its gradient is not reduced. On all ranks, before the first step."""
        self._sirtaki_step.reduction.local_variables.add_variable(var)

    def __reduce__(self) -> Any:
        """For pickle: the original optimizer, made distributed again where it is loaded."""
        raise TypeError(
            f"the distributed optimizer {self.name!r} cannot be pickled or copied: it belongs to this job. Save the "
            "model, or pickle optimizer.get_config(), and wrap the optimizer again"
        )


def reduce_then(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None, apply: Any) -> Any:
    """Reduces gradients the way that the distributed `optimizer` does, and calls `apply` with them."""
    if variables is None and optimizer.built:
        variables = optimizer._trainable_variables
    return optimizer._sirtaki_step(grads, variables, apply)


def make_distributed(optimizer: Any, step: GradientStep) -> None:
    """Turns a Keras 3 optimizer into one that reduces."""
    _move_reduction_before_finite_check()
    # Past Keras's and TensorFlow's __setattr__, which would track the attribute as state to save.
    object.__setattr__(optimizer, "_sirtaki_step", step)
    object.__setattr__(optimizer, "__class__", _distributed_class(type(optimizer)))


def parts(optimizer: Any) -> Iterator[Any]:
    """A Keras 3 optimizer and all that are inside it."""
    yield optimizer
    for inner in inner_optimizers(optimizer):
        yield from parts(inner)


def inner_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers that this one hands gradients on to."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return [optimizer.inner_optimizer]
    # MultiOptimizer, which old versions of Keras do not have.
    return list(getattr(optimizer, "_inner_optimizers", []))


_distributed_classes: dict[type[Any], type[Any]] = {}


def _distributed_class(original: type[Any]) -> type[Any]:
    """A subclass that reduces. Instances show the original as their `__class__`.

    Keras writes `obj.__class__` into saved models, compares it, and makes copies through it.
    """
    if original not in _distributed_classes:
        _distributed_classes[original] = type(
            f"Distributed{original.__name__}",
            (ReducingOptimizer, original),
            {"__class__": property(lambda _: original), "__module__": __name__, "__doc__": original.__doc__},
        )
    return _distributed_classes[original]


@functools.cache
def _move_reduction_before_finite_check() -> None:
    """Teaches `LossScaleOptimizer` to reduce first if the optimizer inside it is distributed.

    `Model.compile` wraps optimizers in one under mixed_float16. Its check would see this rank's gradients
    alone: a rank that skips a step would leave the others waiting for its gradients.
    """
    original = keras.optimizers.LossScaleOptimizer.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        inside = list(parts(self.inner_optimizer))
        if isinstance(self, ReducingOptimizer) or not any(isinstance(part, ReducingOptimizer) for part in inside):
            return original(self, grads, trainable_variables)
        if not isinstance(self.inner_optimizer, ReducingOptimizer):
            raise ValueError(
                "inside a LossScaleOptimizer, wrap the MultiOptimizer in DistributedOptimizer and not its "
                "parts: whether to skip a step is decided from all gradients, after they are reduced"
            )
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        return reduce_then(
            self.inner_optimizer,
            grads,
            trainable_variables,
            lambda reduced: original(self, reduced, trainable_variables),
        )

    keras.optimizers.LossScaleOptimizer.apply = apply
