"""Optimizers of `tf_keras` (Keras 2) that reduce their gradients, its `legacy` ones among them.

They are recognised by where their classes come from: `tf_keras` itself need not be installed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from sirtaki.tensorflow.gradient_step import GradientStep, check_not_bypassed, is_applying_reduced


def handles(optimizer: Any) -> bool:
    """Whether this is an optimizer of `tf_keras`."""
    return any(
        cls.__module__.startswith("tf_keras.") and cls.__name__ in ("_BaseOptimizer", "OptimizerV2")
        for cls in type(optimizer).__mro__
    )


class ReducingOptimizer:
    """The part that a distributed optimizer of `tf_keras` has in addition to its original class."""

    _sirtaki_step: GradientStep
    _name: str

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Reduces the gradients over all ranks, then does what the original optimizer does."""
        apply = super().apply_gradients  # type: ignore[misc]
        if is_applying_reduced():
            return apply(grads_and_vars, *args, **kwargs)
        return _reduce_then(self, grads_and_vars, lambda pairs: apply(pairs, *args, **kwargs))

    def update_step(self, gradient: Any, variable: Any) -> Any:
        """What the original optimizer does with one gradient, if that is reduced."""
        check_not_bypassed(self._name)
        return super().update_step(gradient, variable)  # type: ignore[misc]

    def _distributed_apply(self, *args: Any, **kwargs: Any) -> Any:
        check_not_bypassed(self._name)  # where the legacy ones have their updates
        return super()._distributed_apply(*args, **kwargs)  # type: ignore[misc]

    def register_local_var(self, var: Any) -> None:
        """Makes a variable this rank's own: its gradient is not reduced. On all ranks, before the first step."""
        self._sirtaki_step.reduction.local_variables.add_variable(var)


def make_distributed(optimizer: Any, step: GradientStep) -> None:
    """Turns an optimizer of `tf_keras` into one that reduces."""
    _move_reduction_before_finite_check()
    object.__setattr__(optimizer, "_sirtaki_step", step)
    object.__setattr__(optimizer, "__class__", _distributed_class(type(optimizer)))


def inner_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers that this one hands gradients on to."""
    return [optimizer.inner_optimizer] if isinstance(optimizer, _loss_scale_classes()) else []


def _reduce_then(optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]], apply: Any) -> Any:
    pairs = list(grads_and_vars)
    variables = [variable for _, variable in pairs]

    def apply_reduced(reduced: Sequence[Any]) -> Any:
        return apply(list(zip(reduced, variables, strict=True)))

    return optimizer._sirtaki_step([gradient for gradient, _ in pairs], variables, apply_reduced)


_distributed_classes: dict[type[Any], type[Any]] = {}


def _distributed_class(original: type[Any]) -> type[Any]:
    """A subclass that reduces; instances show the original as their `__class__`, which is what gets saved."""
    if original not in _distributed_classes:
        _distributed_classes[original] = type(
            f"Distributed{original.__name__}",
            (ReducingOptimizer, original),
            {"__class__": property(lambda _: original), "__module__": __name__, "__doc__": original.__doc__},
        )
    return _distributed_classes[original]


def _loss_scale_classes() -> tuple[type[Any], ...]:
    module = sys.modules.get("tf_keras.src.mixed_precision.loss_scale_optimizer")
    return (module.LossScaleOptimizer, module.LossScaleOptimizerV3) if module else ()


@functools.cache
def _move_reduction_before_finite_check() -> None:
    """Teaches both classes of `LossScaleOptimizer` to reduce first, as `keras_optimizer` does for Keras 3's."""
    for owner in _loss_scale_classes():
        owner.apply_gradients = _reducing_first(owner.apply_gradients)


def _reducing_first(original: Any) -> Any:
    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, ReducingOptimizer) or not isinstance(self.inner_optimizer, ReducingOptimizer):
            return original(self, grads_and_vars, *args, **kwargs)
        return _reduce_then(self.inner_optimizer, grads_and_vars, lambda pairs: original(self, pairs, *args, **kwargs))

    return apply_gradients
