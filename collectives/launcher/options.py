"""The command line of `sirtakirun`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from .machine import default_num_proc

_EPILOG = """\
output:
  Each line that a rank prints is shown under its label, like "[1]<stdout>:". Standard error stays
  standard error.

standard input:
  The ranks have none (reading finds the end of the file at once), so that a job can run in the
  background and in shell loops. With --stdin, rank 0 reads sirtakirun's.

how a job ends:
  When a rank ends with a non-zero exit code or by a signal, sirtakirun names it, gives the others the
  grace period to say what they have seen, ends them with SIGTERM and then SIGKILL, and exits with the
  code of that first failing rank (128 + the signal's number if it was killed). Ctrl-C and SIGTERM are
  passed on to every rank; a second one kills. Background processes of a rank end with it.

examples:
  sirtakirun -np 4 python train.py --epochs 3
  sirtakirun -np 8 -H first:4,second:4 --env DATA=/data python train.py
"""


@dataclass(frozen=True)
class Options:
    """What the user asked for, checked and with defaults filled in.

    Attributes:
        num_proc: number of ranks.
        command: program and arguments that every rank runs.
        label: put labels before the ranks' lines.
        grace_period: seconds that the others get after the first failure.
        hosts: ``host:slots,...`` for mpiexec, or "".
        hostfile: name of a host file in mpiexec's format, or "".
        environment: variables to set in the ranks.
        mpi_args: further arguments of mpiexec.
        mpiexec: the mpiexec to use, or None to look for one.
        simulate_hosts: number of hosts to pretend, or 0.
        stdin: give rank 0 the launcher's standard input.
        verbose: print the call of mpiexec.
    """

    num_proc: int
    command: tuple[str, ...]
    label: bool
    grace_period: float
    hosts: str
    hostfile: str
    environment: dict[str, str]
    mpi_args: tuple[str, ...]
    mpiexec: str | None
    simulate_hosts: int
    stdin: bool
    verbose: bool


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line; a wrong one ends the process with code 2 and a sentence, as argparse does.

    Args:
        arguments: the words after the program's name; None: those of this process.
    """
    parser = _parser()
    found = parser.parse_args(arguments)
    if found.version:
        print(f"sirtakirun {metadata.version('sirtaki')}")
        parser.exit()
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if not command:
        parser.error("no command given, for example: sirtakirun -np 2 python train.py")
    if found.hosts and found.hostfile:
        parser.error("-H and --hostfile exclude each other")
    num_proc = found.num_proc
    if num_proc is None and found.hostfile:
        parser.error("--hostfile needs -np")
    if num_proc is None:
        num_proc = _slots(found.hosts) if found.hosts else default_num_proc()
    environment = dict(found.env)
    if found.as_horovod:
        preload = os.path.join(os.path.dirname(os.path.abspath(__file__)), "preload")
        path = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = preload + (os.pathsep + path if path else "")
        environment["SIRTAKI_AS_HOROVOD"] = "1"
    if found.simulate_hosts > num_proc:
        parser.error(f"--simulate-hosts {found.simulate_hosts} is more than the number of ranks, {num_proc}")
    return Options(
        num_proc=num_proc,
        command=tuple(command),
        label=found.label,
        grace_period=found.grace_period,
        hosts=found.hosts or "",
        hostfile=found.hostfile,
        environment=environment,
        mpi_args=tuple(found.mpi_args),
        mpiexec=found.mpiexec,
        simulate_hosts=found.simulate_hosts,
        stdin=found.stdin,
        verbose=found.verbose,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sirtakirun",
        usage="sirtakirun [-np N] [options] command ...",
        description="Runs a command as the ranks of a job, over the mpiexec of MPICH, Open MPI or Intel MPI.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", type=_positive, metavar="N",
        help="number of ranks; more than there are cores is allowed. Default: with -H the sum of the slots,"
        " else the number of GPUs, or of usable cores where there are none")  # fmt: skip
    add("-H", "--hosts", type=_hosts, metavar="HOST:SLOTS,...",
        help="run on these hosts (Python and the command at the same paths on all of them)")  # fmt: skip
    add("--hostfile", default="", metavar="FILE", help="the same from a file in the format of your mpiexec")
    add("--env", type=_variable, action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable in every rank; without a value, to what it is here. On other hosts all"
        " variables that are not set there are set as here. May be repeated")  # fmt: skip
    add("--as-horovod", action="store_true",
        help="let a script that imports horovod.tensorflow, horovod.keras or horovod.tensorflow.keras run unchanged on"
        " Sirtaki; HOROVOD_* settings count where there is an equal one")  # fmt: skip
    add("--no-label", dest="label", action="store_false", help="pass the output on as it is, without labels")
    add("--grace-period", type=_seconds, default=5.0, metavar="SECONDS",
        help="time for the others after the first failure (default: 5)")  # fmt: skip
    add("--stdin", action="store_true", help="rank 0 reads sirtakirun's standard input, for a debugger")
    add("--mpiexec", metavar="PATH",
        help="the mpiexec to use. Default: the one beside the Python interpreter, else in PATH")  # fmt: skip
    add("--mpi-args", type=shlex.split, default=[], metavar="'ARGS'",
        help="further arguments of mpiexec in one word, for example --mpi-args='-iface eth1'")  # fmt: skip
    add("--simulate-hosts", type=_positive, default=0, metavar="H",
        help="for tests: the ranks, in H equal blocks, believe to be on H hosts")  # fmt: skip
    add("--verbose", action="store_true", help="print how mpiexec is called")
    add("--version", action="store_true", help="print the version and exit")
    add("command", nargs=argparse.REMAINDER, metavar="command ...", help="the command and its arguments")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}")
    return value


def _hosts(text: str) -> str:
    if not re.fullmatch(r"[^\s:,]+(:[1-9][0-9]*)?(,[^\s:,]+(:[1-9][0-9]*)?)*", text):
        raise argparse.ArgumentTypeError(f"must look like first:4,second:4, not {text!r}")
    return text


def _slots(hosts: str) -> int:
    return sum(int(host.partition(":")[2] or 1) for host in hosts.split(","))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"must be NAME or NAME=VALUE, not {text!r}")
    if not equals and name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name} is not set here; give it a value with {name}=VALUE")
    return name, value if equals else os.environ[name]
