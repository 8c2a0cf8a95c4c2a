"""Metrics over all ranks: what one process would print that had seen the data of all of them.

Metrics of Keras keep sums (of values and weights, of true and false positives, ...), so adding up their variables over
the ranks and asking for the result gives the exact value, however many samples each rank has had. What a model
reports otherwise, from its own train_step or a metric of a class that may keep something else, is averaged, weighted by
the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import sirtaki
from sirtaki.errors import MismatchError

_VALIDATION = "val_"


@dataclass(frozen=True)
class Seen:
    """What a model's metrics hold at a moment.

    Attributes:
        states: the values of the variables that can be added up.
        samples: how many samples they have seen, or the sum of their weights; 0 if the model does not count them.
        results: what the metrics say.
    """

    states: list[Any]
    samples: float
    results: dict[str, float]


def seen_by(model: Any) -> Seen:
    """Returns what the metrics of this rank hold now."""
    states = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in _variables(model)]
    return Seen(states, _samples(model), _results(model))


def averaged(model: Any, logs: dict[str, Any], training: Seen, validation: Seen | None) -> dict[str, float]:
    """Returns the logs of an epoch with each metric replaced by its value over all ranks.

    Args:
        model: whose metrics were seen.
        logs: what Keras reports of the epoch.
        training, validation: what the metrics have held at the end of both; None without validation.

    Raises:
        MismatchError: the ranks have different metrics.
    """
    values = {key: float(value) for key, value in logs.items()}
    by_rank = sirtaki.allgather_object((values, training, validation), name="MetricAverageCallback")
    _check(by_rank)
    result: dict[str, float] = {}
    for prefix, seen, position in (("", training, 1), (_VALIDATION, validation, 2)):
        if seen is not None:
            own = {
                key.removeprefix(prefix): value
                for key, value in values.items()
                if validation is None or key.startswith(_VALIDATION) == bool(prefix)
            }
            ranks: list[tuple[dict[str, float], Any]] = [(metrics[0], metrics[position]) for metrics in by_rank]
            combined = _combine(model, own, seen, ranks, prefix)
            result.update({prefix + key: value for key, value in combined.items()})
    return {key: result.get(key, value) for key, value in values.items()}


def _combine(
    model: Any, own: dict[str, float], seen: Seen, by_rank: list[tuple[dict[str, float], Seen]], prefix: str
) -> dict[str, float]:
    exact = _of_all_samples(model, [other.states for _, other in by_rank])
    uncertain = {metric.name for metric in _leaves(model) if not _keeps_sums(metric)}
    total = math.fsum(other.samples for _, other in by_rank)
    result = {}
    for key, value in own.items():
        # A train_step may report something else under the name of a metric; then it is not the metric's to tell.
        is_metrics = key in exact and np.isclose(seen.results[key], value, rtol=1e-5, equal_nan=True)
        if is_metrics and key not in uncertain:
            result[key] = exact[key]
        else:
            weighted = [(metrics[prefix + key], other.samples if total else 1.0) for metrics, other in by_rank]
            weighted = [(one, weight) for one, weight in weighted if weight]
            result[key] = math.fsum(one * weight for one, weight in weighted) / math.fsum(w for _, w in weighted)
    return result


def _of_all_samples(model: Any, states_by_rank: list[list[Any]]) -> dict[str, float]:
    """What the model's metrics say if they have seen what all ranks have."""
    variables = _variables(model)
    kept = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
    for variable, *states in zip(variables, *states_by_rank, strict=True):
        variable.assign(np.sum(states, axis=0, dtype=np.float64).astype(states[0].dtype))
    results = _results(model)
    for variable, state in zip(variables, kept, strict=True):
        variable.assign(state)
    return results


def _variables(model: Any) -> list[Any]:
    return [variable for metric in _leaves(model) if _keeps_sums(metric) for variable in metric.variables]


def _results(model: Any) -> dict[str, float]:
    found = model.get_metrics_result()
    return {key: float(value) for key, value in found.items() if np.ndim(value) == 0}


def _leaves(model: Any) -> Iterator[Any]:
    """The model's metrics, without those that only hold others."""
    waiting = list(model.metrics)
    seen = set()
    while waiting:
        metric = waiting.pop(0)
        if id(metric) in seen:
            continue
        seen.add(id(metric))
        inside = getattr(metric, "metrics", None)
        if inside:
            waiting.extend(inside)
        else:
            yield metric


def _keeps_sums(metric: Any) -> bool:
    """Whether all of the metric's state can be added up, as that of all of Keras's own metrics."""
    return type(metric).__module__.split(".")[0] in ("keras", "tf_keras")


def _samples(model: Any) -> float:
    """How many samples the model's metrics have seen, or their weights' sum; 0 if it does not count them."""
    tracker = getattr(model, "_loss_tracker", None) or getattr(
        getattr(model, "compiled_loss", None), "_loss_metric", None
    )
    count = getattr(tracker, "count", None)
    return 0.0 if count is None else float(keras.ops.convert_to_numpy(count))


def _check(by_rank: list[tuple[dict[str, float], Seen, Seen | None]]) -> None:
    expected = by_rank[0]
    for rank, (metrics, training, validation) in enumerate(by_rank):
        same = metrics.keys() == expected[0].keys() and len(training.states) == len(expected[1].states)
        if not same or (validation is None) != (expected[2] is None):
            raise MismatchError(
                f"MetricAverageCallback: rank {rank} has the metrics {sorted(metrics)} and rank 0 has "
                f"{sorted(expected[0])}; give every rank the same metrics and validation data on all or none"
            )
