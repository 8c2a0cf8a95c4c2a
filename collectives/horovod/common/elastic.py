"""State of a training that can be saved, restored and sent to all ranks; see `sirtaki.tensorflow.elastic`."""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Callable, Iterable
from typing import Any

from sirtaki.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "run_fn",
]


class HostUpdateResult(enum.IntFlag):
    """How the hosts of an elastic job have changed; those of a job of Sirtaki do not."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class WorkerNotificationManager:
    """Tells listeners of changed hosts. There are none in a job of Sirtaki, so it has nothing to tell by itself.

    Example:
        >>> manager = WorkerNotificationManager()
        >>> manager.init()
    """

    def __init__(self) -> None:
        self._listeners: list[Any] = []

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Does nothing: there is nobody to connect to."""

    def register_listener(self, listener: Any) -> None:
        """Adds a listener, with a method ``on_hosts_updated``."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        """Removes a listener."""
        self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Tells all listeners."""
        for listener in self._listeners:
            listener.on_hosts_updated(timestamp, update_res)


class State:
    """What a training must not lose.

    Args:
        bcast_object: gives all ranks the object of rank 0.
        get_rank: returns this process's rank.

    Example:
        >>> import sirtaki
        >>> state = ObjectState(sirtaki.broadcast_object, sirtaki.rank, epoch=3)
        >>> state.epoch = 4
        >>> state.restore()
        >>> state.epoch
        3
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._get_rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []

    def on_reset(self) -> None:
        """Called when the ranks of a job have changed, which those of Sirtaki do not."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Called when the hosts of a job have changed, which those of Sirtaki do not."""

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Adds functions for `on_reset` to call."""
        self._reset_callbacks.extend(callbacks)

    def commit(self) -> None:
        """Saves the state."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing: the hosts of a job stay what they are."""

    def save(self) -> None:
        """Keeps the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Makes the state fit to ranks that have changed."""


class ObjectState(State):
    """Attributes that pickle takes.

    Args:
        bcast_object, get_rank: as for `State`.
        **kwargs: the attributes and their first values.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = list(kwargs)
        self._saved: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        ObjectState.save(self)

    def save(self) -> None:
        """Keeps copies of the attributes in memory."""
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        """Sets the attributes to copies of what was saved."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Gives all ranks the attributes of rank 0, and saves them."""
        if self._names:
            self._saved = self._bcast_object({name: getattr(self, name) for name in self._names})
            ObjectState.restore(self)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that syncs the state that it is given before it calls `func`.

    Args:
        func: takes a state first.
        reset: called when `func` raises `HostsUpdatedInterrupt`, before it is called again.

    Example:
        >>> import sirtaki
        >>> sirtaki.init()
        >>> state = ObjectState(sirtaki.broadcast_object, sirtaki.rank, epoch=3)
        >>> run_fn(lambda state: state.epoch + 1, reset=lambda: None)(state)
        4
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        skip_sync = False
        while True:
            if not skip_sync:
                state.sync()
            try:
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
                reset()
                state.on_reset()

    return wrapper
