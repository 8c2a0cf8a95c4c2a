"""Collectives on values: numbers, arrays or tensors, with the arguments of `horovod.tensorflow.keras`."""

from __future__ import annotations

from typing import Any

from sirtaki import Average
from sirtaki.tensorflow import exchanges, reductions
from sirtaki.tensorflow.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduces a value over all ranks; arguments and result are those of `sirtaki.tensorflow.allreduce`.

    Example:
        >>> mean = hvd.allreduce(0.5)
    """
    return reductions.allreduce(
        value,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates the values of all ranks along their first dimension; see `sirtaki.tensorflow.allgather`.

    Example:
        >>> all_scores = hvd.allgather([0.5, 0.7])
    """
    return exchanges.allgather(value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Gives every rank the root's value; see `sirtaki.tensorflow.broadcast`.

    Example:
        >>> threshold = hvd.broadcast(0.5, root_rank=0)
    """
    return exchanges.broadcast(value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduces a value over all ranks and returns this rank's share; see `sirtaki.tensorflow.reducescatter`.

    Example:
        >>> own = hvd.reducescatter([1.0, 2.0])
    """
    return reductions.reducescatter(value, op=op, name=name)
