"""Exchanges of tensors: allgather, broadcast and alltoall. They move any type and change no value.

Names, errors and gradients are as for the reductions (`reductions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sirtaki
import tensorflow as tf
from sirtaki import ProcessSet, global_process_set
from sirtaki.kinds import Kind
from sirtaki.tensorflow import calls, names
from sirtaki.tensorflow.arguments import TensorLike, convert, name_of_part, number_of, place_in, positions_by_type
from sirtaki.tensorflow.call_description import CallDescription


def allgather(
    tensor: TensorLike,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the tensors of all ranks along their first dimension, in rank order.

    Args:
        tensor: at least one-dimensional, of the same type and the same shape but for the first dimension;
            all types of numbers and bool.
        name: the same on every rank; see `sirtaki.tensorflow.names` for unnamed calls.
        ignore_name_scope: Horovod's; it changes nothing here.
        process_set: the ranks that take part.

    Returns:
        A tensor of the input's type and shape, with as many rows as all ranks' tensors have together.

    Raises:
        TypeError: the type cannot be sent, such as string.
        ValueError, tf.errors.InvalidArgumentError: the tensor is a scalar.

    Example:
        >>> all_scores = hvd.allgather(scores)  # shape (5, 2) and (3, 2) give (8, 2)
    """
    return _allgather("allgather", [tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[TensorLike],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gathers tensors that belong together: they are ready together, and all or none of them fail.

    Args:
        tensors: as for `allgather`; different types make one group each.

    Other arguments, and the errors, are those of `allgather`.

    Example:
        >>> all_scores, all_labels = hvd.grouped_allgather([scores, labels])
    """
    return _allgather("grouped_allgather", tensors, name, process_set)


def broadcast(
    tensor: TensorLike,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the tensor of the rank `root_rank`.

    Args:
        tensor: of the same shape and type on every rank; all types of numbers and bool. Its values
            matter on the root only.
        root_rank: the root's rank in the whole job; it must be in the process set.

    Other arguments are those of `allgather`.

    Returns:
        A tensor like the root's.

    Raises:
        TypeError: the type cannot be sent, such as string.

    Example:
        >>> permutation = hvd.broadcast(tf.random.shuffle(tf.range(1000)), root_rank=0)
    """
    converted = convert("broadcast", tensor, name)
    description = CallDescription(
        function="broadcast",
        kind=Kind.BROADCAST,
        name=name or names.automatic("broadcast"),
        process_set=number_of(process_set, "broadcast"),
        root_rank=root_rank,
    )
    return calls.broadcast(description, converted)


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assigns to every rank's variables the values that the rank `root_rank` has.

    Args:
        variables: `tf.Variable` and Keras variables, in the same order on every rank.

    Other arguments, and the errors, are those of `broadcast`.

    Returns:
        What the assignments return: the variables, or in a graph of `tf.compat.v1` the operations to run.

    Example:
        >>> hvd.broadcast_(model.variables, root_rank=0)
    """
    base = names.unique(name or "broadcast_")
    # The variable behind a Keras variable: assigning past Keras keeps autocast scopes out of it.
    natives = [v if isinstance(v, tf.Variable) else getattr(v, "value", v) for v in variables]
    return [
        variable.assign(broadcast(variable, root_rank, name=f"{base}.{i}", process_set=process_set))
        for i, variable in enumerate(natives)
    ]


def alltoall(
    tensor: TensorLike,
    splits: TensorLike | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives each rank a part of this rank's rows, and returns the rows that all ranks have given to this one.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others may not.
        splits: how many rows go to each rank of the set, in rank order: whole numbers that add up to the rows.
            Default: the same number to each.

    Other arguments are those of `allgather`.

    Returns:
        The received rows, in the order of the ranks that gave them; with `splits` also how many each gave (int32).

    Raises:
        TypeError: the type cannot be sent, or the splits are no whole numbers.
        tf.errors.InvalidArgumentError: the splits do not fit; without splits, the rows cannot be shared out evenly;
            the tensor is a scalar.

    Example:
        >>> received, given = hvd.alltoall(rows, splits=[1, 3])
    """
    function = "alltoall"
    tensor = convert(function, tensor, name)
    number = number_of(process_set, function)
    counts = tf.zeros([0], tf.int64) if splits is None else tf.convert_to_tensor(splits)
    if not counts.dtype.is_integer:
        raise TypeError(f"splits must be whole numbers, one for each rank, and they are {counts.dtype.name}")
    description = CallDescription(function, Kind.ALLTOALL, name or names.automatic(function), number)
    received, rows = calls.alltoall(description, tensor, tf.cast(counts, tf.int64))
    _set_number_of_members(rows, number)
    return received if splits is None else (received, tf.cast(rows, tf.int32))


def _allgather(function: str, tensors: Sequence[TensorLike], name: str | None, process_set: ProcessSet) -> list[Any]:
    converted = [convert(function, tensor, name) for tensor in tensors]
    number = number_of(process_set, function)
    base = name or (names.automatic(function) if converted else "")
    results: list[Any] = [None] * len(converted)
    by_type = positions_by_type(converted)
    for dtype, positions in by_type.items():
        description = CallDescription(function, Kind.ALLGATHER, name_of_part(base, dtype, len(by_type)), number)
        gathered, rows = calls.allgather(description, [converted[position] for position in positions])
        for position, result, counts in zip(positions, gathered, rows, strict=True):
            _set_number_of_members(counts, number)
            results[position] = result
    return results


def _set_number_of_members(rows: Any, process_set: int) -> None:
    if not tf.executing_eagerly() and sirtaki.is_initialized():
        rows.set_shape([place_in(process_set)[1]])
