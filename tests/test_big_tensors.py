"""Tensors that 32 bits cannot count."""

from pathlib import Path

import pytest
from harness import TESTS, run_ranks

# Of each rank: a tensor of 2 GiB and what it receives; the ranks' shared memory comes on top.
NEEDED_BYTES = 2 * 5 * 2**30


def available_bytes() -> int:
    """Return what the machine, or this process's control group, has left."""
    line = next(text for text in Path("/proc/meminfo").read_text().splitlines() if text.startswith("MemAvailable"))
    available = int(line.split()[1]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and limit.read_text().strip() != "max":
        available = min(available, int(limit.read_text()))
    return available


@pytest.mark.parametrize("hosts", [1, 2])
def test_more_than_two_gibibytes_and_two_to_the_31_elements(hosts):
    if available_bytes() < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES / 2**30:.0f} GiB of memory")
    run_ranks(2, TESTS / "engine_programs" / "big_tensor.py", hosts=hosts, timeout=300)
