"""Checks after every test that the jobs it started have left nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import harness
import leaks
import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test whose jobs left a process, a file in /dev/shm or an abstract socket of Sirtaki."""
    harness.started_jobs.clear()
    before = leaks.shared_names()
    yield
    if not harness.started_jobs:
        return
    left = [
        f"process {pid} ({command})"
        for job in harness.started_jobs
        for pid, command in harness.job_processes(job).items()
    ]
    left += leaks.ownerless(leaks.shared_names() - before)
    if left:
        pytest.fail("the test's jobs left behind: " + "; ".join(left))
