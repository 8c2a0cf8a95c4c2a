"""Threads, descriptors, memory and names in /dev/shm stay as they are over many jobs and many collectives."""

import re

import pytest
from harness import TESTS, run_ranks

PROGRAMS = TESTS / "engine_programs"
# UCX, which MPICH brings, notes about 200 bytes for every munmap of the process, also those at a thread's end, and
# forgets them only when it next registers memory for a network that can read it. That is not ours to mend.
WITHOUT_UCX_EVENTS = {"UCX_MEM_EVENTS": "n"}


def run_and_show(*args, **options):
    """Run the ranks, and print the figures (pytest -s or -rP shows them)."""
    result = run_ranks(*args, **options)
    figures = re.findall(r".*grown by.*", result.output)
    print(*figures, sep="\n")
    assert len(figures) == args[0], result.output


@pytest.mark.parametrize(("ranks", "hosts", "rounds"), [(2, 1, 1000), (2, 2, 300)])
def test_rounds_of_init_and_shutdown_leave_nothing(ranks, hosts, rounds):
    run_and_show(ranks, PROGRAMS / "leaks_rounds.py", [rounds], hosts=hosts, env=WITHOUT_UCX_EVENTS, timeout=120)


@pytest.mark.parametrize(("ranks", "hosts", "count"), [(2, 1, 1_000_000), (2, 2, 20_000)])
def test_small_collectives_leave_nothing(ranks, hosts, count):
    env = {"SIRTAKI_CACHE_CAPACITY": "128", **WITHOUT_UCX_EVENTS}
    run_and_show(ranks, PROGRAMS / "leaks_collectives.py", [count], hosts=hosts, env=env, timeout=300)
