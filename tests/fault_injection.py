"""Kills or stops ranks at random moments and checks what the others say and what is left.

    python tests/fault_injection.py --rounds 200 [--seed 1] [--first 0]

Each round runs a job of random size on one or two hosts with a random workload. At a random moment a random rank
gets SIGKILL or SIGSTOP. The round is good if

  * every other rank raised the error that belongs to the signal, naming the victim, within the limit, with one
    text on all, and raised it again on the next call;
  * no rank got a wrong result before;
  * the launcher ended the job, blamed the victim and exited with 128 + SIGKILL;
  * no process, shared memory or socket is left.

Prints a line per bad round with all that the job printed, then a table of counts. The same seed gives the same rounds;
the exact instruction that the signal hits is up to the machine.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Sequence

import leaks
from harness import TESTS, WATCHDOG_VARIABLE, RunningJob, job_processes, wait_for_processes

PROGRAM = TESTS / "engine_programs" / "faulted_rank.py"
# Of silence; short, so that many rounds fit into minutes.
UNRESPONSIVE_SECONDS = 2.0
# What the issue grants after the signal, or after the limit of silence.
RAISED_WITHIN_SECONDS = 10.0
# Time for the slowest survivor to speak after the first has ended.
_GRACE_SECONDS = 1.5
_ROUND_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Round:
    """What happens in a round.

    Attributes:
        workload: seed of the ranks' calls.
        calls: how many of them the victim makes before it says so.
        delay: seconds from then to the signal.
    """

    number: int
    ranks: int
    hosts: int
    victim: int
    signal: signal.Signals
    workload: int
    calls: int
    delay: float

    @classmethod
    def draw(cls, seed: int, number: int) -> Round:
        """Return a round; the same for the same arguments."""
        rng = random.Random(f"{seed} {number}")
        hosts = rng.choice((1, 2))
        ranks = rng.randint(2, 4)
        return cls(
            number=number,
            ranks=ranks,
            hosts=hosts,
            victim=rng.randrange(ranks),
            signal=rng.choice((signal.SIGKILL, signal.SIGSTOP)),
            workload=rng.randrange(2**31),
            calls=rng.randint(0, 40),
            delay=rng.choice((0.0, rng.uniform(0, 0.002), rng.uniform(0, 0.05))),
        )

    @property
    def role(self) -> str:
        """What the victim is to the others."""
        if self.victim == 0:
            return "sequencer"
        hosts = [rank * self.hosts // self.ranks for rank in range(self.ranks)]
        return "agent" if hosts.index(hosts[self.victim]) == self.victim else "other"

    def __str__(self) -> str:
        return (
            f"round {self.number}: {self.signal.name} to rank {self.victim} ({self.role}) of {self.ranks} on "
            f"{self.hosts} host(s) after {self.calls} calls and {self.delay * 1e3:.3f} ms, workload {self.workload}"
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a round went: what was wrong, and seconds from the signal to the last survivor's error."""

    problems: Sequence[str]
    raised_after: float


def play(this: Round) -> Outcome:
    """Run one round."""
    before = leaks.shared_names()
    options = ["-np", str(this.ranks), "--grace-period", str(_GRACE_SECONDS)]
    if this.hosts > 1:
        options += ["--simulate-hosts", str(this.hosts)]
    program = [sys.executable, str(TESTS / "rank_main.py"), str(PROGRAM), str(this.workload), str(this.victim)]
    environment = {
        WATCHDOG_VARIABLE: str(_ROUND_SECONDS),
        "SIRTAKI_UNRESPONSIVE_TIME_SECONDS": str(UNRESPONSIVE_SECONDS),
    }
    with RunningJob([*options, *program, str(this.calls)], env=environment) as job:
        output = job.read_until("reached the moment")
        (pid,) = re.findall(r"pid (\d+) has reached the moment", output)
        # The injected randomness, no synchronisation.
        time.sleep(this.delay)
        signalled = time.monotonic()
        os.kill(int(pid), this.signal)
        result = job.wait(_ROUND_SECONDS + 20)

    problems = []
    reports = [json.loads(line) for line in re.findall(r"survivor (\{.*\})", result.output)]
    survivors = sorted(set(range(this.ranks)) - {this.victim})
    if sorted(report["rank"] for report in reports) != survivors:
        problems.append(f"ranks {sorted(report['rank'] for report in reports)} have reported, not {survivors}")
    expected = "RanksFailedError" if this.signal is signal.SIGKILL else "UnresponsiveError"
    for report in reports:
        if report["error"] != expected or report["ranks"] != [this.victim]:
            problems.append(f"rank {report['rank']} raised {report['error']} {report['ranks']}: {report['text']}")
        if not report["again"]:
            problems.append(f"rank {report['rank']} raised something else on the next call, or in its other thread")
    if len({report["text"] for report in reports}) > 1:
        problems.append(f"the texts differ: {[report['text'] for report in reports]}")
    if any(f"rank {this.victim} (" not in report["text"] for report in reports):
        problems.append("a text does not name the victim")
    raised_after = max((report["at"] - signalled for report in reports), default=0.0)
    granted = RAISED_WITHIN_SECONDS + (UNRESPONSIVE_SECONDS if this.signal is signal.SIGSTOP else 0)
    if raised_after > granted:
        problems.append(f"the last error came {raised_after:.2f} s after the signal")
    if result.returncode != 128 + signal.SIGKILL:
        problems.append(f"sirtakirun exited with {result.returncode}")
    if f"rank {this.victim} on host" not in result.launcher_output:
        problems.append("sirtakirun did not blame the victim")
    problems += [f"a process is left: {command}" for command in job_processes(job.name).values()]
    problems += [f"{name} is left" for name in leaks.ownerless(leaks.shared_names() - before)]
    if problems:
        problems.append(f"the job printed:\n{result.output}")
    wait_for_processes(job.name)
    return Outcome(problems, raised_after)


def run(rounds: int, seed: int, first: int = 0) -> int:
    """Run rounds, print the counts and return the number of bad rounds."""
    good: collections.Counter[tuple[str, int, str]] = collections.Counter()
    bad: collections.Counter[tuple[str, int, str]] = collections.Counter()
    slowest: dict[tuple[str, int, str], float] = collections.defaultdict(float)
    began = time.monotonic()
    for number in range(first, first + rounds):
        this = Round.draw(seed, number)
        try:
            outcome = play(this)
        except AssertionError as error:
            outcome = Outcome([str(error)], 0.0)
        kind = (this.signal.name, this.hosts, this.role)
        slowest[kind] = max(slowest[kind], outcome.raised_after)
        (bad if outcome.problems else good)[kind] += 1
        if outcome.problems:
            print(f"BAD {this}", *outcome.problems, sep="\n  ", flush=True)
    print(f"seed {seed}, rounds {first} to {first + rounds - 1}, {time.monotonic() - began:.0f} s")
    print("signal   hosts  victim     good  bad  last error after")
    for kind in sorted({*good, *bad}):
        name, hosts, role = kind
        print(f"{name}  {hosts:5}  {role:9} {good[kind]:5} {bad[kind]:4}  {slowest[kind]:7.2f} s")
    print(f"{'all':25} {good.total():5} {bad.total():4}", flush=True)
    return bad.total()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--first", type=int, default=0, help="number of the first round, to go on or to repeat one")
    found = parser.parse_args()
    seed = found.seed if found.seed is not None else random.SystemRandom().randrange(10**6)
    return 1 if run(found.rounds, seed, found.first) else 0


if __name__ == "__main__":
    sys.exit(main())
