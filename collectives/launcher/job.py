"""Runs one job: starts mpiexec, talks with the rank supervisors, shows their output, ends them.

One thread, which sleeps in one poll over the supervisors' connections, the terminal and the signals.
Guarantees: see ``sirtakirun --help``, "how a job ends". What to do when is decided in `ending` and
`output`; this file does the I/O.
"""

from __future__ import annotations

import hmac
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from .ending import TERM_SECONDS, Ending, RankEnd, first_failure, name_ranks
from .options import Options
from .output import LabelledOutput, RawOutput, Sink, sinks
from .process_control import die_with_parent, signal_group, signal_name, signals_as_bytes
from .protocol import (
    RENDEZVOUS_VARIABLE,
    Decoder,
    Exit,
    Hello,
    Kind,
    ProtocolError,
    Rendezvous,
    Start,
    pack,
    pack_object,
)

_CHUNK = 64 * 1024
# With that much unwritten the ranks are left alone, and wait as they would on a slow terminal.
_MAX_UNWRITTEN = 1024 * 1024
# mpiexec ends when all anchors have; one that does not is ended. After a failure there is less patience.
_MPIEXEC_SECONDS = 10.0
_MPIEXEC_SECONDS_AFTER_FAILURE = 1.0
# Supervisors that have reported end at once, unless their host is lost.
_RELEASE_SECONDS = 1.0


class _Peer:
    """A connection from a supervisor; `rank` is -1 until its HELLO."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.decoder = Decoder()
        self.rank = -1
        self.host = ""


class Job:
    """One run of the command line."""

    def __init__(
        self,
        options: Options,
        mpiexec: list[str],
        listener: socket.socket,
        rendezvous: Rendezvous,
    ) -> None:
        """Takes over the listening socket.

        Args:
            options: the command line.
            mpiexec: the call of mpiexec that starts the supervisors.
            listener: where the supervisors connect to.
            rendezvous: what they need for that.
        """
        self._options = options
        self._command = mpiexec
        self._listener = listener
        self._rendezvous = rendezvous
        self._sinks = sinks()
        self._output = LabelledOutput(self._sinks) if options.label else RawOutput(self._sinks)
        self._ending = Ending(options.grace_period)
        self._running: dict[int, _Peer] = {}
        self._finished: list[_Peer] = []
        self._ends: list[RankEnd] = []
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._mpiexec_status: int | None = None
        self._mpi_gave_up = False
        self._named: RankEnd | None = None
        # Poll, not epoll: standard output may be a regular file.
        self._selector = selectors.PollSelector()

    def run(self) -> int:
        """Runs the job to its end and returns the exit code."""
        wakeup = signals_as_bytes((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        self._selector.register(wakeup, selectors.EVENT_READ, self._on_signals)
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connect)
        self._start_mpiexec()
        while not self._over():
            self._turn()
        self._release_supervisors()
        self._end_mpiexec()
        code = self._exit_code()
        self._drain_output()
        return code

    def _start_mpiexec(self) -> None:
        if self._options.verbose:
            self._output.say(" ".join(self._command))
        rendezvous = json.dumps(asdict(self._rendezvous))
        environment = {**os.environ, RENDEZVOUS_VARIABLE: rendezvous}
        parent = os.getpid()
        self._mpiexec = subprocess.Popen(
            self._command,
            stdin=None if self._options.stdin else subprocess.DEVNULL,
            env=environment,
            # Ctrl-C must reach the ranks through their supervisors; mpiexec would kill them at once.
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )

    def _over(self) -> bool:
        if self._running:
            return self._ending.abandoned
        return len(self._ends) == self._options.num_proc or self._ending.begun

    def _turn(self) -> None:
        self._watch_files()
        deadlines = [t for t in (self._ending.deadline, self._output.deadline()) if t is not None]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, _events in self._selector.select(timeout):
            # An earlier callback of this turn may have closed it, and the number may be in use again.
            registered = self._selector.get_map().get(key.fd)
            if registered is not None and registered.data is key.data:
                key.data(key.fileobj)
        now = time.monotonic()
        self._output.show_partial_lines(now)
        for number in self._ending.due(now):
            self._signal_ranks(number)

    def _watch_files(self) -> None:
        """Registers what this turn waits for: terminals with text to write, ranks unless it is too much."""
        for sink in set(self._sinks.values()):
            self._watch(sink.descriptor, selectors.EVENT_WRITE if sink.unwritten else 0, partial(self._flush, sink))
        full = any(sink.unwritten >= _MAX_UNWRITTEN for sink in self._sinks.values())
        for peer in self._running.values():
            self._watch(peer.connection, 0 if full else selectors.EVENT_READ, partial(self._on_readable, peer))

    def _watch(self, file: socket.socket | int, events: int, callback: Callable[[object], None]) -> None:
        watched = file in self._selector.get_map()
        if events and not watched:
            self._selector.register(file, events, callback)
        elif watched and not events:
            self._selector.unregister(file)

    def _flush(self, sink: Sink, _descriptor: object = None) -> None:
        try:
            sink.flush()
        except BrokenPipeError:
            # As for any program whose reader has left (`sirtakirun ... | head`).
            self._ending.on_signal(signal.SIGPIPE, time.monotonic())

    def _on_signals(self, wakeup: int) -> None:
        for number in os.read(wakeup, 4096):
            if number == signal.SIGCHLD:
                self._on_mpiexec_end()
            else:
                self._ending.on_signal(number, time.monotonic())

    def _on_mpiexec_end(self) -> None:
        if self._mpiexec is not None and self._mpiexec_status is None:
            self._mpiexec_status = self._mpiexec.poll()
            if self._mpiexec_status is not None:
                # Anchors end after the job only: somebody has ended mpiexec, or it has given up.
                self._on_mpi_gave_up()

    def _on_mpi_gave_up(self) -> None:
        self._mpi_gave_up = True
        self._ending.on_mpi_gave_up(time.monotonic())

    def _on_connect(self, listener: socket.socket) -> None:
        try:
            connection, _address = listener.accept()
        except OSError:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._on_readable, peer))

    def _on_readable(self, peer: _Peer, _connection: object) -> None:
        try:
            data = peer.connection.recv(_CHUNK)
            if not data:
                raise ConnectionResetError
            for kind, payload in peer.decoder.feed(data):
                self._on_message(peer, kind, payload)
        except (OSError, ProtocolError):
            self._drop(peer)

    def _on_message(self, peer: _Peer, kind: Kind, payload: bytes) -> None:
        if peer.rank < 0:
            self._on_hello(peer, kind, payload)
        elif kind in (Kind.STDOUT, Kind.STDERR):
            self._output.write(peer.rank, kind, payload, time.monotonic())
        elif kind is Kind.EXIT:
            self._on_rank_end(peer, Exit(**json.loads(payload)))
        elif kind is Kind.ORPHANED:
            # MPI_Abort somewhere, or mpiexec was killed. Either ends the job.
            self._on_mpi_gave_up()

    def _on_hello(self, peer: _Peer, kind: Kind, payload: bytes) -> None:
        if kind is not Kind.HELLO:
            raise ProtocolError("expected HELLO")
        try:
            hello = Hello(**json.loads(payload))
        except (ValueError, TypeError) as error:
            raise ProtocolError("not a HELLO") from error
        if not hmac.compare_digest(hello.token.encode(), self._rendezvous.token.encode()):
            raise ProtocolError("wrong token")
        if not 0 <= hello.rank < self._options.num_proc or hello.rank in self._running:
            raise ProtocolError(f"unexpected rank {hello.rank}")
        if self._ending.begun:
            peer.connection.sendall(pack(Kind.BYE))
            raise ProtocolError("too late")
        peer.rank, peer.host = hello.rank, hello.host
        self._running[peer.rank] = peer
        peer.connection.sendall(pack_object(Kind.START, self._start(peer.rank)))

    def _start(self, rank: int) -> Start:
        options = self._options
        overrides = {"SIRTAKI_LAUNCHED": "1", **options.environment}
        if options.simulate_hosts:
            overrides["SIRTAKI_HOSTNAME"] = f"simulated-{rank * options.simulate_hosts // options.num_proc}"
        return Start(
            command=list(options.command),
            directory=os.getcwd(),
            # Python would keep lines back in a pipe, and a killed rank would take them with it.
            defaults={"PYTHONUNBUFFERED": "1", **os.environ},
            overrides=overrides,
            inherit_stdin=options.stdin and rank == 0,
            term_seconds=TERM_SECONDS,
        )

    def _on_rank_end(self, peer: _Peer, report: Exit | None) -> None:
        del self._running[peer.rank]
        self._finished.append(peer)
        self._output.close(peer.rank)
        end = RankEnd(peer.rank, peer.host, report)
        self._ends.append(end)
        if end.failed:
            if end.by_itself:
                self._name(end)
            self._ending.on_failure(time.monotonic())

    def _name(self, failure: RankEnd) -> None:
        """Tells which rank failed first, once; after an interrupt all fail, and it says nothing."""
        if self._named is None and not self._ending.interrupt:
            self._named = failure
            self._output.say(str(failure))

    def _drop(self, peer: _Peer) -> None:
        self._watch(peer.connection, 0, partial(self._on_readable, peer))
        peer.connection.close()
        if self._running.get(peer.rank) is peer:
            self._on_rank_end(peer, None)

    def _signal_ranks(self, number: int) -> None:
        if self._running and not self._ending.interrupt:
            self._output.say(f"sending {signal_name(number)} to {name_ranks(self._running)}, still running")
        for peer in list(self._running.values()):
            try:
                peer.connection.sendall(pack(Kind.SIGNAL, str(number).encode()))
            except OSError:
                self._drop(peer)

    def _release_supervisors(self) -> None:
        """Tells the supervisors that the job is over and waits until those that have reported are gone."""
        for peer in [*self._finished, *self._running.values()]:
            try:
                peer.connection.sendall(pack(Kind.BYE))
                peer.connection.settimeout(_RELEASE_SECONDS)
                while peer.rank not in self._running and peer.connection.recv(_CHUNK):
                    pass
            except OSError:
                pass
            peer.connection.close()
        self._listener.close()

    def _end_mpiexec(self) -> None:
        """Waits for mpiexec, whose anchors end now; makes it end if it does not."""
        process = self._mpiexec
        assert process is not None
        failed = self._ending.begun
        for seconds, number in (
            (_MPIEXEC_SECONDS_AFTER_FAILURE if failed else _MPIEXEC_SECONDS, signal.SIGTERM),
            (_MPIEXEC_SECONDS_AFTER_FAILURE, signal.SIGKILL),
        ):
            try:
                self._mpiexec_status = process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                signal_group(process.pid, number)
        self._mpiexec_status = process.wait()

    def _drain_output(self) -> None:
        # Nothing is left to end, so a reader that does not read must not hold up Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for sink in set(self._sinks.values()):
            while sink.unwritten:
                self._flush(sink)

    def _exit_code(self) -> int:
        """Returns the job's exit code, and says what has not been said about its reason."""
        if self._running:
            self._output.say(f"gave up on {name_ranks(self._running)}, which did not answer")
        if self._ending.interrupt:
            return 128 + self._ending.interrupt
        failure = first_failure(self._ends)
        if failure is not None and (failure.by_itself or not self._mpi_gave_up):
            self._name(failure)
            return failure.code
        status = self._mpiexec_status or 0
        if self._mpi_gave_up or status:
            how = f"was killed by {signal_name(-status)}" if status < 0 else f"exited with code {status}"
            if not self._ends:
                when = "before any rank had started"
            elif self._mpi_gave_up:
                when = "and has ended the ranks"
            else:
                when = "although all ranks have exited with code 0"
            self._output.say(f"{self._command[0]} {how} {when}")
            return 128 - status if status < 0 else status or 1
        return 1 if self._running else 0
