"""Gives every rank the same variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import sirtaki
import tensorflow as tf
from sirtaki import ProcessSet, global_process_set
from sirtaki.errors import InvalidArgumentError, MismatchError
from sirtaki.tensorflow.exchanges import broadcast_


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns to every rank's variables the values that the rank `root_rank` has.

    Args:
        variables: `tf.Variable` and Keras variables of any type of numbers or bool, in the same order on
            every rank; the optimizer's and the seed generators' states can be among them.
        root_rank: from 0 to `size() - 1`.
        process_set: the ranks that take part.
        inplace: Horovod's; it changes nothing here.

    Returns:
        None; in a graph of `tf.compat.v1` the operation to run.

    Raises:
        MismatchError: the ranks have different numbers, shapes or types of variables (eagerly; within a
            `tf.function` the variables' own operations report it).
        InvalidArgumentError: there is no such root rank.
        TypeError: a variable has a type that cannot be sent, such as string.

    Example:
        >>> hvd.broadcast_variables(model.variables + model.optimizer.variables, root_rank=0)
    """
    if root_rank not in process_set.ranks:
        where = f"0 to {sirtaki.size() - 1}" if process_set is global_process_set else process_set.ranks
        raise InvalidArgumentError(f"broadcast_variables: root_rank is {root_rank!r}, but the ranks are {where}")
    natives = [native(variable) for variable in variables]
    if tf.executing_eagerly():
        _check_agreement(natives, root_rank, process_set)
    assigned = broadcast_(natives, root_rank, name="broadcast_variables", process_set=process_set)
    is_v1_graph = not tf.executing_eagerly() and not tf.inside_function()
    return tf.group(*assigned, name="broadcast_variables") if is_v1_graph else None


def native(variable: Any) -> Any:
    """The TensorFlow variable behind a Keras variable, past Keras's autocast scopes; others as they are."""
    return getattr(variable, "_value", variable) if isinstance(variable, keras.Variable) else variable


def identity(variable: Any) -> int:
    """A number that a Keras variable and the TensorFlow variable behind it share, while they live."""
    return id(native(variable))


def _check_agreement(variables: list[tf.Variable], root_rank: int, process_set: ProcessSet) -> None:
    """Compares descriptions first: with a variable more on one rank, broadcasts would meet wrong partners."""
    described = [(variable.name, tuple(variable.shape), variable.dtype.name) for variable in variables]
    gathered = sirtaki.allgather_object(described, name="broadcast_variables.descriptions", process_set=process_set)
    by_rank = dict(zip(process_set.ranks, gathered, strict=True))
    expected = by_rank[root_rank]
    remedy = "every rank must pass the same variables in the same order"
    for rank, found in by_rank.items():
        if len(found) != len(expected):
            raise MismatchError(
                f"broadcast_variables: rank {rank} has {len(found)} variables and rank {root_rank}, the "
                f"root, has {len(expected)}: {remedy}"
            )
        for position, (own, roots) in enumerate(zip(found, expected, strict=True)):
            if own[1:] != roots[1:]:
                raise MismatchError(
                    f"broadcast_variables: variable {position} is {_describe(own)} on rank {rank}, and "
                    f"{_describe(roots)} on the root, rank {root_rank}: {remedy}"
                )


def _describe(variable: tuple[str, tuple[int, ...], str]) -> str:
    name, shape, dtype = variable
    return f"{name} of shape {shape} and type {dtype}"
