"""Elastic state for `fit`: see `sirtaki.tensorflow.elastic` for what it means in a job whose ranks do not change."""

from __future__ import annotations

from typing import Any

from sirtaki.tensorflow.elastic import TensorFlowKerasState, run
from sirtaki.tensorflow.keras_models import Callback

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """The state of a Keras model and its optimizer, and attributes.

    Args:
        model, optimizer, **kwargs: as for `TensorFlowKerasState`.

    Example:
        >>> state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, None, **kwargs)


class CommitStateCallback(Callback):
    """Saves a state every few batches, and at the end of each epoch.

    Args:
        state: has a method ``commit``.
        batches_per_commit: how many batches lie between two.

    Example:
        >>> model.fit(x, y, callbacks=[hvd.elastic.CommitStateCallback(state, batches_per_commit=100)])
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._batches = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins to count."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, if it is time to."""
        self._batches += 1
        if self._batches >= self.batches_per_commit:
            self.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves."""
        self.commit()

    def commit(self) -> None:
        """Saves now, and begins to count anew."""
        self.state.commit()
        self._batches = 0


class UpdateBatchStateCallback(Callback):
    """Keeps ``state.batch`` the number of batches of the epoch that are done, and 0 between epochs.

    Horovod then takes up an epoch where it has been left; with a state that comes from a checkpoint, give `fit`
    ``steps_per_epoch`` for the first epoch to do so.

    Args:
        state: has an attribute ``batch``.

    Example:
        >>> model.fit(x, y, callbacks=[hvd.elastic.UpdateBatchStateCallback(state)])
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the batch."""
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins to count anew."""
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Keeps ``state.epoch`` the number of epochs that are done.

    Args:
        state: has an attribute ``epoch``. It counts on from its value when `fit` begins.

    Example:
        >>> model.fit(x, y, callbacks=[hvd.elastic.UpdateEpochStateCallback(state)])
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._first = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Remembers where it begins."""
        self._first = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the epoch."""
        self.state.epoch = self._first + epoch + 1
