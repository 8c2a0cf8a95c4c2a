"""From a launched process to a running native engine: who is where, shared memory, sockets.

The order of steps is the same on all ranks. What one rank finds wrong before the connections stand is an
exception there; the launcher then ends the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from sirtaki import _native, mpi
from sirtaki.config import Settings
from sirtaki.errors import ConfigError, SirtakiError
from sirtaki.mpi import World
from sirtaki.topology import Topology, group_by_host
from sirtaki.version import __version__

_NUM_SLOTS = 4
# Half of the second-level cache of one core (1 to 2 MiB): two ranks reduced 1 MiB of float32 in 226 us with 512 KiB,
# in 411 us with 1 MiB and in 265 us with 128 KiB; above 16 MiB all of these were equal.
_SLOT_BYTES_ONE_HOST = 2**19
_SLOT_BYTES_BETWEEN_HOSTS = 4 * 2**20
_SPIN_US = 50.0
_LEAST_SLOT_BYTES_PER_RANK = 64  # a cache line for each block of an allgather

_SECRET_BYTES = 16
_HELLO = struct.Struct(f"<i{_SECRET_BYTES}s")  # rank, secret

_MISSING = (
    "all ranks to call it. A rank that is missing may have ended before, may never call init(), may give another comm, "
    "or may still prepare: then call init() first, or raise SIRTAKI_START_TIMEOUT."
)
_SILENT = (
    "ranks that have called it, but do not go on: they may be stopped, or busy beyond measure (SIRTAKI_START_TIMEOUT)."
)


@dataclasses.dataclass(frozen=True)
class Introduction:
    """What each rank tells all others first."""

    rank: int
    host_key: tuple[str, ...]
    host_name: str
    pid: int
    version: str
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Meeting:
    """How to reach a rank that waits for others: an agent for its host, and rank 0 for all agents."""

    local_address: str
    remote_addresses: tuple[tuple[str, int], ...]
    secret: bytes


def single(settings: Settings) -> tuple[Topology, _native.Engine]:
    """Make the engine of a job of one rank."""
    topology = group_by_host(0, ["here"])
    return topology, _native.Engine(
        rank=0,
        host_of=[0],
        local_rank_of=[0],
        fusion_threshold=settings.fusion_threshold,
        cache_capacity=settings.cache_capacity,
        spin_ns=0,
    )


def connect(settings: Settings, comm: Any, group: Any) -> tuple[Topology, _native.Engine]:
    """Make the engine of this rank of a job of several. Collective.

    Args:
        settings: of this process.
        comm: what `init` was given.
        group: the job's processes, of `mpi.group_of`.

    Raises:
        ConfigError: ranks have different versions or settings.
        SirtakiError: the ranks cannot reach each other.
    """
    why = _MISSING
    if comm is not None:
        ranks = mpi.world_ranks(group)
        why = f"world ranks {ranks}, given as its comm: for {_MISSING}" if ranks else _MISSING
    with waiting_for_all(settings, why):
        world = World(comm, group)
        everybody: list[Introduction] = world.allgather(_introduce(world.rank, settings))
    world.unlink_shared_memory()
    check_agreement(everybody)
    topology = group_by_host(world.rank, [i.host_key for i in everybody])
    if _slot_bytes(topology, settings) < _LEAST_SLOT_BYTES_PER_RANK * topology.size:
        raise ConfigError(
            f"SIRTAKI_SLOT_BYTES={settings.slot_bytes} is too small for {topology.size} ranks: at least "
            f"{_LEAST_SLOT_BYTES_PER_RANK} bytes per rank are needed"
        )
    if topology.num_hosts > 1 and not world.has_multiple_threads():
        raise SirtakiError(
            "a job on several hosts calls MPI from several threads, and MPI was initialized without "
            "MPI_THREAD_MULTIPLE. Do not lower mpi4py.rc.thread_level, and use an MPI that supports it."
        )
    with contextlib.ExitStack() as stack:
        links = _Links(topology, settings, stack)
        with waiting_for_all(settings, _SILENT):
            meetings: list[Meeting] = world.allgather(links.meeting())
        links.meet(meetings)
        spin_us = settings.spin_us
        if spin_us is None:
            # With more ranks than cores, looking takes the core away from the rank that is waited for.
            spin_us = _SPIN_US if topology.local_size <= len(os.sched_getaffinity(0)) else 0.0
        native = _native.Engine(
            rank=topology.rank,
            host_of=list(topology.host_of),
            local_rank_of=list(topology.local_rank_of),
            fusion_threshold=settings.fusion_threshold,
            cache_capacity=settings.cache_capacity,
            spin_ns=int(spin_us * 1000),
            unresponsive_ns=int(settings.unresponsive_time_seconds * 1e9),
            num_slots=_NUM_SLOTS,
            slot_bytes=_slot_bytes(topology, settings),
            labels=[f"rank {i.rank} (host {i.host_name}, pid {i.pid})" for i in everybody],
            mpi=world.native_table() if topology.num_hosts > 1 else [],
            **links.release(),
        )
    return topology, native


@contextlib.contextmanager
def waiting_for_all(settings: Settings, why: str = _MISSING) -> Iterator[None]:
    """End this process, saying why, if other ranks do not come to meet it in time."""
    text = f"sirtaki: process {os.getpid()} has waited in init() for {settings.start_timeout:g} seconds for {why}\n"
    watchdog = _native.Watchdog(settings.start_timeout, text)
    try:
        yield
    finally:
        watchdog.cancel()


def check_agreement(everybody: Sequence[Introduction]) -> None:
    """Raise ConfigError, naming ranks and values, unless all ranks have the same version and settings."""
    facts = [{"the version of sirtaki": i.version, **i.settings} for i in everybody]
    for fact, expected in facts[0].items():
        others = {i: f[fact] for i, f in enumerate(facts) if f[fact] != expected}
        if others:
            listed = ", ".join(f"{value!r} on rank {rank}" for rank, value in list(others.items())[:8])
            raise ConfigError(f"{fact} must be the same on all ranks, but is {expected!r} on rank 0 and {listed}")


def _introduce(rank: int, settings: Settings) -> Introduction:
    name = settings.hostname or socket.gethostname()
    return Introduction(rank, _host_key(name), name, os.getpid(), __version__, settings.agreed())


def _host_key(name: str) -> tuple[str, ...]:
    """Return what ranks of one host share: its name, its kernel, and the name space of local sockets."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        boot = network = ""
    return (name, boot, network)


def _slot_bytes(topology: Topology, settings: Settings) -> int:
    if settings.slot_bytes is not None:
        return settings.slot_bytes
    return _SLOT_BYTES_ONE_HOST if topology.num_hosts == 1 else _SLOT_BYTES_BETWEEN_HOSTS


class _Links:
    """The descriptors of one rank while they are being made; closed by `stack` unless released."""

    def __init__(self, topology: Topology, settings: Settings, stack: contextlib.ExitStack) -> None:
        self._topology = topology
        self._timeout = settings.start_timeout
        self._interface = settings.network_interface
        self._stack = stack
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._is_agent = topology.local_rank == 0
        self._segment = -1
        self._doorbell = -1
        self._peers: list[tuple[int, socket.socket, int]] = []
        self._hosts: list[tuple[int, socket.socket]] = []
        self._local_listener: socket.socket | None = None
        self._remote_listener: socket.socket | None = None
        if self._is_agent:
            size = _native.segment_bytes(topology.local_size, _NUM_SLOTS, _slot_bytes(topology, settings))
            self._segment = self._own_fd(_make_segment(size))
            self._doorbell = self._own_fd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            if topology.local_size > 1:
                self._local_listener = self._own_socket(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                # An abstract name leaves no file behind.
                self._local_listener.bind(f"\0sirtaki-{secrets.token_hex(8)}")
                self._local_listener.listen(topology.local_size)
        if topology.rank == 0 and topology.num_hosts > 1:
            self._remote_listener = self._own_socket(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            self._remote_listener.bind((self._bind_address(), 0))
            self._remote_listener.listen(topology.num_hosts)

    def meeting(self) -> Meeting:
        """Return how the other ranks reach this one."""
        local = self._local_listener.getsockname().decode() if self._local_listener else ""
        remote: tuple[tuple[str, int], ...] = ()
        if self._remote_listener:
            address, port = self._remote_listener.getsockname()
            addresses = [address] if address != "0.0.0.0" else interface_addresses()
            remote = tuple((a, port) for a in addresses)
        return Meeting(local, remote, self._secret)

    def meet(self, meetings: Sequence[Meeting]) -> None:
        """Connect this rank: to its host's agent or, as agent, to its local ranks and to the other agents."""
        if self._is_agent:
            self._accept_local_ranks()
            self._meet_other_hosts(meetings[0])
        else:
            self._join_agent(meetings)

    def release(self) -> dict[str, Any]:
        """Hand the descriptors over to the native engine."""
        self._stack.pop_all()
        for listener in (self._local_listener, self._remote_listener):
            if listener is not None:
                listener.close()
        return {
            "segment_fd": self._segment,
            "doorbell_fd": self._doorbell,
            "peers": [(rank, s.detach(), pidfd) for rank, s, pidfd in self._peers],
            "hosts": [(agent, s.detach()) for agent, s in self._hosts],
        }

    def _own_fd(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd

    def _own_socket(self, s: socket.socket) -> socket.socket:
        s.settimeout(self._timeout)
        return self._stack.enter_context(s)

    def _add_peer(self, rank: int, s: socket.socket) -> None:
        self._peers.append((rank, s, _open_pidfd(s, self._stack)))

    def _accept_local_ranks(self) -> None:
        missing = set(self._topology.ranks_on(self._topology.host)) - {self._topology.rank}
        while missing:
            assert self._local_listener is not None
            with self._explain(f"waiting for ranks {sorted(missing)} of this host to attach"):
                s, _ = self._local_listener.accept()
            self._own_socket(s)
            rank = self._read_hello(s, self._secret)
            if rank not in missing:
                s.close()
                continue
            socket.send_fds(s, [b"!"], [self._segment, self._doorbell])
            self._add_peer(rank, s)
            missing.remove(rank)

    def _join_agent(self, meetings: Sequence[Meeting]) -> None:
        agent = self._topology.agent_of(self._topology.host)
        s = self._own_socket(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with self._explain(f"attaching to rank {agent}, the agent of this host"):
            s.connect(meetings[agent].local_address)
            s.sendall(_HELLO.pack(self._topology.rank, meetings[agent].secret))
            _, fds, _, _ = socket.recv_fds(s, 1, 2)
        if len(fds) != 2:
            raise SirtakiError(f"rank {agent}, the agent of this host, closed the connection while attaching")
        self._segment, self._doorbell = (self._own_fd(fd) for fd in fds)
        self._add_peer(agent, s)

    def _meet_other_hosts(self, first: Meeting) -> None:
        topology = self._topology
        if topology.num_hosts == 1:
            return
        if topology.rank != 0:
            s = self._connect_to_any(first.remote_addresses)
            s.sendall(_HELLO.pack(topology.rank, first.secret))
            self._hosts.append((0, s))
            return
        missing = {topology.agent_of(h) for h in range(1, topology.num_hosts)}
        while missing:
            assert self._remote_listener is not None
            with self._explain(f"waiting for ranks {sorted(missing)}, the agents of the other hosts, to connect"):
                s, _ = self._remote_listener.accept()
            self._own_socket(s)
            _prepare_tcp(s)
            rank = self._read_hello(s, self._secret)
            if rank not in missing:
                s.close()
                continue
            self._hosts.append((rank, s))
            missing.remove(rank)

    def _connect_to_any(self, addresses: Sequence[tuple[str, int]]) -> socket.socket:
        tried = []
        for address in addresses:
            s = self._own_socket(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            s.settimeout(min(5.0, self._timeout))
            try:
                s.connect(address)
            except OSError as error:
                tried.append(f"{address[0]}:{address[1]} ({error})")
                s.close()
                continue
            s.settimeout(self._timeout)
            _prepare_tcp(s)
            return s
        raise SirtakiError(
            f"rank {self._topology.rank} cannot connect to rank 0 on another host; tried {', '.join(tried)}. "
            "Set SIRTAKI_NETWORK_INTERFACE to an interface that all hosts reach."
        )

    def _read_hello(self, s: socket.socket, secret: bytes) -> int:
        """Return the rank at the other end, -1 if it does not know the secret."""
        received = b""
        with contextlib.suppress(OSError):
            while len(received) < _HELLO.size:
                part = s.recv(_HELLO.size - len(received))
                if not part:
                    break
                received += part
        if len(received) < _HELLO.size:
            return -1
        rank, theirs = _HELLO.unpack(received)
        return rank if secrets.compare_digest(theirs, secret) else -1

    def _bind_address(self) -> str:
        if self._interface is None:
            return "0.0.0.0"
        addresses = interface_addresses(self._interface)
        if not addresses:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise ConfigError(
                f"SIRTAKI_NETWORK_INTERFACE={self._interface!r} has no IPv4 address on rank 0's host; "
                f"its interfaces are {names}"
            )
        return addresses[0]

    @contextlib.contextmanager
    def _explain(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SirtakiError(f"rank {self._topology.rank}, {what}: {error or type(error).__name__}") from error


def interface_addresses(only: str | None = None) -> list[str]:
    """Return the IPv4 addresses of this host's interfaces, or of one; the loopback address last.

    Example:
        >>> interface_addresses("lo")
        ['127.0.0.1']
    """
    get_address = 0x8915  # SIOCGIFADDR
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            if only is not None and name != only:
                continue
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                reply = fcntl.ioctl(s, get_address, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(reply[20:24]))
    return sorted(found, key=lambda a: a.startswith("127."))


def _prepare_tcp(s: socket.socket) -> None:
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A host that vanishes without a word is noticed after idle + interval * count seconds or, with bytes on the way
    # to it, after as many milliseconds as the last option says.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 8000)


def _make_segment(size: int) -> int:
    fd = os.memfd_create("sirtaki", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    # Nobody can take memory away from under a rank that reads it.
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _open_pidfd(s: socket.socket, stack: contextlib.ExitStack) -> int:
    """Return a descriptor that tells of the peer's death, -1 if there is none to be had.

    A child that a peer has forked keeps the peer's socket open beyond its death; this it cannot.
    """
    credentials = s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", credentials)[0]
    if pid <= 0:
        return -1
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return -1
    stack.callback(os.close, fd)
    return fd
