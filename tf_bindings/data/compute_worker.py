"""Horovod's worker of the tf.data service; see `compute_service` for what to use in its place."""

from __future__ import annotations

from typing import Any, NoReturn

from sirtaki.tensorflow.data import compute_service
from sirtaki.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn

__all__ = ["ComputeService", "TfDataServiceConfig", "compute_worker_fn", "main"]


class ComputeService:
    """Not available, see `compute_service`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        compute_service._refuse("ComputeService")


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> NoReturn:
    """Not available, see `compute_service`."""
    compute_service._refuse("compute_worker")
