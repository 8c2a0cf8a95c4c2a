"""What `Model.fit` does in a job of several ranks, beside training.

It warns of unreduced gradients and different weights (`guard.py`), evens out the numbers of batches
(`even_batches.py`), and makes what callbacks decide a decision of all ranks.
"""

from __future__ import annotations

import functools
import inspect
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import sirtaki
from sirtaki.errors import MismatchError
from sirtaki.reduce_ops import Max
from sirtaki.tensorflow import even_batches, guard
from sirtaki.tensorflow.callbacks import MetricAverageCallback
from sirtaki.tensorflow.keras_models import (
    Callback,
    get_learning_rate,
    implements_batch_end,
    model_classes,
    set_learning_rate,
    trains_its_own_way,
)
from sirtaki.tensorflow.optimizer import reduces_gradients

_log = logging.getLogger("sirtaki")


@dataclass(frozen=True)
class _Plan:
    """What a rank knows of a `fit` before it, and all ranks tell each other.

    Attributes:
        batches: how many an epoch has, see `even_batches`.
        why_not_shorten, why_not_end: what stands against taking fewer of them.
        decides: whether a callback decides from metrics.
        averages: whether a callback averages them.
        decides_at_batches: whether a callback may stop the training at the end of a batch.
    """

    batches: int
    why_not_shorten: str | None
    why_not_end: str | None
    decides: bool
    averages: bool
    decides_at_batches: bool


def watch() -> None:
    """Makes `Model.fit` and `Model.train_on_batch` of Keras, and of `tf_keras` if it is there, do all this."""
    for model_class in model_classes():
        owner: Any = next(cls for cls in model_class.__mro__ if "fit" in vars(cls))
        if owner not in _watched:
            _watched.append(owner)
            _watch(owner)


_watched: list[Any] = []


def _watch(owner: Any) -> None:
    owner.fit = _watched_fit(owner.fit)
    owner.train_on_batch = _watched_train_on_batch(owner.train_on_batch)


def _watched_fit(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        problem = guard.problem_before_training(self)
        if problem is not None:
            guard.warn(problem)
        if problem is not None or not guard.applies() or getattr(self, "optimizer", None) is None:
            return original(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        arguments.pop("self")
        callbacks = _as_list(arguments.get("callbacks"))
        synchronised = reduces_gradients(self.optimizer)
        unchecked = synchronised and not any(getattr(one, "broadcasts_weights", False) for one in callbacks)
        if synchronised or any(type(one).__module__.startswith("sirtaki.") for one in callbacks):
            _agree(arguments, callbacks)
        if unchecked and guard.is_built(self):
            unchecked = False
            guard.warn_of_different_weights(self)
        reductions = guard.ReductionWatch()
        result = original(self, **arguments)
        if unchecked:
            guard.warn_of_different_weights(self)
        if trains_its_own_way(self) and (problem := reductions.problem(self)) is not None:
            guard.warn(problem)
        return result

    return fit


def _watched_train_on_batch(original: Any) -> Any:
    @functools.wraps(original)
    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "_sirtaki_was_checked", False):
            object.__setattr__(self, "_sirtaki_was_checked", True)
            problem = guard.problem_before_training(self)
            if problem is not None:
                guard.warn(problem)
        return original(self, *args, **kwargs)

    return train_on_batch


def _as_list(callbacks: Any) -> list[Any]:
    listed = getattr(callbacks, "callbacks", callbacks)
    if listed is None:
        return []
    return list(listed) if isinstance(listed, (list, tuple)) else [listed]


def _agree(arguments: dict[str, Any], callbacks: list[Any]) -> None:
    """Tells the other ranks about this `fit`, and changes its arguments so that all ranks fit together."""
    own = _Plan(
        batches=even_batches.number_of_batches(
            arguments.get("x"),
            arguments.get("batch_size"),
            (arguments.get("validation_split") or 0.0) if arguments.get("validation_data") is None else 0.0,
            arguments.get("steps_per_epoch"),
        ),
        why_not_shorten=even_batches.why_not_shorten(arguments.get("x")),
        why_not_end=even_batches.why_not_end(arguments.get("x")),
        decides=any(_decides(callback) for callback in callbacks),
        averages=any(getattr(callback, "averages_metrics", False) for callback in callbacks),
        decides_at_batches=any(_decides_at_batches(callback) for callback in callbacks),
    )
    plans: list[_Plan] = sirtaki.allgather_object(own, name="fit.plan")
    _even_out(arguments, plans)
    ours: list[Any] = []
    if any(plan.decides or plan.averages for plan in plans) and not _averages_before_it_decides(callbacks):
        callbacks = [callback for callback in callbacks if not getattr(callback, "averages_metrics", False)]
        ours = [MetricAverageCallback()]
    if any(plan.decides_at_batches for plan in plans):
        last: Callback = _AgreementAtBatches()
    else:
        last = _Agreement()
    given: Any = arguments.get("callbacks")
    if hasattr(given, "callbacks") and hasattr(given, "append"):  # Keras's own CallbackList
        given.callbacks[:0] = ours
        given.append(last)
    else:
        arguments["callbacks"] = [*ours, *callbacks, last]


def _even_out(arguments: dict[str, Any], plans: list[_Plan]) -> None:
    batches = [plan.batches for plan in plans]
    if even_batches.UNKNOWN in batches:
        _raise_if_impossible(plans, [plan.why_not_end for plan in plans])
        even_batches.end_together(arguments)
        return
    finite = [number for number in batches if number != even_batches.INFINITE]
    if not finite or len(set(batches)) == 1:
        return
    fewest = min(finite)
    if arguments.get("steps_per_epoch") is None:
        too_long = [plan.why_not_shorten if plan.batches != fewest else None for plan in plans]
        _raise_if_impossible(plans, too_long)
    if sirtaki.rank() == 0:
        _log.warning("the ranks have %s batches in an epoch: all of them take %d", batches, fewest)
    if arguments.get("steps_per_epoch") is not None:
        arguments["steps_per_epoch"] = fewest
    elif batches[sirtaki.rank()] != fewest:
        even_batches.shorten(arguments, fewest)


def _raise_if_impossible(plans: list[_Plan], reasons: list[str | None]) -> None:
    for rank, reason in enumerate(reasons):
        if reason is not None:
            numbers = ["unknown" if plan.batches == even_batches.UNKNOWN else plan.batches for plan in plans]
            raise MismatchError(
                f"the ranks have different or unknown numbers of batches in an epoch, {numbers}, and on rank {rank} "
                f"{reason}: give all ranks equally many batches, or all of them the same steps_per_epoch"
            )


def _averages_before_it_decides(callbacks: list[Any]) -> bool:
    for callback in callbacks:
        if getattr(callback, "averages_metrics", False):
            return True
        if _decides(callback):
            return False
    return False


def _decides(callback: Any) -> bool:
    """Whether a callback does something that depends on metrics, as those of Keras with `monitor` do."""
    return getattr(callback, "monitor", None) is not None and getattr(callback, "save_best_only", True)


def _decides_at_batches(callback: Any) -> bool:
    """Whether a callback may stop the training at the end of a batch: TerminateOnNaN, and those of users."""
    if type(callback).__name__ == "TerminateOnNaN":
        return True
    return type(callback).__module__.split(".")[0] not in ("keras", "tf_keras", "sirtaki") and implements_batch_end(
        callback
    )


class _Agreement(Callback):
    """The last callback: if a rank stops, all do; all have the learning rate of rank 0."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        optimizer = self.model.optimizer
        try:
            rate = get_learning_rate(optimizer)
        except AttributeError:
            rate = float("nan")  # a MultiOptimizer has none of its own
        by_rank = sirtaki.allgather_object((bool(self.model.stop_training), rate), name="fit.epoch")
        if any(stops for stops, _ in by_rank):
            self.model.stop_training = True
        of_root = by_rank[0][1]
        if any(other != of_root for _, other in by_rank) and of_root == of_root:
            if sirtaki.rank() == 0:
                _log.warning(
                    "callbacks have set different learning rates, %s: all ranks take that of rank 0",
                    [other for _, other in by_rank],
                )
            if rate != of_root:
                set_learning_rate(optimizer, of_root)


class _AgreementAtBatches(_Agreement):
    """For trainings with callbacks that may stop at a batch."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        stops = np.array([bool(self.model.stop_training)], np.uint8)
        if sirtaki.allreduce(stops, op=Max, name="fit.batch")[0]:
            self.model.stop_training = True
