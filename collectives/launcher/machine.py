"""How many ranks fit on this machine: one per GPU, or one per core that this process may use."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def default_num_proc() -> int:
    """Returns the number of usable GPUs, or of usable cores where there are none."""
    return usable_gpus() or usable_cores()


def usable_gpus() -> int:
    """Returns the number of NVIDIA GPUs, less those that CUDA_VISIBLE_DEVICES hides."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        answer = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    # MIG instances are listed below their GPU with an indent; a rank gets a GPU or what it is told.
    present = sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if answer.returncode != 0 or visible is None:
        return present if answer.returncode == 0 else 0
    devices = []
    for device in visible.split(","):
        # CUDA's rule: the first invalid entry hides itself and all that follow.
        if not device.strip() or device.strip().startswith("-"):
            break
        devices.append(device)
    return len(devices) if present else 0


def usable_cores() -> int:
    """Returns the number of cores that the scheduler gives this process: affinity and cgroup quota."""
    affinity = len(os.sched_getaffinity(0))
    quota = _cgroup_quota(Path("/proc/self/cgroup"), _CGROUP)
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def _cgroup_quota(membership: Path, root: Path) -> float | None:
    """Returns the cores that cgroups (version 1 or 2) allow per unit of time, or None if any number."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "cpu" if controllers else root
        # The limit of any ancestor holds too. In a container the path may not exist below its own mount;
        # the walk then ends at the mount, which is the container's group.
        group = mount / path.lstrip("/")
        for folder in [group, *group.parents]:
            quotas.append(_quota_v1(folder) if controllers else _quota_v2(folder))
            if folder == mount:
                break
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota < 0 else quota / period
