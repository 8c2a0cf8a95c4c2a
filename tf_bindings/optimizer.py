"""`DistributedOptimizer`: an optimizer of Keras or of TensorFlow 1, with gradients that are reduced over all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from sirtaki import Average, ProcessSet, global_process_set
from sirtaki.tensorflow import keras_optimizer, legacy_optimizer, v1_optimizer
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.gradient_reduction import (
    GradientReduction,
    Groups,
    LocalVariables,
    resolve_for_gradients,
    resolve_groups,
)
from sirtaki.tensorflow.gradient_step import GradientStep
from sirtaki.tensorflow.local_aggregation import resolve_passes

_counter = itertools.count()


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer reduce its gradients over all ranks before it applies them.

    Args:
        optimizer: one of Keras 3, of `tf_keras`, or of `tf.compat.v1.train`, built or not. One of Keras is changed
            itself and keeps its state; it remains an instance of its class, and a saved model names the original
            class, so that plain Keras loads it. After loading or cloning a model, wrap its optimizer again, or load
            it with `load_model` of `sirtaki.tensorflow.keras`.
        name: what the reductions are called, the same on every rank. Without it, optimizers are numbered
            in the order in which this function is called, which must then be the same on every rank.
        use_locking: for optimizers of `tf.compat.v1.train`, see there.
        device_dense, device_sparse: Horovod's; they change nothing here.
        compression: how gradients travel, see `Compression`.
        sparse_as_dense: reduces `tf.IndexedSlices`, as embeddings have, as dense tensors; by default the
            slices of all ranks are gathered, which is less to send if few rows are touched.
        backward_passes_per_step: gradients of so many calls are added up in this process, and then reduced and
            applied once. The calls before the last one change no variable, `iterations` included.
        op: `Average` (the default), `Sum` or `Adasum`.
        gradient_predivide_factor: with `Average`, divides the gradients by this number before they are combined, and
            multiplies the average by it: for 16-bit gradients whose sum would not fit.
        average_aggregated_gradients: with several backward passes, applies their average instead of their sum.
        num_groups: Horovod's old name for a number of `groups`.
        groups: a number of groups, or lists of variables: the gradients of a group are reduced when all of them
            are there. By default what is ready together travels together.
        process_set: the ranks whose gradients are combined; only they may train with the optimizer.
        scale_local_gradients: divides gradients that are not reduced (of variables given to `register_local_var`)
            by the number of ranks.

    Returns:
        The optimizer; for one of `tf.compat.v1.train` a new one around it.

    Raises:
        TypeError: it is no optimizer.
        ValueError: it reduces gradients already, or an argument cannot be used.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
        >>> model.compile(optimizer=optimizer, loss="mse")
    """
    reduction = GradientReduction(
        name=f"DistributedOptimizer.{name or next(_counter)}",
        op=resolve_for_gradients(op),
        sparse_as_dense=sparse_as_dense,
        compression=compression,
        predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        groups=resolve_groups(num_groups, groups),
        scale_local_gradients=scale_local_gradients,
    )
    aggregation = resolve_passes(backward_passes_per_step, average_aggregated_gradients)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return v1_optimizer.make_distributed(optimizer, name, use_locking, reduction, aggregation)
    _check(optimizer)
    module = legacy_optimizer if legacy_optimizer.handles(optimizer) else keras_optimizer
    module.make_distributed(optimizer, GradientStep(reduction, aggregation, optimizer_name(optimizer)))
    return optimizer


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """A `DistributedOptimizer` for models of which some layers belong to each rank alone.

    Args:
        local_layers: a Keras layer or a list of layers, whose gradients are not reduced. They may be built later.

    Other arguments are those of `DistributedOptimizer`.

    Example:
        >>> optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[head])
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(
            "PartialDistributedOptimizer takes layers and therefore optimizers of Keras, not of tf.compat.v1"
        )
    probe = LocalVariables()
    probe.add_layers(local_layers or [])
    distributed = DistributedOptimizer(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
    )
    distributed._sirtaki_step.reduction.local_variables.add_layers(local_layers or [])
    return distributed


def reduces_gradients(optimizer: Any) -> bool:
    """Whether every gradient that `optimizer` applies is reduced on the way."""
    if is_distributed(optimizer):
        return True
    inner = _inner(optimizer)
    return bool(inner) and all(reduces_gradients(part) for part in inner)


def is_distributed(optimizer: Any) -> bool:
    """Whether `DistributedOptimizer` was called with this very optimizer."""
    return isinstance(optimizer, (keras_optimizer.ReducingOptimizer, legacy_optimizer.ReducingOptimizer))


def local_variables(optimizer: Any) -> LocalVariables:
    """The variables of a model's optimizer whose gradients are not reduced."""
    for part in _parts(optimizer):
        if is_distributed(part):
            return part._sirtaki_step.reduction.local_variables
    return LocalVariables()


def optimizer_name(optimizer: Any) -> str:
    """What an optimizer of any kind is called."""
    return str(getattr(optimizer, "name", None) or getattr(optimizer, "_name", type(optimizer).__name__))


def _inner(optimizer: Any) -> Sequence[Any]:
    module = legacy_optimizer if legacy_optimizer.handles(optimizer) else keras_optimizer
    return module.inner_optimizers(optimizer)


def _parts(optimizer: Any) -> list[Any]:
    return [optimizer, *(part for inner in _inner(optimizer) for part in _parts(inner))]


def _check(optimizer: Any) -> None:
    if not legacy_optimizer.handles(optimizer):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"DistributedOptimizer works with Keras on TensorFlow, and Keras runs on "
                f"{keras.backend.backend()}; set KERAS_BACKEND=tensorflow"
            )
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "DistributedOptimizer needs an optimizer object of Keras, such as keras.optimizers.SGD(), of tf_keras "
                f"or of tf.compat.v1.train, and got {optimizer!r}"
            )
    if any(is_distributed(part) for part in _parts(optimizer)):
        raise ValueError(
            f"the optimizer {optimizer_name(optimizer)!r} reduces its gradients already: a second DistributedOptimizer "
            "around it would reduce them twice; wrap it once"
        )
