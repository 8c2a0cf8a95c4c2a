"""What passed through TensorFlow's side of the library in this process, for tests and debugging.

Example:
    >>> hvd.diagnostics.reset()
    >>> train_step(images, labels)
    >>> hvd.diagnostics.counters().gradients == len(model.trainable_variables)
    True
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from sirtaki.tensorflow._library import library


@dataclass(frozen=True)
class Counters:
    """Numbers since the start of the process or the last `reset`.

    Attributes:
        allreduced: tensors submitted for an allreduce; those of groups count one by one.
        allgathered: tensors submitted for an allgather.
        broadcast: tensors submitted for a broadcast.
        alltoall: tensors submitted for an alltoall.
        reducescattered: tensors submitted for a reducescatter; those of groups count one by one.
        gradients: of all these, the gradients that an optimizer or a tape reduces.
        requests: submissions to the engine; a group is one.
        in_place: results that lie in their input's buffer.
        in_flight: requests submitted and not finished, now.
        most_in_flight: the most requests that were in flight at one time.
    """

    allreduced: int
    allgathered: int
    broadcast: int
    alltoall: int
    reducescattered: int
    gradients: int
    requests: int
    in_place: int
    in_flight: int
    most_in_flight: int


class _RawCounters(ctypes.Structure):
    # In step with sirtaki_ops_counters in native/tensorflow/engine_link.h.
    _fields_ = [(field, ctypes.c_int64) for field in Counters.__dataclass_fields__]


def counters() -> Counters:
    """The numbers of this process."""
    raw = _RawCounters()
    library.sirtaki_ops_read_counters(ctypes.byref(raw))
    return Counters(*(getattr(raw, field) for field in Counters.__dataclass_fields__))


def reset() -> None:
    """Sets everything to zero; `most_in_flight` starts again from what is in flight."""
    library.sirtaki_ops_reset_counters()
