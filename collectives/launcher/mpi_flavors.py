"""The MPI implementations that the launcher can drive: how to find, recognise and call their mpiexec.

There is no flag here against MPI ending the survivors of a failed rank where none is needed: what MPI
sees of a rank is its anchor, which never fails (see `sirtaki.launcher`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

from sirtaki.errors import ConfigError, MissingDependencyError

from .options import Options
from .protocol import RENDEZVOUS_VARIABLE


@dataclass(frozen=True)
class Flavor:
    """What differs between MPI implementations on mpiexec's command line.

    Attributes:
        name: as its makers write it.
        version_pattern: found in the output of ``mpiexec --version``.
        flags: always given.
        root_flags: given when root starts the job.
        hosts_flag: takes a list like ``a:2,b:2``, or None if only a file can say how many slots a host has.
        hostfile_flag: takes the name of a file in the implementation's own format.
        environment_flags: make it pass the variables to other hosts that are needed before the
            supervisors can get the rest from the launcher.
    """

    name: str
    version_pattern: str
    flags: tuple[str, ...]
    root_flags: tuple[str, ...]
    hosts_flag: str | None
    hostfile_flag: str
    environment_flags: tuple[str, ...]


FLAVORS = (
    Flavor(
        name="Intel MPI",
        version_pattern=r"Intel\(R\) MPI",
        flags=("-disable-auto-cleanup",),
        root_flags=(),
        hosts_flag=None,
        hostfile_flag="-machinefile",
        environment_flags=(),
    ),
    Flavor(
        name="MPICH",
        version_pattern=r"HYDRA build details",
        flags=("-disable-auto-cleanup",),
        root_flags=(),
        hosts_flag="-hosts",
        hostfile_flag="-f",
        environment_flags=(),
    ),
    Flavor(
        name="Open MPI",
        version_pattern=r"\(Open MPI\) [45]\.",
        # A rank with several threads needs more than the one core that Open MPI would bind it to.
        flags=("--oversubscribe", "--bind-to", "none"),
        root_flags=("--allow-run-as-root",),
        hosts_flag="--host",
        hostfile_flag="--hostfile",
        environment_flags=("-x", RENDEZVOUS_VARIABLE, "-x", "PATH", "-x", "LD_LIBRARY_PATH"),
    ),
)


def find_mpiexec(asked: str | None) -> str:
    """Returns the path of the mpiexec to use.

    Args:
        asked: a path or name that the user gave, or None to look beside the Python interpreter (there a
            wheel like ``mpich`` puts it) and then in PATH.

    Raises:
        ConfigError: there is no such program as the user asked for.
        MissingDependencyError: no MPI is installed.
    """
    if asked is not None:
        found = shutil.which(asked)
        if found is None:
            raise ConfigError(f"--mpiexec {asked}: no such program")
        return found
    beside = (os.path.dirname(sys.executable), sysconfig.get_path("scripts"))
    found = shutil.which("mpiexec", path=os.pathsep.join(beside)) or shutil.which("mpiexec")
    if found is None:
        raise MissingDependencyError(
            "no mpiexec beside the Python interpreter or in PATH; install an MPI,"
            " for example with: pip install 'sirtaki[mpi]'"
        )
    return found


def recognise(mpiexec: str) -> Flavor:
    """Returns the flavor of an mpiexec.

    Raises:
        ConfigError: it does not run, or is of an implementation that is not in the table.
    """
    try:
        answer = subprocess.run(
            [mpiexec, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{mpiexec} --version failed: {error}") from error
    output = answer.stdout + answer.stderr
    for flavor in FLAVORS:
        if re.search(flavor.version_pattern, output):
            return flavor
    first = output.strip().splitlines()[0] if output.strip() else f"nothing, and exited with {answer.returncode}"
    raise ConfigError(
        f"{mpiexec} is of no known MPI ({', '.join(f.name for f in FLAVORS)}); its --version says: {first}"
    )


def mpiexec_command(mpiexec: str, flavor: Flavor, options: Options, program: list[str]) -> list[str]:
    """Returns the command line that starts a program once per rank."""
    command = [mpiexec, *flavor.flags]
    if os.geteuid() == 0:
        command += flavor.root_flags
    if options.hosts and flavor.hosts_flag is not None:
        command += [flavor.hosts_flag, options.hosts]
    elif options.hosts:
        command += [flavor.hostfile_flag, _file_in_memory(options.hosts.replace(",", "\n") + "\n")]
    if options.hostfile:
        command += [flavor.hostfile_flag, options.hostfile]
    for flag, name in zip(flavor.environment_flags[::2], flavor.environment_flags[1::2], strict=True):
        # Open MPI warns about a variable that does not exist.
        if name == RENDEZVOUS_VARIABLE or name in os.environ:
            command += [flag, name]
    return [*command, *options.mpi_args, "-np", str(options.num_proc), *program]


def _file_in_memory(text: str) -> str:
    """Returns the name of a file that vanishes with this process, however it ends."""
    descriptor = os.memfd_create("sirtaki-hosts")
    os.write(descriptor, text.encode())
    return f"/proc/{os.getpid()}/fd/{descriptor}"
