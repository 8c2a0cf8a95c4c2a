"""One step of an optimizer, from this rank's gradients to the call that applies the reduced ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sirtaki.errors import UnreducedGradientsError
from sirtaki.tensorflow.gradient_reduction import GradientReduction, is_marked_as_reduced
from sirtaki.tensorflow.local_aggregation import LocalAggregation

# Set while a distributed optimizer applies gradients that have been reduced.
_applying_reduced: ContextVar[bool] = ContextVar("sirtaki_applying_reduced_gradients", default=False)


@dataclass(frozen=True)
class GradientStep:
    """What a distributed optimizer does before its original class does the rest.

    Attributes:
        reduction: how gradients are combined.
        aggregation: adds gradients up before, or None.
        optimizer_name: for messages.
    """

    reduction: GradientReduction
    aggregation: LocalAggregation | None
    optimizer_name: str

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None, apply: Callable[[list[Any]], Any]
    ) -> Any:
        """Reduces gradients and calls `apply` with them, in the last pass of a step.

        Raises:
            ValueError: the gradients are reduced already, or it is not known whose they are and needs to be.
        """
        gradients = list(gradients)
        if any(is_marked_as_reduced(gradient) for gradient in gradients):
            raise ValueError(
                f"the gradients for the optimizer {self.optimizer_name!r} come from a DistributedGradientTape and are "
                "reduced already; DistributedOptimizer would reduce them again. Use one of the two."
            )
        if variables is not None and len(variables) != len(gradients):
            variables = None  # Keras explains it better in a moment

        def reduce_and_apply(gradients: list[Any]) -> Any:
            reduced = self.reduction(gradients, variables)
            with applying_reduced():
                return apply(reduced)

        if self.aggregation is None:
            return reduce_and_apply(gradients)
        if variables is None:
            raise ValueError(
                "backward_passes_per_step needs the variables that the gradients are of: pass them as well"
            )
        return self.aggregation(gradients, variables, reduce_and_apply)


@contextlib.contextmanager
def applying_reduced() -> Iterator[None]:
    """Marks what is done within as work on reduced gradients."""
    token = _applying_reduced.set(True)
    try:
        yield
    finally:
        _applying_reduced.reset(token)


def is_applying_reduced() -> bool:
    """Whether the caller works on reduced gradients."""
    return _applying_reduced.get()


def check_not_bypassed(optimizer_name: str) -> None:
    """Raises UnreducedGradientsError where a gradient is used that no step has reduced."""
    if not is_applying_reduced():
        raise UnreducedGradientsError(
            f"a gradient has reached the distributed optimizer {optimizer_name!r} on a way past its reduction (a "
            "method below apply() was called directly): the ranks would train different models. Call apply() or "
            "apply_gradients()"
        )
