"""Adds up the gradients of several passes in this process, to reduce them once (`backward_passes_per_step`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class LocalAggregation:
    """Sums of gradients over passes, kept in variables of its own: no optimizer or model saves them.

    Args:
        passes: how many passes make a step, at least 2.
        average: divides the sums by `passes`.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self.passes = passes
        self.average = average
        self._count: Any = None
        self._sums: list[Any] = []

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any], then: Callable[[list[Any]], Any]) -> None:
        """Adds gradients up; in the last pass of a step, calls `then` with the sums, and begins anew.

        Args:
            gradients: dense, `tf.IndexedSlices` (which become dense) or None, in the same order in each pass.
            variables: those that the gradients are of.
            then: what is done with the sums; inside a `tf.function` it is traced into a branch of a `tf.cond`.

        Raises:
            ValueError: a pass has gradients where the one before had none, or the other way round.
        """
        self._prepare(gradients, variables)
        for total, gradient in zip(self._sums, gradients, strict=True):
            if gradient is not None:
                total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
        is_last = self._count.assign_add(1) >= self.passes

        def finish() -> None:
            sums = [None if total is None else self._mean(total) for total in self._sums]
            then(sums)
            for total in self._sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            self._count.assign(0)

        if tf.executing_eagerly():
            if is_last:
                finish()
        else:
            tf.cond(is_last, finish, lambda: None)

    def _mean(self, total: Any) -> Any:
        return total / self.passes if self.average else total.read_value()

    def _prepare(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if self._count is None:
            with tf.init_scope():
                self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="sirtaki_passes")
                self._sums = [
                    None if gradient is None else tf.Variable(tf.zeros(variable.shape, gradient.dtype), trainable=False)
                    for gradient, variable in zip(gradients, variables, strict=True)
                ]
        present = [gradient is not None for gradient in gradients]
        expected = [total is not None for total in self._sums]
        if present != expected:
            raise ValueError(
                f"backward_passes_per_step={self.passes} adds up the same gradients in each pass: the first pass had "
                f"{sum(expected)} of {len(expected)}, and this one has {sum(present)} of {len(present)}"
            )


def resolve_passes(backward_passes_per_step: int, average: bool) -> LocalAggregation | None:
    """Returns what adds gradients up, or None if each pass is a step.

    Raises:
        ValueError: the number of passes is not 1 or more, or an average is asked for without several.
    """
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step!r} must be a whole number, 1 or more")
    if backward_passes_per_step == 1:
        return None
    return LocalAggregation(backward_passes_per_step, average)
