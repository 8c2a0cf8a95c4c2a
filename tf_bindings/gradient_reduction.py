"""Reduces the gradients of one step: what `DistributedOptimizer` and `DistributedGradientTape` share.

Guarantees:
  * Gradients are named by position, never by variable or graph names, so ranks that build extra models
    still agree.
  * Inside a `tf.function` every gradient is a reduction of its own, which starts as soon as the gradient
    exists; the engine fuses what is ready together. Eagerly and in what XLA compiles, where calls block, all of a
    type go as one.
    Explicit groups are reduced as they are given, in both.
  * None stays None.
  * The gradients of local variables are not sent.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from sirtaki import ProcessSet, global_process_set
from sirtaki.reduce_ops import Adasum, Average, Max, ReduceOp, Sum, resolve
from sirtaki.tensorflow import compression as compressors
from sirtaki.tensorflow import names, xla_calls
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.reductions import allreduce, grouped_allreduce
from sirtaki.tensorflow.variables import identity


def resolve_for_gradients(op: int | None) -> ReduceOp:
    """Returns the operation that gradients are to be combined with.

    Raises:
        ValueError: there is no such operation, or it makes no gradient of gradients.
    """
    found = resolve(None, op)
    if found not in (Average, Sum, Adasum):
        raise ValueError(f"op={found.name} makes no gradient of the ranks' gradients: use Average, Sum or Adasum")
    return found


class LocalVariables:
    """Which variables belong to a rank alone, so that their gradients are not reduced.

    Layers are asked for their weights anew each time: they may be built later.
    """

    def __init__(self) -> None:
        self._variables: list[Any] = []  # kept alive: their identities must not be given to others
        self._layers: list[Any] = []

    def add_variable(self, variable: Any) -> None:
        """Makes a variable local."""
        self._variables.append(variable)

    def add_layers(self, layers: Any) -> None:
        """Makes all trainable weights of a layer or model, or of several, local.

        Raises:
            TypeError: one is no layer.
        """
        listed = [layers] if hasattr(layers, "trainable_weights") else list(layers)
        for layer in listed:
            if not hasattr(layer, "trainable_weights"):
                raise TypeError(f"local_layers takes Keras layers and models, and got {layer!r}")
        self._layers.extend(listed)

    def identities(self) -> set[int]:
        """The `identity` of each of them."""
        of_layers = [weight for layer in self._layers for weight in layer.trainable_weights]
        return {identity(variable) for variable in [*self._variables, *of_layers]}


Groups = int | Sequence[Sequence[Any]] | None


def resolve_groups(num_groups: int, groups: Groups) -> Groups:
    """Returns what Horovod's two arguments for groups say together.

    Raises:
        ValueError: a number is negative, or a variable is in two groups.
        TypeError: `groups` is neither a number nor lists of variables.
    """
    if num_groups:
        warnings.warn("num_groups is Horovod's old name: write groups=number", DeprecationWarning, stacklevel=4)
        groups = num_groups if groups is None else groups
    if groups is None or isinstance(groups, int):
        if groups is not None and groups < 0:
            raise ValueError(f"groups={groups} must be the number of groups, 0 or more, or lists of variables")
        return groups or None
    if not all(isinstance(group, (list, tuple)) for group in groups):
        raise TypeError("groups must be a number, or a list of lists of variables")
    listed = [identity(variable) for group in groups for variable in group]
    if len(set(listed)) != len(listed):
        raise ValueError("groups names a variable twice: a gradient is reduced in one group")
    return groups


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
        groups: what `resolve_groups` returns: a number of groups, or lists of variables, whose gradients are
            reduced as one.
        local_variables: those whose gradients are not reduced.
        scale_local_gradients: divides the gradients of local variables by the number of ranks, so that they are on
            one scale with averages.
    """

    name: str
    op: ReduceOp
    sparse_as_dense: bool = False
    compression: Any = Compression.none
    predivide_factor: float = 1.0
    process_set: ProcessSet = global_process_set
    groups: Groups = None
    local_variables: LocalVariables = field(default_factory=LocalVariables)
    scale_local_gradients: bool = True

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
        """Returns the reduced gradients; `variables` are theirs, as far as they are known.

        Raises:
            ValueError: groups or local variables are set, and it is not known whose the gradients are.
        """
        local = self.local_variables.identities()
        if variables is None:
            if local or not isinstance(self.groups, (int, type(None))):
                raise ValueError(
                    f"{self.name} has groups or local variables, and got gradients without their variables: pass both"
                )
            owners: list[Any] = [None] * len(gradients)
        else:
            owners = list(variables)
        reduced = [self._densify(gradient) for gradient in gradients]
        combined = []
        for position, gradient in enumerate(reduced):
            if gradient is None:
                continue
            if identity(owners[position]) in local:
                reduced[position] = self._scale_local(gradient)
            elif getattr(owners[position], "overwrite_with_gradient", False):
                reduced[position] = self._maximum(gradient, position)
            else:
                combined.append(position)
        for name, positions in self._groups_of(combined, reduced, owners):
            group = grouped_allreduce([reduced[position] for position in positions], name=name, **self._how())
            for position, gradient in zip(positions, group, strict=True):
                reduced[position] = gradient
            combined = [position for position in combined if position not in positions]
        for position in combined:
            reduced[position] = allreduce(reduced[position], name=self._name_of(position), **self._how())
        return reduced

    def _groups_of(
        self, positions: list[int], gradients: list[Any], variables: list[Any]
    ) -> Iterable[tuple[str, list[int]]]:
        """The names of the groups and what is in each; what is in none is reduced by itself."""
        if isinstance(self.groups, int):
            count = min(self.groups, len(positions))
            bounds = [len(positions) * i // count for i in range(count + 1)] if count else []
            members = [positions[begin:end] for begin, end in itertools.pairwise(bounds)]
        elif self.groups is not None:
            by_variable = {identity(variables[position]): position for position in positions}
            listed = [[by_variable.get(identity(variable)) for variable in group] for group in self.groups]
            members = [[position for position in group if position is not None] for group in listed]
        elif tf.executing_eagerly() or xla_calls.is_tracing():
            dense = [position for position in positions if not isinstance(gradients[position], tf.IndexedSlices)]
            return [(names.unique(f"{self.name}.gradients"), dense)] if dense else []
        else:
            return []
        return [(names.unique(f"{self.name}.group.{i}"), group) for i, group in enumerate(members) if group]

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
        if isinstance(gradient, tf.IndexedSlices) and (self.sparse_as_dense or xla_calls.is_tracing()):
            return tf.convert_to_tensor(gradient)  # XLA cannot have slices whose number the ranks decide
        return gradient

    def _scale_local(self, gradient: Any) -> Any:
        if not self.scale_local_gradients:
            return gradient
        size = self.process_set.size()
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / size

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
