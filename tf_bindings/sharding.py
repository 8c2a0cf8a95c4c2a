"""`shard`: this rank's part of the data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import sirtaki
import tensorflow as tf
from sirtaki import ProcessSet, global_process_set
from sirtaki.errors import InvalidArgumentError

_REMAINDERS = ("drop", "keep", "pad")


def shard(data: Any, remainder: str = "drop", process_set: ProcessSet = global_process_set) -> Any:
    """Returns this rank's part of the data: every size-th row or element, beginning with the rank-th.

    Together the ranks' n-th batches are the n-th batch that one process would have, if nothing is shuffled. Shuffle
    after sharding, or before it with the same seed on all ranks.

    Args:
        data: an array, or a tuple, list or dict of arrays with equally many rows; a `tf.data.Dataset`, whose elements
            are shared out (before or after batching); or a `keras.utils.PyDataset`, whose batches are.
        remainder: what becomes of rows or elements that do not go evenly into the number of ranks. "drop" leaves them
            out, so that all ranks have equally many. "keep" gives them to the first ranks: `fit` then ends an epoch
            when the first rank has no batch any more. "pad" is for a tuple of arrays ``(x, y)`` or ``(x, y,
            sample_weight)`` and gives ranks that have none a repeated row whose weight is zero.
        process_set: the ranks that share; others get an error.

    Returns:
        Data of the same kind. With "pad" the tuple ``(x, y, sample_weight)``.

    Raises:
        InvalidArgumentError: this rank is not in the process set; arrays have different numbers of rows; "pad" and
            something else than ``(x, y)``; or there are fewer rows than ranks.
        TypeError: this kind of data is not known.

    Example:
        >>> x, y = hvd.shard((x, y))
        >>> model.fit(x, y, batch_size=32)
    """
    rank, size = process_set.rank(), process_set.size()
    if rank is None:
        raise InvalidArgumentError(
            f"shard: rank {sirtaki.rank()} is not in {process_set!r}, whose ranks share the data"
        )
    if remainder not in _REMAINDERS:
        raise InvalidArgumentError(f"shard: remainder={remainder!r} must be one of {', '.join(_REMAINDERS)}")
    if remainder == "pad":
        return _padded(data, rank, size)
    drop = remainder == "drop"
    if isinstance(data, tf.data.Dataset):
        return _of_dataset(data, rank, size, drop)
    if isinstance(data, keras.utils.PyDataset):
        return _EachSizeth(data, rank, size, drop)
    rows = _number_of_rows(data)
    return _map(lambda array: _rows(array, rank, size, rows - rows % size if drop else rows), data)


def _of_dataset(dataset: tf.data.Dataset, rank: int, size: int, drop: bool) -> tf.data.Dataset:
    number = int(dataset.cardinality())
    if drop and number > 0:
        dataset = dataset.take(number - number % size)
    if drop and number == tf.data.UNKNOWN_CARDINALITY:
        # Only a whole round of all ranks counts.
        rounds = dataset.batch(size, drop_remainder=True) if _can_be_batched(dataset) else None
        if rounds is not None:
            return rounds.map(lambda *element: tf.nest.map_structure(lambda part: part[rank], _one(element)))
    return dataset.shard(size, rank)


def _can_be_batched(dataset: tf.data.Dataset) -> bool:
    return all(
        isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        for spec in tf.nest.flatten(dataset.element_spec)
    )


def _one(element: tuple[Any, ...]) -> Any:
    return element[0] if len(element) == 1 else element


class _EachSizeth(keras.utils.PyDataset):
    """Every size-th batch of another dataset."""

    def __init__(self, dataset: Any, rank: int, size: int, drop: bool) -> None:
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self._dataset = dataset
        self._rank = rank
        self._size = size
        self._drop = drop

    def __len__(self) -> int:
        number = len(self._dataset)
        return number // self._size if self._drop else len(range(self._rank, number, self._size))

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._rank + index * self._size]

    def on_epoch_begin(self) -> None:
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._dataset.on_epoch_end()


def _padded(data: Any, rank: int, size: int) -> Any:
    if not isinstance(data, tuple) or len(data) not in (2, 3):
        raise InvalidArgumentError("shard: remainder='pad' takes a tuple (x, y) or (x, y, sample_weight)")
    rows = _number_of_rows(data)
    each = -(-rows // size)
    x, y = (_map(lambda array: _take(array, rank, size, rows, each), part) for part in data[:2])
    weights = np.asarray(data[2]) if len(data) == 3 else np.ones(rows, np.float32)
    own = _take(weights, rank, size, rows, each)
    if rank + (each - 1) * size >= rows:
        own = np.array(own)
        own[-1] = 0
    return x, y, own


def _take(array: Any, rank: int, size: int, rows: int, each: int) -> Any:
    numbers = [min(rank + i * size, rows - 1) for i in range(each)]
    return array.iloc[numbers] if hasattr(array, "iloc") else np.asarray(array)[numbers]


def _rows(array: Any, rank: int, size: int, end: int) -> Any:
    return array.iloc[rank:end:size] if hasattr(array, "iloc") else array[rank:end:size]


def _map(function: Any, data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _map(function, value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(_map(function, value) for value in data)
    return function(data)


def _number_of_rows(data: Any) -> int:
    arrays = [array for array in _leaves(data) if array is not None]
    for array in arrays:
        if not getattr(array, "shape", ()):
            raise TypeError(
                f"shard: data of the type {type(array).__name__} cannot be shared out: give arrays, a tf.data.Dataset "
                "or a keras.utils.PyDataset"
            )
    numbers = {int(array.shape[0]) for array in arrays}
    if len(numbers) != 1:
        raise InvalidArgumentError(f"shard: the arrays must have equally many rows, and have {sorted(numbers)}")
    rows = numbers.pop()
    if rows < sirtaki.size():
        raise InvalidArgumentError(f"shard: {rows} rows are too few for {sirtaki.size()} ranks")
    return rows


def _leaves(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in _leaves(value)]
    if isinstance(data, (list, tuple)):
        return [leaf for value in data for leaf in _leaves(value)]
    return [data]
