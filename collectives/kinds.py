"""What a request asks for: the numbers of ``sirtaki_kind`` in ``native/engine_abi.h``."""

from __future__ import annotations

import enum


class Kind(enum.IntEnum):
    """The kind of a request.

    Example:
        >>> Kind(0).label
        'allreduce'
    """

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    JOIN = 6
    ADD_PROCESS_SET = 7
    REMOVE_PROCESS_SET = 8

    @property
    def label(self) -> str:
        """The name of the function that makes such a request."""
        return self.name.lower()


REDUCTIONS = (Kind.ALLREDUCE, Kind.REDUCESCATTER)
# Those that are about the job itself carry no tensors, and are called by all of its ranks.
OF_THE_JOB = (Kind.JOIN, Kind.ADD_PROCESS_SET, Kind.REMOVE_PROCESS_SET)
WITHOUT_TENSORS = (Kind.BARRIER, *OF_THE_JOB)
