"""Entry point of `sirtakirun` and `python -m sirtaki.launcher`."""

from __future__ import annotations

import os
import shutil
import sys

from sirtaki.errors import SirtakiError

from .job import Job
from .mpi_flavors import find_mpiexec, mpiexec_command, recognise
from .options import Options, parse
from .rendezvous import listen, may_leave_this_machine

# The shell's codes.
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


def main() -> int:
    """Runs the job that the command line describes and returns its exit code."""
    options = parse()
    problem = None if may_leave_this_machine(options) else _cannot_run(options)
    if problem is not None:
        code, text = problem
        print(f"sirtakirun: {text}", file=sys.stderr)
        return code
    try:
        mpiexec = find_mpiexec(options.mpiexec)
        flavor = recognise(mpiexec)
    except SirtakiError as error:
        print(f"sirtakirun: {error}", file=sys.stderr)
        return 2
    supervise = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervise.py")
    # Without site and PYTHON* variables: those are the command's affair, and take time.
    program = [sys.executable, "-S", "-E", supervise]
    listener, rendezvous = listen(options)
    return Job(options, mpiexec_command(mpiexec, flavor, options, program), listener, rendezvous).run()


def _cannot_run(options: Options) -> tuple[int, str] | None:
    """Returns an exit code and a reason if the command cannot be run on this machine.

    Asked before the start, so that there is one answer and not one from each rank.
    """
    program = options.command[0]
    if shutil.which(program, path=options.environment.get("PATH")) is not None:
        return None
    if not os.path.isfile(program):
        return _NOT_FOUND, f"command not found: {program}"
    if program.endswith(".py"):
        return (
            _NOT_EXECUTABLE,
            f"{program} is not executable; did you mean: python {' '.join(options.command)}",
        )
    if os.sep in program:
        return _NOT_EXECUTABLE, f"{program} is not executable"
    return _NOT_FOUND, f"command not found: {program}; did you mean: ./{program}"


if __name__ == "__main__":
    sys.exit(main())
