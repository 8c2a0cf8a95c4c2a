"""Reduces the gradients of one step: what `DistributedOptimizer` and `DistributedGradientTape` share.

Guarantees:
  * Gradients are named by position, never by variable or graph names, so ranks that build extra models
    still agree.
  * Inside a `tf.function` every gradient is a reduction of its own, which starts as soon as the gradient
    exists; the engine fuses what is ready together. Eagerly, where calls block, all of a type go as one.
  * None stays None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from sirtaki import ProcessSet, global_process_set
from sirtaki.reduce_ops import Adasum, Average, Max, ReduceOp, Sum, resolve
from sirtaki.tensorflow import compression as compressors
from sirtaki.tensorflow import names
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.reductions import allreduce, grouped_allreduce


def resolve_for_gradients(op: int | None) -> ReduceOp:
    """Returns the operation that gradients are to be combined with.

    Raises:
        ValueError: there is no such operation, or it makes no gradient of gradients.
    """
    found = resolve(None, op)
    if found not in (Average, Sum, Adasum):
        raise ValueError(f"op={found.name} makes no gradient of the ranks' gradients: use Average, Sum or Adasum")
    return found


@dataclass(frozen=True)
class GradientReduction:
    """How the gradients of one optimizer or tape are reduced.

    Attributes:
        name: the beginning of every gradient's name, the same on all ranks.
        op: `Average`, `Sum` or `Adasum`.
        sparse_as_dense: turns `tf.IndexedSlices` into dense tensors first, instead of gathering slices.
        compression: how gradients travel, see `compression.py`.
        predivide_factor: each rank's gradients are divided by it before they are combined, and the average is
            multiplied by it.
        process_set: the ranks that take part.
    """

    name: str
    op: ReduceOp
    sparse_as_dense: bool = False
    compression: Any = Compression.none
    predivide_factor: float = 1.0
    process_set: ProcessSet = global_process_set

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError if an argument cannot be used."""
        compressors.check(self.compression)
        if not (math.isfinite(self.predivide_factor) and self.predivide_factor > 0):
            raise ValueError(f"gradient_predivide_factor={self.predivide_factor!r} must be a positive number")
        if self.predivide_factor != 1.0 and self.op != Average:
            raise ValueError(
                f"gradient_predivide_factor splits the division of an average in two, and op={self.op.name} divides "
                "by nothing: use op=Average, or leave the factor out"
            )

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """Returns the reduced gradients; `variables` are theirs, as far as they are known."""
        reduced = [self._densify(gradient) for gradient in gradients]
        averaged = []
        for position, gradient in enumerate(reduced):
            if gradient is None:
                continue
            if variables is not None and getattr(variables[position], "overwrite_with_gradient", False):
                reduced[position] = self._maximum(gradient, position)
            elif isinstance(gradient, tf.IndexedSlices) or not tf.executing_eagerly():
                reduced[position] = allreduce(gradient, name=self._name_of(position), **self._how())
            else:
                averaged.append(position)
        group = grouped_allreduce(
            [reduced[position] for position in averaged], name=f"{self.name}.gradients", **self._how()
        )
        for position, gradient in zip(averaged, group, strict=True):
            reduced[position] = gradient
        return reduced

    def _how(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "compression": self.compression,
            "prescale_factor": 1.0 / self.predivide_factor,
            "postscale_factor": self.predivide_factor,
            "process_set": self.process_set,
        }

    def _name_of(self, position: int) -> str:
        return names.unique(f"{self.name}.gradient.{position}")

    def _densify(self, gradient: Any) -> Any:
        if self.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient)
        return gradient

    def _maximum(self, gradient: Any, position: int) -> Any:
        """For the scales of float8 training, which are handed on as gradients and overwrite the variable."""
        return allreduce(gradient, op=Max, name=self._name_of(position), process_set=self.process_set)


def mark_as_reduced(gradient: Any) -> None:
    """Notes on a tensor that it is a reduced gradient. What is computed from it is not marked."""
    if gradient is not None:
        gradient._sirtaki_reduced = True


def is_marked_as_reduced(gradient: Any) -> bool:
    """Whether `mark_as_reduced` was called with this tensor."""
    return getattr(gradient, "_sirtaki_reduced", False)
