"""Horovod's helpers around the tf.data service: they exist to say what to use in their place.

They start and find the dispatchers and workers of TensorFlow's own data service. A job of Sirtaki needs no help of its
own for that: start `tf.data.experimental.service.DispatchServer` and `WorkerServer` where the data are to be prepared,
and apply `tf.data.experimental.service.distribute` to the dataset. For a part of the data on each rank there is
`sirtaki.tensorflow.shard`.
"""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: Sirtaki has no compute service of its own. Start tf.data.experimental.service.DispatchServer and "
        "WorkerServer, and apply tf.data.experimental.service.distribute to the dataset; for a part of the data on "
        "each rank use sirtaki.tensorflow.shard"
    )


class TfDataServiceConfig:
    """Not available, see the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("TfDataServiceConfig")


class ComputeClient:
    """Not available, see the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("ComputeClient")


def compute_worker_fn(compute_config: Any) -> NoReturn:
    """Not available, see the module."""
    _refuse("compute_worker_fn")


def send_to_data_service(*args: Any, **kwargs: Any) -> NoReturn:
    """Not available, see the module."""
    _refuse("send_to_data_service")


def tf_data_service(compute_config: Any, rank: int) -> NoReturn:
    """Not available, see the module."""
    _refuse("tf_data_service")
