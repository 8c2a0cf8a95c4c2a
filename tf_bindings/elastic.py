"""State that can be saved, restored and given to all ranks: Horovod's interface for elastic jobs.

A job of Sirtaki has the ranks that it was started with: no rank joins later, and the death of one ends it. A script
that is written for elastic jobs runs unchanged as such a job: `run` gives all ranks the state of rank 0 and calls the
function once. To go on after a failure, save a checkpoint on rank 0 and start the job again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sirtaki
import tensorflow as tf
from sirtaki import rank, shutdown
from sirtaki.horovod.common.elastic import ObjectState, run_fn
from sirtaki.horovod.common.exceptions import HorovodInternalError
from sirtaki.tensorflow.functions import broadcast_object, broadcast_object_fn
from sirtaki.tensorflow.initialization import init
from sirtaki.tensorflow.keras_models import build_optimizer, optimizer_state
from sirtaki.tensorflow.variables import broadcast_variables, native

__all__ = [
    "HorovodInternalError",
    "ObjectState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "init",
    "rank",
    "run",
    "run_fn",
    "shutdown",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function that gives all ranks the state of rank 0 before it begins.

    Args:
        func: takes a state (`TensorFlowState`, `TensorFlowKerasState`, `ObjectState`) first.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.epoch in range(state.epoch, epochs):
        ...         train_epoch(state)
        ...         state.commit()
    """
    return run_fn(func, _nothing_to_reset)


def _nothing_to_reset() -> None:
    """A job keeps its ranks, so there is nothing to join anew."""


class _VariablesState(ObjectState):
    """Variables, and attributes of any type."""

    def __init__(self, **kwargs: Any) -> None:
        self._saved_variables: list[Any] = []
        super().__init__(functools.partial(sirtaki.broadcast_object), sirtaki.rank, **kwargs)

    def _variables(self) -> list[Any]:
        raise NotImplementedError

    def save(self) -> None:
        """Keeps the values in memory."""
        self._saved_variables = [tf.identity(native(variable)) for variable in self._variables()]
        super().save()

    def restore(self) -> None:
        """Sets everything back to what was saved."""
        for variable, value in zip(self._variables(), self._saved_variables, strict=True):
            native(variable).assign(value)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of rank 0, and saves them."""
        variables = self._variables()
        if variables:
            broadcast_variables(variables, root_rank=0)
        self._saved_variables = [tf.identity(native(variable)) for variable in variables]
        super().sync()


class TensorFlowState(_VariablesState):
    """The state of TensorFlow variables, and attributes.

    Args:
        variables: those that belong to the state.
        session: Horovod's, for graphs of `tf.compat.v1`: there, broadcast variables with
            `BroadcastGlobalVariablesHook` and save them with a `Saver`.
        **kwargs: attributes and their first values.

    Raises:
        NotImplementedError: a session is given.

    Example:
        >>> state = hvd.elastic.TensorFlowState(variables=model.variables, batch=0)
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        if session is not None:
            raise NotImplementedError(
                "TensorFlowState holds variables of TensorFlow 2. In a session of tf.compat.v1, use "
                "BroadcastGlobalVariablesHook and a Saver"
            )
        self.variables = list(variables or [])
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return self.variables


class TensorFlowKerasState(_VariablesState):
    """The state of a Keras model and its optimizer, and attributes.

    Args:
        model: built or not; it must be when the state is saved for the first time.
        optimizer: default: that of the model.
        backend: Horovod's; it changes nothing here.
        **kwargs: attributes and their first values.

    Example:
        >>> state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is not None and model.built:
            build_optimizer(self.optimizer, model.trainable_variables)
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return [*self.model.weights, *optimizer_state(self.optimizer)]
