"""The engine of this process, from Python: its coordinator thread, and errors as exceptions."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sirtaki import _native, errors, stall
from sirtaki.kinds import Kind
from sirtaki.negotiation import Signature, disagreement_text

_log = logging.getLogger("sirtaki")

Array = np.ndarray[Any, Any]


class Engine:
    """Owns the native engine and the thread that drives it when no caller does."""

    def __init__(self, native: _native.Engine, size: int, rank: int, stall_limits: stall.Limits) -> None:
        self.native = native
        self._pid = os.getpid()
        self._rank = rank
        self._thread: threading.Thread | None = None
        if size > 1:
            self._thread = threading.Thread(target=self._coordinate, name="sirtaki-coordinator", daemon=True)
            self._thread.start()
        self._stop_watching = threading.Event()
        self._watch: threading.Thread | None = None
        if size > 1 and rank == 0 and stall_limits.period is not None:
            self._watch = threading.Thread(
                target=stall.watch,
                args=(stall_limits, native.incomplete, self._stall, self._stop_watching),
                name="sirtaki-stall",
                daemon=True,
            )
            self._watch.start()
        _native.set_current_engine(native)

    def submit(
        self,
        kind: Kind,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *,
        dtype: int = 0,
        name: str | None = None,
        reduce_op: int = 0,
        root_rank: int = 0,
        process_set: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        values: Sequence[int] = (),
        wait: bool = False,
    ) -> _native.Handle:
        """Hand a request to the native engine; with `wait` return only when it is done."""
        return self.native.submit(
            kind, reduce_op, dtype, root_rank, process_set, prescale, postscale, name, inputs, outputs, values, wait
        )

    def wait(self, handle: _native.Handle, timeout: float | None) -> bool:
        """Wait until a request is done; return whether it is."""
        if os.getpid() != self._pid:
            raise errors.NotInitializedError("a handle of the parent process cannot be waited for in a forked child")
        return self.native.wait(handle, -1 if timeout is None else int(timeout * 1e9))

    def raise_for(self, handle: _native.Handle) -> None:
        """Raise the exception of a request that ended with an error."""
        if handle.error != 0:
            failed = (self.native.failed_rank,) if self.native.failed else ()
            raise errors.from_code(handle.error, handle.message, failed)

    def announce_failure(self, text: str) -> bool:
        """Tell the job that this rank has failed; return whether it is the first to."""
        return self.native.announce_failure(text)

    def is_failure_of_another(self) -> bool:
        """Return whether the job has failed and one other rank is to blame."""
        native = self.native
        if not native.failed or native.failure_code == errors.STALLED_CODE:
            return False
        return native.failed_rank != self._rank

    @property
    def other_is_silent(self) -> bool:
        """Whether the job has failed because another rank is unresponsive."""
        return self.is_failure_of_another() and self.native.failure_code == errors.UNRESPONSIVE_CODE

    def leave(self) -> None:
        """Leave the job and return when this process may end. No-op after a failure."""
        with self._telling_of_failure():
            self.native.leave()
            self.native.wait_until_may_end(-1)

    def leave_and_wait_for_all(self) -> None:
        """Leave the job and return when all ranks have, or one has failed."""
        with self._telling_of_failure():
            self.native.leave()
            self.native.wait_until_all_left()

    def close(self) -> None:
        """Stop all threads of the engine."""
        _native.set_current_engine(None)
        self._stop_watching.set()
        if self._watch is not None:
            self._watch.join()
        self.native.request_stop()
        if self._thread is not None:
            self._thread.join()
        self.native.close()

    def _stall(self, text: str) -> None:
        self.native.announce_failure(text, errors.STALLED_CODE)

    @contextlib.contextmanager
    def _telling_of_failure(self) -> Iterator[None]:
        """Log the failure that ends the wait for others: no call is left that could raise it."""
        failed_before = self.native.failed
        yield
        if self.native.failed and not failed_before:
            _log.error("the job failed while this rank waited for the others to end: %s", self.native.failure_text)

    def _coordinate(self) -> None:
        try:
            while self.native.run_coordinator():
                while (event := self.native.take_rare_event()) is not None:
                    self._decide(event)
        except Exception as error:
            _log.exception("the coordinator thread of Sirtaki stopped")
            self.native.announce_failure(f"the coordinator thread stopped: {type(error).__name__}: {error}")

    def _decide(self, event: dict[str, Any]) -> None:
        if event["kind"] == "new_name":
            self.native.assign_name(event["bytes"])
        elif event["kind"] == "new_signature":
            self.native.assign_signature(event["bytes"])
        else:
            sent = [(rank, Signature.decode(encoded)) for rank, encoded in event["signatures"]]
            text = disagreement_text(self.native.describe(event["key"]), sent)
            self.native.refuse(event["key"], errors.MISMATCH_CODE, text)
