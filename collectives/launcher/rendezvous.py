"""Where the supervisors find the launcher: the listening socket and the addresses it can be reached at."""

from __future__ import annotations

import os
import secrets
import socket

from .options import Options
from .protocol import Rendezvous

# Variables by which mpiexec recognises an allocation of a batch system, which may be of several hosts.
_ALLOCATION_VARIABLES = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_MCPU_HOSTS", "PE_HOSTFILE", "COBALT_NODEFILE")
# Reserved for documentation (RFC 5737): shows which interface the default route uses. Nothing is sent.
_ELSEWHERE = "192.0.2.1"
_LOOPBACK = "127.0.0.1"


def listen(options: Options) -> tuple[socket.socket, Rendezvous]:
    """Opens the port for the supervisors: to this machine only, unless the job may leave it."""
    addresses = _addresses(options)
    local = all(address.startswith("127.") for address in addresses)
    listener = socket.create_server((_LOOPBACK if local else "", 0), backlog=max(128, options.num_proc))
    listener.setblocking(False)
    return listener, Rendezvous(addresses, listener.getsockname()[1], secrets.token_hex(16))


def may_leave_this_machine(options: Options) -> bool:
    """Whether mpiexec may start ranks on other hosts."""
    allocated = any(name in os.environ for name in _ALLOCATION_VARIABLES)
    return bool(options.hosts or options.hostfile or options.mpi_args or allocated)


def _addresses(options: Options) -> list[str]:
    """Returns this machine's addresses as the job's hosts may see it, the likeliest first."""
    if not may_leave_this_machine(options):
        return [_LOOPBACK]
    hosts = [host.partition(":")[0] for host in options.hosts.split(",") if host]
    found = [_address_towards(host) for host in hosts or [_ELSEWHERE]]
    try:
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    except OSError:
        pass
    # Loopback last: it is right for ranks on this machine alone.
    others = [address for address in found if address is not None and not address.startswith("127.")]
    only_here = bool(hosts) and all(address is not None and address.startswith("127.") for address in found)
    return [_LOOPBACK] if only_here else [*dict.fromkeys(others), _LOOPBACK]


def _address_towards(host: str) -> str | None:
    """Returns the address of the interface through which a host is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])
