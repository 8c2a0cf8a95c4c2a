"""Process sets, under Horovod's module name."""

from sirtaki.horovod.common.basics import MPI as MPI
from sirtaki.horovod.common.basics import HorovodBasics
from sirtaki.horovod.common.util import is_iterable
from sirtaki.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    "MPI",
    "HorovodBasics",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "is_iterable",
    "remove_process_set",
]
