"""Learning rates that follow the epochs: callbacks for schedules and warm-up, with Horovod's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sirtaki
from sirtaki.tensorflow.keras_models import Callback, get_learning_rate, set_learning_rate


class LearningRateScheduleCallback(Callback):
    """Multiplies the initial learning rate by a factor that depends on the epoch.

    Several of them can follow one another, each with its own epochs.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a number, or a function of the epoch (a fraction of it, if not `staircase`).
        start_epoch: the first epoch in which it acts.
        end_epoch: the first epoch in which it does not act any more; None: it acts until the end.
        staircase: changes the rate at the beginning of an epoch, and not at each batch.
        momentum_correction: scales the velocity of SGD by the change of the rate, which Keras's velocity contains, as
            in "Accurate, Large Minibatch SGD" (Goyal et al., 2017, section 2.2, remark 2).
        steps_per_epoch: batches in an epoch, if Keras does not know it and `staircase` is False.

    Raises:
        ValueError: `steps_per_epoch` is needed and unknown (when training begins).
        TypeError: the optimizer's learning rate follows a schedule of its own.

    Example:
        >>> hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.1, start_epoch=30)
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Finds out how many batches an epoch has."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} changes the learning rate at each batch and Keras does not know how many "
                    "an epoch has: give steps_per_epoch"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the epoch's rate."""
        self.current_epoch = epoch
        if self.staircase and self._acts():
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the batch's rate."""
        if not self.staircase and self._acts() and self.steps_per_epoch:
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reports the rate."""
        if logs is not None:
            logs["lr"] = get_learning_rate(self.model.optimizer)  # Horovod's name

    def _acts(self) -> bool:
        return self.current_epoch >= self.start_epoch and (
            self.end_epoch is None or self.current_epoch < self.end_epoch
        )

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = get_learning_rate(optimizer)
        new = self.initial_lr * self.multiplier(epoch)
        if new == old:
            return
        set_learning_rate(optimizer, new)
        if self.momentum_correction and old:
            for velocity in _velocities(optimizer):
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from that of one rank to `initial_lr` over the first epochs.

    From "Accurate, Large Minibatch SGD" (Goyal et al., 2017, section 2.2): with a rate scaled by the number of ranks,
    the first steps of a large batch go astray unless the rate grows from 1/size of it.

    Args:
        initial_lr: the rate at the end of the warm-up, already multiplied by `size()`.
        warmup_epochs: how many epochs it takes.
        momentum_correction, steps_per_epoch: as for `LearningRateScheduleCallback`.
        verbose: 1 prints the rate that the warm-up has ended with.

    Example:
        >>> hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=3)
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch of the warm-up, not the first after it, has the full rate.
            epoch = min(epoch + 1 / (self.steps_per_epoch or 1), warmup_epochs)
            return (1 + epoch * (sirtaki.size() - 1) / warmup_epochs) / sirtaki.size() if warmup_epochs else 1.0

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reports the rate."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and self.end_epoch is not None and epoch == self.end_epoch - 1 and sirtaki.rank() == 0:
            rate = get_learning_rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: the warm-up of the learning rate has ended at {rate:.6g}", flush=True)


def _velocities(optimizer: Any) -> list[Any]:
    """The momentum variables of SGD, which Keras keeps multiplied by the learning rate; none of other optimizers."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(optimizer, "momentum", 0) or "SGD" not in {cls.__name__ for cls in type(optimizer).__mro__}:
        return []
    found = getattr(optimizer, "momentums", None) or []
    return [velocity for velocity in found if velocity is not None]
