"""Equal variables on all ranks, for graphs and sessions of `tf.compat.v1`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from sirtaki.tensorflow.variables import broadcast_variables


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns an operation that gives every rank the root's values of all global variables of the default graph.

    Args:
        root_rank: the rank whose values all get.

    Raises:
        RuntimeError: TensorFlow executes eagerly, where there are no global variables.

    Example:
        >>> session.run(hvd.broadcast_global_variables(0))  # in a tf.compat.v1 graph
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables needs a graph of tf.compat.v1: TensorFlow 2 keeps no list of all variables. "
            "Use hvd.broadcast_variables(model.variables + optimizer.variables, root_rank), or the callback "
            "BroadcastGlobalVariablesCallback in fit()"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives every rank the root's values of all global variables once a session is created or restored.

    Args:
        root_rank: the rank whose values all get.
        device: Horovod's; it changes nothing here.

    Example:
        >>> hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        >>> with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        ...     session.run(train_op)
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None  # Horovod's name

    def begin(self) -> None:
        """Adds the broadcast to the graph, before that is finalised."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast."""
        session.run(self.bcast_op)
