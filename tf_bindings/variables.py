"""Gives every rank the same variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

import sirtaki
from sirtaki.errors import MismatchError
from sirtaki.tensorflow import names, ops


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Assigns to every rank's variables the values that the rank `root_rank` has.

    Args:
        variables: `tf.Variable` and Keras variables of any type of numbers or bool, in the same order on
            every rank; the optimizer's and the seed generators' states can be among them.
        root_rank: from 0 to `size() - 1`.

    Raises:
        MismatchError: the ranks have different numbers, shapes or types of variables (eagerly; within a
            `tf.function` the variables' own operations report it).
        TypeError: a variable has a type that cannot be sent, such as string.

    Example:
        >>> hvd.broadcast_variables(model.variables + model.optimizer.variables, root_rank=0)
    """
    # The variable behind a Keras variable: assigning past Keras keeps autocast scopes out of it.
    natives = [_native(variable) for variable in variables]
    if tf.executing_eagerly():
        _check_agreement(natives, root_rank)
    base = names.unique("broadcast_variables")
    for position, variable in enumerate(natives):
        variable.assign(ops.broadcast(variable, root_rank, name=f"{base}.{position}"))


def _native(variable: Any) -> tf.Variable:
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def _check_agreement(variables: list[tf.Variable], root_rank: int) -> None:
    """Compares descriptions first: with one variable more on one rank, broadcasts would meet wrong partners."""
    described = [(variable.name, tuple(variable.shape), variable.dtype.name) for variable in variables]
    by_rank = sirtaki.allgather_object(described, name="broadcast_variables.descriptions")
    expected = by_rank[root_rank]
    for rank, found in enumerate(by_rank):
        if len(found) != len(expected):
            raise MismatchError(
                f"broadcast_variables: rank {rank} has {len(found)} variables and the root, rank {root_rank}, has "
                f"{len(expected)}; every rank must pass the same variables in the same order"
            )
        for position, (its, roots) in enumerate(zip(found, expected, strict=True)):
            if its[1:] != roots[1:]:
                raise MismatchError(
                    f"broadcast_variables: variable {position} is {its[0]} of shape {its[1]} and type {its[2]} on "
                    f"rank {rank}, and {roots[0]} of shape {roots[1]} and type {roots[2]} on the root, rank "
                    f"{root_rank}; every rank must pass the same variables in the same order"
                )
