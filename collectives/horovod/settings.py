"""``HOROVOD_*`` settings: those that have an equal one here, and why the others have none."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_SAME = {
    "HOROVOD_FUSION_THRESHOLD": "SIRTAKI_FUSION_THRESHOLD",
    "HOROVOD_CACHE_CAPACITY": "SIRTAKI_CACHE_CAPACITY",
    "HOROVOD_TIMELINE": "SIRTAKI_TIMELINE",
    "HOROVOD_TIMELINE_MARK_CYCLES": "SIRTAKI_TIMELINE_MARK_CYCLES",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "SIRTAKI_STALL_CHECK_TIME_SECONDS",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS",
    "HOROVOD_LOG_LEVEL": "SIRTAKI_LOG_LEVEL",
    "HOROVOD_HOSTNAME": "SIRTAKI_HOSTNAME",
    "HOROVOD_START_TIMEOUT": "SIRTAKI_START_TIMEOUT",
    "HOROVOD_GLOO_IFACE": "SIRTAKI_NETWORK_INTERFACE",
    "HOROVOD_STALL_CHECK_DISABLE": "SIRTAKI_STALL_CHECK_TIME_SECONDS",  # as 0
}
_NO_CYCLE = "there is no cycle: a batch leaves when its tensors are there"
_ONE_ALGORITHM = "the way between hosts is chosen from the layout of the job, and results do not depend on it"
_NO_AUTOTUNE = "there is no autotuning yet"
_FROM_THE_JOB = "the launcher tells the ranks their places"
_NO_GLOO = "there is no Gloo"
_NO_GPU = "tensors on GPUs are not supported yet"
_NO_ELASTIC = "a job keeps the ranks that it was started with"
REASONS = {
    "HOROVOD_CYCLE_TIME": _NO_CYCLE,
    "HOROVOD_HIERARCHICAL_ALLREDUCE": _ONE_ALGORITHM,
    "HOROVOD_HIERARCHICAL_ALLGATHER": _ONE_ALGORITHM,
    "HOROVOD_TORUS_ALLREDUCE": _ONE_ALGORITHM,
    "HOROVOD_AUTOTUNE": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_LOG": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": _NO_AUTOTUNE,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": _NO_AUTOTUNE,
    "HOROVOD_NUM_NCCL_STREAMS": _NO_GPU,
    "HOROVOD_BATCH_D2D_MEMCOPIES": _NO_GPU,
    "HOROVOD_CPU_OPERATIONS": "shared memory inside a host and MPI between hosts are all there is",
    "HOROVOD_CONTROLLER": "the control plane is Sirtaki's own, over shared memory and TCP",
    "HOROVOD_THREAD_AFFINITY": "the engine's thread sleeps while there is nothing to do, and is not pinned",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is one request, several may share a batch, and results do not change",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "process sets can always be added",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": _NO_GPU,
    "HOROVOD_ENABLE_XLA_OPS": "collectives can always be compiled by XLA",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI must allow calls from several threads",
    "HOROVOD_LOG_HIDE_TIME": "messages carry no time; Python's logging adds it",
    "HOROVOD_ELASTIC": _NO_ELASTIC,
    "HOROVOD_ELASTIC_TIMEOUT": _NO_ELASTIC,
    "HOROVOD_RANK": _FROM_THE_JOB,
    "HOROVOD_SIZE": _FROM_THE_JOB,
    "HOROVOD_LOCAL_RANK": _FROM_THE_JOB,
    "HOROVOD_LOCAL_SIZE": _FROM_THE_JOB,
    "HOROVOD_CROSS_RANK": _FROM_THE_JOB,
    "HOROVOD_CROSS_SIZE": _FROM_THE_JOB,
    "HOROVOD_GLOO_TIMEOUT_SECONDS": _NO_GLOO,
}
EQUAL = dict(_SAME)


def translate(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Set the ``SIRTAKI_*`` variables that the ``HOROVOD_*`` ones ask for.

    A ``SIRTAKI_*`` variable that is set already counts more.

    Returns:
        What to warn of: the settings that do nothing here, and why; None if there are none.

    Example:
        >>> variables = {"HOROVOD_TIMELINE": "job.json", "HOROVOD_CYCLE_TIME": "3"}
        >>> translate(variables)
        'HOROVOD_CYCLE_TIME does nothing here: there is no cycle: a batch leaves when its tensors are there'
        >>> variables["SIRTAKI_TIMELINE"]
        'job.json'
    """
    ignored = []
    for variable in sorted(name for name in environment if name.startswith("HOROVOD_")):
        value = environment[variable]
        if variable == "HOROVOD_STALL_CHECK_DISABLE":
            if value.lower() not in ("", "0", "false"):
                environment.setdefault(_SAME[variable], "0")
        elif variable == "HOROVOD_CACHE_CAPACITY" and value.isdecimal() and int(value) < 64:
            ignored.append(f"{variable}={value} does nothing here: names are always remembered, at least 64 of them")
        elif variable in _SAME:
            environment.setdefault(_SAME[variable], value)
        elif variable in REASONS:
            ignored.append(f"{variable} does nothing here: {REASONS[variable]}")
        else:
            ignored.append(f"{variable} is not known here")
    return "; ".join(ignored) or None
