"""Equal numbers of batches on all ranks, whatever data each of them has.

A rank that runs out of batches would leave the others waiting for its gradients. Where Keras can know how many batches
an epoch has, ranks agree before training on the smallest number; where it cannot (a generator, a dataset of unknown
length), they agree before each batch whether all of them have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import sirtaki
import tensorflow as tf
from sirtaki.reduce_ops import Min

INFINITE = -1
UNKNOWN = -2


def number_of_batches(x: Any, batch_size: int | None, validation_split: float, steps_per_epoch: int | None) -> int:
    """How many batches an epoch over `x` has: a number, `INFINITE` or `UNKNOWN`."""
    if steps_per_epoch is not None:
        return int(steps_per_epoch)
    if isinstance(x, tf.data.Dataset):
        return int(x.cardinality())
    if _is_map_style(x):
        return len(x)
    rows = _rows(x)
    if rows is None:
        return UNKNOWN
    return math.ceil(_rows_to_train_on(rows, validation_split) / (batch_size or 32))


def why_not_shorten(x: Any) -> str | None:
    """Why this kind of data cannot be cut to fewer batches; None if it can."""
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)) or (_rows(x) is not None and not _is_map_style(x)):
        return None
    return f"data of the type {type(x).__name__} cannot be cut"


def why_not_end(x: Any) -> str | None:
    """Why this kind of data cannot be ended when another rank's data end; None if it can."""
    if isinstance(x, Iterator):
        return None
    if not isinstance(x, tf.data.Dataset):
        return f"data of the type {type(x).__name__} cannot be ended together with others"
    for spec in tf.nest.flatten(x.element_spec):
        if not isinstance(spec, tf.TensorSpec):
            return (
                f"a dataset of unknown length whose elements contain a {type(spec).__name__} cannot be ended together "
                "with others (tf.data.experimental.assert_cardinality tells its length)"
            )
    return None


def shorten(arguments: dict[str, Any], batches: int) -> None:
    """Makes the arguments of a `fit` give so many batches in each epoch, if there is no reason `why_not_shorten`."""
    x = arguments["x"]
    if isinstance(x, tf.data.Dataset):
        arguments["x"] = x.take(batches)
    elif isinstance(x, keras.utils.PyDataset):
        arguments["x"] = _Shortened(x, batches)
    else:
        _shorten_arrays(arguments, batches)


def end_together(arguments: dict[str, Any]) -> None:
    """Makes the data of a `fit` end when that of one rank does, if there is no reason `why_not_end`."""
    x = arguments["x"]
    arguments["x"] = _until_one_ends(x) if isinstance(x, tf.data.Dataset) else _generate_until_one_ends(x)


def all_have_one(has_one: bool) -> bool:
    """Whether every rank has a batch."""
    return bool(sirtaki.allreduce(np.array([has_one], np.uint8), op=Min, name="fit.has_batch")[0])


def _generate_until_one_ends(batches: Iterator[Any]) -> Iterator[Any]:
    nothing = object()
    while all_have_one((batch := next(batches, nothing)) is not nothing):
        yield batch


def _until_one_ends(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, which asks the other ranks before it gives an element.

    The element stays inside TensorFlow: after the last one comes a marked one without content.
    """
    marked = dataset.map(lambda *element: (True, element if len(element) > 1 else element[0]))
    end = tf.data.Dataset.from_tensors(0).map(lambda _: (False, tf.nest.map_structure(_empty, dataset.element_spec)))

    def agreed(is_batch: Any, _: Any) -> Any:
        answer = tf.numpy_function(lambda value: np.bool_(all_have_one(bool(value))), [is_batch], tf.bool)
        return tf.ensure_shape(answer, [])

    evened = marked.concatenate(end).take_while(agreed).map(lambda _, element: element)
    # A batch fetched ahead of its time would ask ranks that have ended their training.
    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False
    return evened.with_options(settings)


def _empty(spec: Any) -> Any:
    shape = [size or 0 for size in spec.shape] if spec.shape.rank is not None else []
    value = tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
    return tf.raw_ops.PlaceholderWithDefault(input=value, shape=spec.shape)  # with the other elements' static shape


class _Shortened(keras.utils.PyDataset):
    """The first batches of another dataset."""

    def __init__(self, dataset: Any, batches: int) -> None:
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self._dataset = dataset
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def on_epoch_begin(self) -> None:
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._dataset.on_epoch_end()


def _shorten_arrays(arguments: dict[str, Any], batches: int) -> None:
    """Cuts arrays; rows that Keras would split off for validation are split off first, as Keras does."""
    split = arguments.get("validation_split") or 0.0
    rows = _rows(arguments["x"])
    assert rows is not None
    to_train_on = _rows_to_train_on(rows, split)
    if split and arguments.get("validation_data") is None:
        parts = [_slice(arguments.get(key), to_train_on, rows) for key in ("x", "y", "sample_weight")]
        arguments["validation_data"] = tuple(parts if parts[2] is not None else parts[:2])
        arguments["validation_split"] = 0.0
    kept = min(to_train_on, batches * (arguments.get("batch_size") or 32))
    for key in ("x", "y", "sample_weight"):
        arguments[key] = _slice(arguments.get(key), 0, kept)


def _slice(data: Any, begin: int, end: int) -> Any:
    def part(array: Any) -> Any:
        return array.iloc[begin:end] if hasattr(array, "iloc") else array[begin:end]

    return None if data is None else _map_arrays(part, data)


def _map_arrays(function: Callable[[Any], Any], data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _map_arrays(function, value) for key, value in data.items()}
    if isinstance(data, (list, tuple)) and data and hasattr(data[0], "shape"):
        return type(data)(_map_arrays(function, value) for value in data)
    return function(data)


def _rows_to_train_on(rows: int, validation_split: float) -> int:
    return math.floor(rows * (1.0 - validation_split)) if validation_split else rows


def _rows(x: Any) -> int | None:
    if isinstance(x, dict):
        return _rows(next(iter(x.values()))) if x else None
    if isinstance(x, (list, tuple)) and x:
        return _rows(x[0]) if hasattr(x[0], "shape") else len(x)
    shape = getattr(x, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) > 0 and shape[0] is not None else None


def _is_map_style(x: Any) -> bool:
    """Whether this is a dataset that gives batches by number."""
    return (
        not hasattr(x, "shape")
        and hasattr(x, "__getitem__")
        and hasattr(x, "__len__")
        and not isinstance(x, (list, tuple, dict))
    )
