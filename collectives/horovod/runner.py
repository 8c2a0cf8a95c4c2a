"""`run`: a function on all ranks of a new job."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sirtaki.errors import InvalidArgumentError, MissingDependencyError, SirtakiError

_ELASTIC = "a job keeps the ranks that it was started with"
_NO_GLOO = "ranks find each other over MPI, there is no Gloo"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call a function on every rank of a job that lasts as long as the call.

    Args:
        func: the function; it calls `init` itself. It travels by cloudpickle (extra ``run``), so that functions of a
            notebook work.
        args, kwargs: its arguments, the same for all ranks.
        num_proc: number of ranks. ``np`` is Horovod's old name.
        hosts, hostfile, mpi_args: as for ``sirtakirun``. The temporary directory must then be the same on all hosts.
        start_timeout: seconds that ranks wait for each other in `init`.
        output_filename: a directory for the ranks' output: files ``rank.N/stdout`` and ``stderr``.
        verbose: 1 prints how mpiexec is called.
        network_interface, network_interfaces: that over which hosts coordinate; one name.
        executable: the Python to run.
        min_num_proc, max_num_proc, slots, reset_limit, cooldown_range, host_discovery_script, min_np, max_np: Horovod's
            for elastic jobs; they must be left out.
        ssh_port, ssh_identity_file: must be left out: set them in ``~/.ssh/config``, which mpiexec's ssh reads.
        use_gloo: must be left out or False. use_mpi, disable_cache: they change nothing.

    Returns:
        What the function has returned, by rank.

    Raises:
        InvalidArgumentError: an argument makes no sense here.
        MissingDependencyError: cloudpickle is not installed.
        SirtakiError: a rank has failed; its messages are in the output.

    Example:
        >>> import sirtaki
        >>> def double(number):
        ...     import sirtaki
        ...     sirtaki.init()
        ...     return 2 * number + sirtaki.rank()
        >>> sirtaki.run(double, args=(4,), num_proc=1)
        [8]
    """
    for name, value, why in (
        ("min_num_proc", min_num_proc or min_np, _ELASTIC),
        ("max_num_proc", max_num_proc or max_np, _ELASTIC),
        ("slots", slots, _ELASTIC),
        ("reset_limit", reset_limit, _ELASTIC),
        ("cooldown_range", cooldown_range, _ELASTIC),
        ("host_discovery_script", host_discovery_script, _ELASTIC),
        ("ssh_port", ssh_port, "set Port in ~/.ssh/config, which mpiexec's ssh reads"),
        ("ssh_identity_file", ssh_identity_file, "set IdentityFile in ~/.ssh/config, which mpiexec's ssh reads"),
        ("use_gloo", use_gloo, _NO_GLOO),
    ):
        if value:
            raise InvalidArgumentError(f"run: {name}={value!r} cannot be honoured: {why}")
    try:
        import cloudpickle
    except ImportError:
        raise MissingDependencyError(
            "sirtaki.run sends the function with cloudpickle, which is not installed: pip install 'sirtaki[run]'"
        ) from None
    command = [sys.executable, "-m", "sirtaki.launcher", "-np", str(np or num_proc)]
    for option, text in (("-H", hosts), ("--hostfile", hostfile), ("--mpi-args", mpi_args)):
        if text:
            command += [option, text] if option != "--mpi-args" else [f"{option}={text}"]
    if verbose:
        command.append("--verbose")
    if start_timeout is not None:
        command += ["--env", f"SIRTAKI_START_TIMEOUT={start_timeout}"]
    if network_interface or network_interfaces:
        command += ["--env", f"SIRTAKI_NETWORK_INTERFACE={network_interface or network_interfaces}"]
    with tempfile.TemporaryDirectory(prefix="sirtaki-run-") as directory:
        folder = Path(directory)
        (folder / "call").write_bytes(cloudpickle.dumps((func, tuple(args), dict(kwargs or {}))))
        command += [executable or sys.executable, "-m", "sirtaki.horovod.run_function", directory]
        if output_filename:
            command.append(os.path.abspath(output_filename))
        code = subprocess.run(command, check=False).returncode
        if code != 0:
            raise SirtakiError(f"run: the job has failed with exit code {code}; its output says why")
        return [pickle.loads((folder / f"result.{rank}").read_bytes()) for rank in range(np or num_proc)]
