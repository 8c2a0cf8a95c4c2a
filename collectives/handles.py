"""Handles of collectives in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sirtaki import _native
from sirtaki.engine import Engine

T = TypeVar("T")


class Handle(Generic[T]):
    """A collective in flight or done. Keeps its arrays alive; do not change them before it is done.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> handle = sirtaki.allreduce_async(np.ones(2), name="weights")
        >>> handle.wait(timeout=60)
        >>> handle.poll(), handle.result().tolist()
        (True, [1.0, 1.0])
    """

    def __init__(self, engine: Engine, natives: Sequence[_native.Handle], finish: Callable[[], T]) -> None:
        self._engine = engine
        self._natives = natives
        self._finish = finish
        self._result: list[T] = []

    def poll(self) -> bool:
        """Return whether the collective is done, without waiting."""
        return all(native.done for native in self._natives)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the collective is done.

        Args:
            timeout: seconds, None: for ever.

        Raises:
            TimeoutError: it is not done in time; it goes on, and the handle stays usable.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for native in self._natives:
            if native.done:
                continue
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._engine.wait(native, left):
                raise TimeoutError(f"the collective was not done within {timeout} seconds; it is still in flight")

    def result(self) -> T:
        """Wait and return the result.

        Raises:
            SirtakiError: the collective ended with an error; see `sirtaki.errors`.
        """
        if not self._result:
            self.wait()
            for native in self._natives:
                self._engine.raise_for(native)
            self._result.append(self._finish())
        return self._result[0]


def synchronize(handle: Handle[T]) -> T:
    """Wait for a collective that an ``_async`` function has started and return its result.

    Raises:
        SirtakiError: the collective ended with an error; see `sirtaki.errors`.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> sirtaki.synchronize(sirtaki.allreduce_async(np.ones(2))).tolist()
        [1.0, 1.0]
    """
    return handle.result()


def poll(handle: Handle[T]) -> bool:
    """Return whether a collective that an ``_async`` function has started is done.

    Example:
        >>> import numpy as np, sirtaki
        >>> sirtaki.init()
        >>> handle = sirtaki.barrier_async()
        >>> handle.wait()
        >>> sirtaki.poll(handle)
        True
    """
    return handle.poll()
