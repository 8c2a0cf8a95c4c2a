"""Keras callbacks for training on several ranks.

Both raise `UnreducedGradientsError` if the job has several ranks and the model's gradients are not reduced.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import sirtaki
from sirtaki.errors import MismatchError
from sirtaki.tensorflow import guard
from sirtaki.tensorflow.variables import broadcast_variables

# Odd, so that all ranks get different seeds, and large, so that rank 1 does not get the seed that the next
# layer has on rank 0 (people number their layers' seeds).
_SEED_STEP = 0x9E3779B9
_SEED_LIMIT = 2**31  # Keras hands seeds to TensorFlow as int32


class _GuardedCallback(keras.callbacks.Callback):
    """Raises where gradients are not reduced.

    It looks at the beginnings of batches: Keras would give up its asynchronous handling of logs for a
    callback that acts at their ends.
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        guard.raise_if(guard.problem_before_training(self.model))
        self._watch: guard.ReductionWatch | None = guard.ReductionWatch()
        self._batches_begun = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._batches_begun == 1:
            self._after_first_batch()
        self._batches_begun += 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._after_first_batch()

    def _after_first_batch(self) -> None:
        if self._watch is not None:
            guard.raise_if(self._watch.problem(self.model))
            self._watch = None


class BroadcastGlobalVariablesCallback(_GuardedCallback):
    """Gives all ranks the root's model and optimizer state before the first step of `fit`.

    The seed generators of layers such as Dropout are then set apart by rank, so that ranks do not all drop
    the same units. Each `fit` broadcasts anew: what is equal stays so, and what a single rank has loaded or
    changed in between reaches all.

    A model that Keras cannot build before its first batch is broadcast after it. A model that some ranks have
    built and others have not is a `MismatchError` on all.

    Args:
        root_rank: the rank whose state all get.

    Example:
        >>> model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    """

    broadcasts_weights = True  # for the guard

    def __init__(self, root_rank: int) -> None:
        super().__init__()
        self.root_rank = root_rank

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self._pending = True
        model = self.model
        if self._is_built_everywhere():
            if model.optimizer is not None and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            self._broadcast()

    def _is_built_everywhere(self) -> bool:
        built = guard.is_built(self.model)
        by_rank = sirtaki.allgather_object(built, name="BroadcastGlobalVariablesCallback.built")
        if any(by_rank) and not all(by_rank):
            where = [rank for rank, is_built in enumerate(by_rank) if is_built]
            raise MismatchError(
                f"BroadcastGlobalVariablesCallback: the model {self.model.name!r} has its weights on ranks {where} "
                f"already, and on the other of the {len(by_rank)} ranks it has not been built. Build it on all ranks "
                "before fit(), for example with model.build(input_shape) or by calling it on a batch."
            )
        return built

    def _after_first_batch(self) -> None:
        super()._after_first_batch()
        if self._pending:
            self._broadcast()

    def _broadcast(self) -> None:
        self._pending = False
        seeds = _seed_states(self.model)
        optimizer = self.model.optimizer
        state = [] if optimizer is None else optimizer.variables
        broadcast_variables([*self.model.weights, *state, *seeds], self.root_rank)
        for seed_state in seeds:
            _set_apart(seed_state)


class MetricAverageCallback(_GuardedCallback):
    """Replaces each metric at the end of an epoch by its average over all ranks.

    Put it before callbacks that read metrics, such as ModelCheckpoint or ReduceLROnPlateau, which then decide
    alike on every rank. The average is not weighted: give all ranks equally many samples.

    Raises:
        MismatchError: the ranks have different metrics.

    Example:
        >>> model.fit(x, y, callbacks=[hvd.callbacks.MetricAverageCallback()])
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if logs is not None and sirtaki.size() > 1:
            logs.update(_average(logs))


def _average(logs: dict[str, Any]) -> dict[str, float]:
    own = {key: float(value) for key, value in logs.items()}
    by_rank = sirtaki.allgather_object(own, name="MetricAverageCallback")
    for rank, metrics in enumerate(by_rank):
        if metrics.keys() != by_rank[0].keys():
            raise MismatchError(
                f"MetricAverageCallback: rank {rank} has the metrics {sorted(metrics)} and rank 0 has "
                f"{sorted(by_rank[0])}; give every rank the same metrics and validation data on all or none"
            )
    return {key: math.fsum(metrics[key] for metrics in by_rank) / len(by_rank) for key in own}


def _seed_states(model: Any) -> list[Any]:
    generators = (
        generator for layer in model._flatten_layers() for generator in getattr(layer, "_seed_generators", [])
    )
    unique = {id(generator): generator.state for generator in generators}
    return list(unique.values())


def _set_apart(seed_state: Any) -> None:
    rank = sirtaki.rank()
    if rank > 0:
        seed, counter = (int(number) for number in keras.ops.convert_to_numpy(seed_state))
        seed_state.assign([(seed + rank * _SEED_STEP) % _SEED_LIMIT, counter])
