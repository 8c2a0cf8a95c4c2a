"""Keras callbacks for training on several ranks.

All of them raise `UnreducedGradientsError` if the job has several ranks and the model's gradients are not reduced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import sirtaki
from sirtaki.errors import MismatchError
from sirtaki.tensorflow import guard, metric_average, seeds
from sirtaki.tensorflow.gradient_reduction import LocalVariables
from sirtaki.tensorflow.keras_models import Callback, build_optimizer, optimizer_state
from sirtaki.tensorflow.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from sirtaki.tensorflow.optimizer import local_variables as local_variables_of
from sirtaki.tensorflow.variables import broadcast_variables, identity

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class _GuardedCallback(Callback):
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
        device: Horovod's; it changes nothing here.
        local_variables: variables that keep their own values on each rank, as those of the local layers of a
            `PartialDistributedOptimizer` do by themselves.

    Example:
        >>> model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    """

    broadcasts_weights = True  # for the guard

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = LocalVariables()
        for variable in local_variables or []:
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Makes a variable keep its own value on each rank."""
        self._local.add_variable(var)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self._pending = True
        model = self.model
        if self._is_built_everywhere():
            if model.optimizer is not None:
                build_optimizer(model.optimizer, model.trainable_variables)
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
        model = self.model
        local = self._local.identities() | local_variables_of(model.optimizer).identities()
        shared = [weight for weight in model.weights if identity(weight) not in local]
        owners = [_in_slot_name(weight) for weight in model.weights if identity(weight) in local]
        state = [
            variable
            for variable in optimizer_state(model.optimizer)
            if not any(owner in _in_slot_name(variable) for owner in owners)
        ]
        seed_states = seeds.states(model)
        broadcast_variables([*shared, *state, *seed_states], self.root_rank)
        for seed_state in seed_states:
            seeds.set_apart(seed_state)


def _in_slot_name(variable: Any) -> str:
    """A variable's name as optimizers write it into the names of the slots that they keep for it."""
    return str(getattr(variable, "path", None) or variable.name).split(":")[0].replace("/", "_")


class MetricAverageCallback(_GuardedCallback):
    """Replaces each metric at the end of an epoch by its value over the data of all ranks.

    Training and validation metrics are weighted by samples, so ranks may have had different numbers of them. `fit`
    adds this callback in front by itself where another one decides from metrics, such as EarlyStopping.

    Args:
        device: Horovod's; it changes nothing here.

    Raises:
        MismatchError: the ranks have different metrics.

    Example:
        >>> model.fit(x, y, callbacks=[hvd.callbacks.MetricAverageCallback()])
    """

    averages_metrics = True  # for fit

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self._training: metric_average.Seen | None = None
        self._in_epoch = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._training = None
        self._in_epoch = True

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keeps what the metrics have seen in training: validation begins them anew."""
        if self._in_epoch and self._training is None and sirtaki.size() > 1:
            self._training = metric_average.seen_by(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._in_epoch = False
        if logs is None or sirtaki.size() == 1:
            return
        last = metric_average.seen_by(self.model)
        if self._training is None:
            logs.update(metric_average.averaged(self.model, logs, last, None))
        else:
            logs.update(metric_average.averaged(self.model, logs, self._training, last))


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the model, on rank 0 alone, whenever a metric over all ranks is better than ever before.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: as for `keras.callbacks.ModelCheckpoint`.
        filepath: where; Horovod leaves it to be set as an attribute, which works as well.

    Raises:
        ValueError: there is no file path (when training begins).

    Example:
        >>> hvd.callbacks.BestModelCheckpoint(monitor="val_loss", filepath="best.keras")
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: str | None = None,
    ) -> None:
        unset = "unset.weights.h5" if save_weights_only else "unset.keras"
        super().__init__(
            filepath=filepath or unset,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that there is a place to save to."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint does not know where to save: give filepath='best.keras'")
        super().on_train_begin(logs)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if sirtaki.rank() == 0:
            super()._save_model(*args, **kwargs)
