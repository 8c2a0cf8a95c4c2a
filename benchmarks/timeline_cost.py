"""Instructions that the timeline costs, counted by callgrind.

    sirtakirun -np 2 python -m sirtaki.benchmarks.timeline_cost

Each rank starts itself again under `valgrind --tool=callgrind` (which must be installed; processor counters are
often missing in virtual machines, and instructions in user space are what we ask for). Counted are all threads of
the rank: also the one that formats and writes, and the end of the timeline. Spinning is off, for its count says
nothing; copies use vector instructions, for callgrind would count a `rep movsb` once per byte.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import sirtaki

_CALLS = 500
# callgrind writes what it has counted since the last time before every call of this function of libc, which nobody
# else calls: the borders between the parts of the run.
_BORDER = "sched_get_priority_max"
_PARTS = ("small, off", "small, on", "1 MiB, off", "1 MiB, on")


def border() -> None:
    """Let callgrind write what it has counted."""
    os.sched_get_priority_max(os.SCHED_OTHER)


def work(folder: str) -> None:
    """Run the parts; all ranks do it under callgrind."""
    sirtaki.init()
    arrays = {"small": np.ones(256, np.float32), "1 MiB": np.ones(2**18, np.float32)}
    for array in arrays.values():
        for _ in range(5):
            sirtaki.allreduce_(array, name="w", op=sirtaki.Sum)
    for name, array in arrays.items():
        for is_on in (False, True):
            sirtaki.barrier()
            if is_on:
                sirtaki.start_timeline(f"{folder}/{name}.json")
            border()
            for _ in range(_CALLS):
                sirtaki.allreduce_(array, name="w", op=sirtaki.Sum)
            if is_on:
                sirtaki.stop_timeline()
            border()


def counts(folder: Path, pid: int) -> list[int]:
    """Return the instructions per call of each part."""
    found = []
    for number in range(2, 2 * len(_PARTS) + 1, 2):
        text = Path(folder, f"callgrind.out.{pid}.{number}").read_text()
        match = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        if match is None:
            raise SystemExit(f"callgrind has counted nothing in part {number}")
        found.append(int(match[1]) // _CALLS)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark; see the module's text."""
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m sirtaki.benchmarks.timeline_cost", description=summary)
    parser.add_argument("--work", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.work)
        return
    os.environ["SIRTAKI_SPIN_US"] = "0"
    os.environ["GLIBC_TUNABLES"] = "glibc.cpu.x86_rep_movsb_threshold=0x10000000"
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--dump-before={_BORDER}",
            f"--callgrind-out-file={folder}/callgrind.out.%p",
        ]
        command += [sys.executable, "-m", "sirtaki.benchmarks.timeline_cost", "--work", folder]
        pid = os.posix_spawnp("valgrind", command, os.environ)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
            raise SystemExit("the run under valgrind has failed")
        small_off, small_on, large_off, large_on = counts(Path(folder), pid)
    text = f"instructions per allreduce: 1 KiB {small_off} without the timeline, {small_on} with it; "
    text += f"1 MiB {large_off} without, {large_on} with it. "
    text += (
        f"The timeline costs {small_on - small_off}, {(small_on - small_off) / large_off:.2%} of an allreduce of 1 MiB"
    )
    print(text, flush=True)


if __name__ == "__main__":
    main()
