"""Processor time of a rank whose engine runs and has nothing to do.

    sirtakirun -np 2 python -m sirtaki.benchmarks.idle [--seconds 10]

Each rank reduces once, so that every thread has been at work, and then sleeps. The table shows the processor
time of the whole process and its context switches, and the same before `init` for comparison.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import sirtaki


def idle_cost(seconds: float) -> tuple[float, int]:
    """Sleep and return the process's processor seconds and context switches meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    switches = (after.ru_nvcsw + after.ru_nivcsw) - (before.ru_nvcsw + before.ru_nivcsw)
    return used, switches


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m sirtaki.benchmarks.idle", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to do nothing (default: 10)")
    options = parser.parse_args(arguments)

    used, switches = idle_cost(options.seconds)
    without = f"before init: {used * 1e3:.2f} ms of processor time, {switches} context switches"
    sirtaki.init()
    for i in range(10):
        sirtaki.allreduce(np.ones(1000), name=f"warm {i}")
    used, switches = idle_cost(options.seconds)
    share = used / options.seconds
    print(
        f"rank {sirtaki.rank()}, {options.seconds:g} s of doing nothing: {used * 1e3:.2f} ms of processor time "
        f"({share:.4%} of a core), {switches} context switches; {without}",
        flush=True,
    )
    sirtaki.shutdown()


if __name__ == "__main__":
    main()
