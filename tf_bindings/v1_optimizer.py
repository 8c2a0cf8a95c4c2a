"""Optimizers of `tf.compat.v1.train` that reduce their gradients.

Here there is a place between a gradient and its use: `compute_gradients` returns reduced gradients, so that what a
script does to them before `apply_gradients`, such as clipping, is done to those of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from sirtaki.tensorflow.gradient_reduction import GradientReduction
from sirtaki.tensorflow.local_aggregation import LocalAggregation


class DistributedV1Optimizer(tf.compat.v1.train.Optimizer):
    """A `tf.compat.v1.train.Optimizer` around another one; made by `DistributedOptimizer`.

    With several backward passes per step it keeps sums in local variables: run
    `tf.compat.v1.local_variables_initializer()`, as a `MonitoredTrainingSession` does by itself.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        reduction: GradientReduction,
        aggregation: LocalAggregation | None,
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        self._aggregation = None if aggregation is None else _GraphAggregation(aggregation)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The gradients of the original optimizer, reduced; arguments are its own."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._aggregation is None:
            reduced = self._reduction(gradients, variables)
        else:
            reduced = self._aggregation.reduce(gradients, variables, self._reduction)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """What the original optimizer does, in the last pass of a step."""
        if self._aggregation is None:
            return self._optimizer.apply_gradients(*args, **kwargs)
        return self._aggregation.apply(lambda: self._optimizer.apply_gradients(*args, **kwargs))

    def register_local_var(self, var: Any) -> None:
        """Makes a variable this rank's own: its gradient is not reduced. On all ranks, before the first step."""
        self._reduction.local_variables.add_variable(var)

    def get_slot(self, var: Any, name: str) -> Any:
        """The original optimizer's slot."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> Any:
        """The names of the original optimizer's slots."""
        return self._optimizer.get_slot_names()

    def variables(self) -> Any:
        """The original optimizer's variables."""
        return self._optimizer.variables()


class _GraphAggregation:
    """`LocalAggregation` in two calls, since a step of these optimizers is two."""

    def __init__(self, aggregation: LocalAggregation) -> None:
        self._passes = aggregation.passes
        self._average = aggregation.average
        self._sums: list[Any] = []
        self._count: Any = None
        self._is_last: Any = None

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], reduction: GradientReduction) -> list[Any]:
        if self._count is None:
            self._make_variables(gradients, variables)
        added = [
            total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
            for total, gradient in zip(self._sums, gradients, strict=True)
            if gradient is not None
        ]
        with tf.control_dependencies(added if not tf.executing_eagerly() else []):
            self._is_last = self._count.assign_add(1) >= self._passes

        def sums() -> list[Any]:
            with tf.control_dependencies([self._is_last]):
                return [None if total is None else total.read_value() for total in self._sums]

        def reduced() -> list[Any]:
            scale = self._passes if self._average else 1
            means = [None if total is None else total / scale for total in sums()]
            return [gradient for gradient in reduction(means, variables) if gradient is not None]

        def not_yet() -> list[Any]:
            return [total for total in sums() if total is not None]

        found = iter(_cond(self._is_last, reduced, not_yet))
        return [None if gradient is None else next(found) for gradient in gradients]

    def apply(self, apply: Any) -> Any:
        def finish() -> Any:
            applied = apply()
            dependencies = [] if tf.executing_eagerly() else [applied]
            with tf.control_dependencies(dependencies):
                resets = [total.assign(tf.zeros_like(total)) for total in self._sums if total is not None]
                resets.append(self._count.assign(0))
            return tf.group(*resets)

        return _cond(self._is_last, finish, tf.no_op)

    def _make_variables(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        def variable(initial: Any) -> Any:
            return tf.compat.v1.Variable(
                initial,
                trainable=False,
                use_resource=True,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            )

        with tf.init_scope():
            self._count = variable(tf.zeros([], tf.int64))
            self._sums = [
                None if gradient is None else variable(tf.zeros(owner.shape, gradient.dtype))
                for gradient, owner in zip(gradients, variables, strict=True)
            ]


def _cond(condition: Any, then: Any, otherwise: Any) -> Any:
    if tf.executing_eagerly():
        return then() if condition else otherwise()
    return tf.cond(condition, then, otherwise)


def make_distributed(
    optimizer: Any,
    name: str | None,
    use_locking: bool,
    reduction: GradientReduction,
    aggregation: LocalAggregation | None,
) -> DistributedV1Optimizer:
    """Returns an optimizer that reduces and hands on to `optimizer`.

    Raises:
        ValueError: it reduces already.
    """
    if isinstance(optimizer, DistributedV1Optimizer):
        raise ValueError(
            f"the optimizer {optimizer.get_name()!r} reduces its gradients already: a second DistributedOptimizer "
            "around it would reduce them twice; wrap it once"
        )
    return DistributedV1Optimizer(optimizer, name, use_locking, reduction, aggregation)
