"""Runs programs as the ranks of a job, through `sirtakirun` itself, for tests.

Guarantees: a job that hangs is ended after its time limit, with the stacks of every rank in the report; a
job that ends otherwise than expected fails the test with all that it printed.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

TESTS = Path(__file__).resolve().parent
# The launcher as a module of this interpreter: the same as `sirtakirun`, wherever that is installed.
SIRTAKIRUN = (sys.executable, "-m", "sirtaki.launcher")
# Every process of a job has this variable, with the job's own value: so survivors can be recognised.
JOB_VARIABLE = "SIRTAKI_TEST_JOB"
WATCHDOG_VARIABLE = "SIRTAKI_TEST_WATCHDOG_SECONDS"
# After the ranks' watchdogs have spoken the launcher has its grace period to end the job.
_MARGIN = 20.0
_LABEL = re.compile(r"^\[(\d+)\]<(stdout|stderr)>:(.*)$")

# The jobs that this process has started since the leak check looked last.
started_jobs: list[str] = []


@dataclass(frozen=True)
class Result:
    """What a job left.

    Attributes:
        returncode: of sirtakirun; negative if that was killed.
        output: standard output and error of sirtakirun, together, as a terminal would show them.
    """

    returncode: int
    output: str

    def stdout(self, rank: int) -> str:
        """Returns what a rank printed to standard output, without labels."""
        return self._of_rank(rank, ("stdout",))

    def stderr(self, rank: int) -> str:
        """Returns what a rank printed to standard error, without labels."""
        return self._of_rank(rank, ("stderr",))

    def rank_output(self, rank: int) -> str:
        """Returns what a rank printed to either, without labels."""
        return self._of_rank(rank, ("stdout", "stderr"))

    @property
    def launcher_output(self) -> str:
        """What sirtakirun and mpiexec said themselves."""
        return "".join(f"{line}\n" for line in self.output.splitlines() if not _LABEL.match(line))

    def _of_rank(self, rank: int, streams: Sequence[str]) -> str:
        found = (_LABEL.match(line) for line in self.output.splitlines())
        return "".join(f"{m[3]}\n" for m in found if m and int(m[1]) == rank and m[2] in streams)


def run_ranks(
    n: int,
    program: str | Path,
    args: Sequence[object] = (),
    *,
    hosts: int = 1,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    expect_failure: bool = False,
    launcher_options: Sequence[str] = (),
) -> Result:
    """Runs a Python program on n ranks and returns what it printed.

    Args:
        n: number of ranks.
        program: the path of a script; or ``module:function`` of a module that lies in ``tests/`` or is
            installed; or, if it has several lines, the source of a script.
        args: arguments of the program; they arrive as strings.
        hosts: number of hosts that the ranks believe to be on, in equal blocks.
        env: environment variables to set in addition.
        timeout: seconds after which the watchdogs end the ranks.
        expect_failure: the job must end with a code other than 0, instead of with 0.
        launcher_options: further options of sirtakirun.

    Raises:
        AssertionError: the job hung, or ended otherwise than expected; the text has all of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(program, str) and "\n" in program:
            script = Path(folder, "program.py")
            script.write_text(textwrap.dedent(program))
            program = script
        options = ["-np", str(n), *launcher_options]
        if hosts > 1:
            options += ["--simulate-hosts", str(hosts)]
        command = [sys.executable, str(TESTS / "rank_main.py"), str(program), *map(str, args)]
        variables = {WATCHDOG_VARIABLE: str(timeout), **(env or {})}
        with RunningJob([*options, *command], env=variables) as job:
            result = job.wait(timeout + _MARGIN)
    if (result.returncode != 0) != expect_failure:
        expected = "another code than 0" if expect_failure else "code 0"
        raise AssertionError(
            f"the job ended with code {result.returncode} instead of {expected}; it printed:\n{result.output}"
        )
    return result


class RunningJob:
    """A run of sirtakirun that a test can watch and interfere with.

        with RunningJob(["-np", "2", "program"]) as job:
            job.read_until("ready")
            job.process.send_signal(signal.SIGINT)
            result = job.wait()

    Leaving the block ends whatever still runs.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: IO[bytes] | None = None,
    ) -> None:
        self.name = uuid.uuid4().hex
        started_jobs.append(self.name)
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [*SIRTAKIRUN, *arguments],
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), JOB_VARIABLE: self.name, **(env or {})},
            # As from an interactive shell: a background job of a script would have Ctrl-C ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self._watchdog = _Watchdog(self.name)
        self._read = bytearray()

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog.cancel()
        if kind is not None:
            for pid in job_processes(self.name):
                _kill(pid)
            wait_for_processes(self.name)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def read_until(self, *texts: str, timeout: float = 60.0) -> str:
        """Reads output until each of the texts has come; returns all output so far.

        Raises:
            AssertionError: the output ended, or the time was over, before.
        """
        self._watchdog.arm(timeout)
        assert self.process.stdout is not None
        while any(text.encode() not in self._read for text in texts):
            data = os.read(self.process.stdout.fileno(), 65536)
            self._read += data
            if not data:
                raise AssertionError(f"the output ended before {texts}:\n{self._text()}")
        self._watchdog.cancel()
        return self._text()

    def wait(self, timeout: float = 60.0) -> Result:
        """Reads the output to its end, which is when the last process of the job has ended.

        Raises:
            AssertionError: the time was over before, and the job has been killed.
        """
        self._watchdog.arm(timeout)
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 65536):
            self._read += data
        code = self.process.wait()
        self._watchdog.cancel()
        if self._watchdog.fired:
            raise AssertionError(f"no end within {timeout} s, so it was killed; it printed:\n{self._text()}")
        return Result(code, self._text())

    def _text(self) -> str:
        return self._read.decode(errors="replace")


class _Watchdog:
    """Kills the processes of a job when its time is over; that ends the reading of its output."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._timer: threading.Timer | None = None
        self.fired = False

    def arm(self, seconds: float) -> None:
        self.cancel()
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self.fired = True
        for pid in job_processes(self._job):
            _kill(pid)


def job_processes(job: str) -> dict[int, str]:
    """Returns the processes of a job that still run, by process id, with their command lines.

    Recognised by a variable in their environment: whatever a process has done to its session, group or
    parent, that stays.
    """
    mark = f"{JOB_VARIABLE}={job}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            # It has ended, or is a zombie.
            continue
    return found


def wait_for_processes(job: str, timeout: float = 20.0) -> None:
    """Blocks until no process of a job is left.

    Raises:
        AssertionError: some are left when the time is over.
    """
    deadline = time.monotonic() + timeout
    while processes := job_processes(job):
        for pid in processes:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                ended, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(descriptor)
            if not ended:
                raise AssertionError(f"still there after {timeout} s: {processes}")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
