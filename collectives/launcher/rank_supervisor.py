"""Runs the command of one rank and stands between it and the launcher. One per rank, on the rank's host.

Guarantees:
  * The command's process group does not outlive the command, nor the launcher, nor this process; nor do
    MPI's files in shared memory.
  * Everything that the command wrote before it ended reaches the launcher before the report of its end.
  * The anchor, which is the process that ``mpiexec`` knows, lives until the launcher says that the job is
    over. MPI implementations end all ranks when one of them ends badly; so none ever does.
  * ``mpiexec`` killing the anchor (that is what MPI_Abort does to the others) does not kill the command:
    the launcher hears of it and gives every rank its time to speak.

It knows nothing of MPI but the variables that hold the rank, and nothing of the job but its own rank.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

from .process_control import die_with_parent, signal_group, signals_as_bytes
from .protocol import (
    RANK_PID_VARIABLE,
    RENDEZVOUS_VARIABLE,
    Decoder,
    Exit,
    Hello,
    Kind,
    Rendezvous,
    Start,
    pack,
    pack_object,
)
from .shared_memory import remove_orphans

# In this order: Open MPI's daemon may itself run under a PMIx server, the first name is its own.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_CONNECT_SECONDS = 10.0
# Large enough for few system calls, small enough that a burst of one rank does not hold up the others.
_CHUNK = 64 * 1024
# With that much unsent the command's pipes are left alone, and the command waits as on any slow terminal.
_MAX_UNSENT = 1024 * 1024
# What a pipe can hold at most (fs.pipe-max-size as Linux ships it).
_MAX_PIPE = 1024 * 1024
# The signal of the anchor's death; any other signal means that somebody wants the rank to end.
_ANCHOR_DIED = signal.SIGUSR1


class Supervisor:
    """The supervisor's event loop: one thread, which sleeps in one poll."""

    def __init__(self, connection: socket.socket, decoder: Decoder, start: Start) -> None:
        self._connection = connection
        self._decoder = decoder
        self._start = start
        self._unsent = bytearray()
        self._pipes: dict[int, Kind] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._launcher_is_gone = False
        self._released = False
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._wakeup = signals_as_bytes((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, _ANCHOR_DIED))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_ANCHOR_DIED})

    def run(self, received: list[tuple[Kind, bytes]]) -> None:
        """Starts the command and returns when the job is over and nothing of the command is left.

        Args:
            received: messages that have come together with START.
        """
        self._connection.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._spawn()
        for kind, payload in received:
            self._on_message(kind, payload)
        while self._process is not None or not (self._released or self._launcher_is_gone):
            self._watch_pipes()
            timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            for key, events in self._selector.select(timeout):
                if key.fileobj is self._wakeup:
                    self._on_signals(os.read(self._wakeup, 4096))
                elif key.fileobj is self._connection:
                    self._on_connection(events)
                elif key.fd in self._pipes:
                    self._forward(key.fd)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._signal_command(signal.SIGKILL)
            self._reap()

    def _spawn(self) -> None:
        start = self._start
        environment = {**start.defaults, **os.environ, **start.overrides}
        environment.pop(RANK_PID_VARIABLE, None)
        parent = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)
            die_with_parent(parent)

        try:
            self._process = subprocess.Popen(
                start.command,
                # MPI passes its connection to the rank as an open descriptor.
                close_fds=False,
                stdin=None if start.inherit_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=start.directory if os.path.isdir(start.directory) else None,
                env=environment,
                preexec_fn=prepare,
            )
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._send(pack_object(Kind.EXIT, Exit(code, error=f"{start.command[0]}: {error.strerror}")))
            return
        for pipe, kind in ((self._process.stdout, Kind.STDOUT), (self._process.stderr, Kind.STDERR)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe.fileno()] = kind

    def _watch_pipes(self) -> None:
        """Registers what this turn waits for: pipes unless too much is unsent, sending if anything is."""
        full = len(self._unsent) >= _MAX_UNSENT
        registered = self._selector.get_map()
        for descriptor in self._pipes:
            if full and descriptor in registered:
                self._selector.unregister(descriptor)
            elif not full and descriptor not in registered:
                self._selector.register(descriptor, selectors.EVENT_READ)
        if not self._launcher_is_gone:
            sending = selectors.EVENT_WRITE if self._unsent else 0
            self._selector.modify(self._connection, selectors.EVENT_READ | sending)

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == _ANCHOR_DIED:
                self._send(pack(Kind.ORPHANED))
            elif number != signal.SIGCHLD:
                self._end_command(number)

    def _on_message(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.SIGNAL:
            self._asked = True
            self._signal_command(int(payload))
        elif kind is Kind.BYE:
            self._released = True

    def _on_connection(self, events: int) -> None:
        if self._launcher_is_gone:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush()
            if events & selectors.EVENT_READ:
                data = self._connection.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError
                for kind, payload in self._decoder.feed(data):
                    self._on_message(kind, payload)
        except BlockingIOError:
            pass
        except OSError:
            self._on_launcher_gone()

    def _on_launcher_gone(self) -> None:
        """Without a launcher nobody can see the command any more, or end it: it ends now."""
        self._launcher_is_gone = True
        self._unsent.clear()
        self._selector.unregister(self._connection)
        self._end_command(signal.SIGTERM)

    def _forward(self, descriptor: int) -> bool:
        """Sends what a pipe of the command holds; returns whether there may be more."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._send(pack(self._pipes[descriptor], data))
            return True
        self._drop_pipe(descriptor)
        return False

    def _drop_pipe(self, descriptor: int) -> None:
        self._pipes.pop(descriptor, None)
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _reap(self) -> None:
        process = self._process
        if process is None:
            return
        # Not reaped yet: until the group is gone the command's process id must not be given to anybody.
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        signal_group(process.pid, signal.SIGKILL)
        status = process.wait()
        for descriptor in list(self._pipes):
            # A process that left the group may hold the pipe open and even write on; neither may keep the
            # job from ending.
            for _ in range(_MAX_PIPE // _CHUNK):
                if not self._forward(descriptor):
                    break
            self._drop_pipe(descriptor)
        self._process = None
        self._kill_at = None
        code, number = (status, 0) if status >= 0 else (None, -status)
        self._send(pack_object(Kind.EXIT, Exit(code, number, self._asked)))

    def _end_command(self, number: int) -> None:
        self._asked = True
        self._signal_command(number)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._start.term_seconds

    def _signal_command(self, number: int) -> None:
        if self._process is not None:
            signal_group(self._process.pid, number)

    def _send(self, message: bytes) -> None:
        if self._launcher_is_gone:
            return
        self._unsent += message
        try:
            self._flush()
        except OSError:
            self._on_launcher_gone()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            del self._unsent[:sent]


def _rank() -> int:
    for name in _RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    raise SystemExit(
        f"sirtakirun: mpiexec set none of {', '.join(_RANK_VARIABLES)}, so this process has no rank;"
        " this MPI is not supported"
    )


def _connect(rendezvous: Rendezvous) -> socket.socket:
    failures = []
    for address in rendezvous.addresses:
        try:
            connection = socket.create_connection((address, rendezvous.port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
        else:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    raise SystemExit(
        f"sirtakirun: host {socket.gethostname()} cannot reach the launcher at port {rendezvous.port}"
        f" ({'; '.join(failures)})"
    )


def _supervise(connection: socket.socket, token: str) -> int:
    began = time.time()
    connection.sendall(pack_object(Kind.HELLO, Hello(token, _rank(), socket.gethostname())))
    decoder = Decoder()
    messages: list[tuple[Kind, bytes]] = []
    while not messages:
        data = connection.recv(_CHUNK)
        if not data:
            return 1
        messages += decoder.feed(data)
    (kind, payload), *others = messages
    # BYE instead of START: the job has failed before this rank came.
    if kind is Kind.START:
        Supervisor(connection, decoder, Start(**json.loads(payload))).run(others)
        remove_orphans(began)
    return 0


def _anchor(supervisor: int) -> int:
    """Waits for the supervisor in the process that ``mpiexec`` knows; passes on requests to end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: os.kill(supervisor, number))
    _pid, status = os.waitpid(supervisor, 0)
    return 0 if status == 0 else 1


def main() -> int:
    """Splits into the anchor and the supervisor; returns the exit code of whichever this process is."""
    rendezvous = Rendezvous(**json.loads(os.environ.pop(RENDEZVOUS_VARIABLE)))
    # Before the split: the launcher sees the connection close when both are gone, and can wait for that.
    connection = _connect(rendezvous)
    anchor = os.getpid()
    # Blocked until the supervisor has its handlers: the default action would end it unheard.
    signal.pthread_sigmask(signal.SIG_BLOCK, {_ANCHOR_DIED})
    supervisor = os.fork()
    if supervisor:
        return _anchor(supervisor)
    # A session of its own: what mpiexec sends to the anchor's group does not hit the supervisor.
    os.setsid()
    die_with_parent(anchor, _ANCHOR_DIED)
    return _supervise(connection, rendezvous.token)


if __name__ == "__main__":
    sys.exit(main())
