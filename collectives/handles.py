"""Handles of collectives in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sirtaki import _native
from sirtaki.engine import Engine

T = TypeVar("T")
U = TypeVar("U")


class Handle(Generic[T]):
    """A collective in flight or done. Keeps its arrays alive; do not change them before it is done."""

    def __init__(self, engine: Engine, native: _native.Handle, finish: Callable[[_native.Handle], T]) -> None:
        self._engine = engine
        self._native = native
        self._finish = finish
        self._result: list[T] = []

    def map(self, function: Callable[[T], U]) -> Handle[U]:
        """Return a handle of the same collective whose result is `function` of this one's."""
        return Handle(self._engine, self._native, lambda native: function(self._finish(native)))

    def poll(self) -> bool:
        """Return whether the collective is done, without waiting."""
        return self._native.done

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the collective is done.

        Args:
            timeout: seconds, None: for ever.

        Raises:
            TimeoutError: it is not done in time; the handle stays usable.
        """
        if not self._engine.wait(self._native, timeout):
            raise TimeoutError(f"the collective was not done within {timeout} seconds; it is still in flight")

    def result(self) -> T:
        """Wait and return the result.

        Raises:
            SirtakiError: the collective ended with an error; see `sirtaki.errors`.
        """
        self.wait()
        self._engine.raise_for(self._native)
        if not self._result:
            self._result.append(self._finish(self._native))
        return self._result[0]


def synchronize(handle: Handle[T]) -> T:
    """Wait for a collective that an ``_async`` function has started and return its result.

    Raises:
        SirtakiError: the collective ended with an error; see `sirtaki.errors`.
    """
    return handle.result()


def poll(handle: Handle[T]) -> bool:
    """Return whether a collective that an ``_async`` function has started is done."""
    return handle.poll()
