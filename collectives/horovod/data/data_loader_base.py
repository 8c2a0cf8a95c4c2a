"""Base classes for loaders of batches, one of which loads in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Any

_END = object()


class BaseDataLoader:
    """Iterates over batches. A subclass defines ``__len__`` and ``_iterate``.

    Example:
        >>> class Numbers(BaseDataLoader):
        ...     def __len__(self):
        ...         return 2
        ...     def _iterate(self):
        ...         yield from range(2)
        >>> list(Numbers())
        [0, 1]
    """

    def __len__(self) -> int:
        """The number of batches."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """What is done to each batch before it is given out."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Loads batches ahead of time in a thread; put it before the loader in the list of base classes.

    Args:
        async_loader_queue_size: how many batches to load ahead; 0 loads none.
        debug_data_loader: Horovod's; it changes nothing here.
        *args, **kwargs: those of the loader.

    Example:
        >>> class Numbers(BaseDataLoader):
        ...     def _iterate(self):
        ...         yield from range(3)
        >>> class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
        ...     pass
        >>> loader = AsyncNumbers(async_loader_queue_size=2)
        >>> list(loader)
        [0, 1, 2]
        >>> loader.close_async_loader()
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self._queue_size = async_loader_queue_size
        self._stopping: threading.Event | None = None
        self._thread: threading.Thread | None = None
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self._queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        self.close_async_loader()
        queue: Queue[Any] = Queue(self._queue_size)
        stopping = self._stopping = threading.Event()
        batches = self._iterate()  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=_load, args=(batches, queue, stopping), daemon=True)
        self._thread.start()
        while (item := _get(queue, stopping)) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            yield self._process_batch(item)  # type: ignore[attr-defined]

    def close_async_loader(self) -> None:
        """Ends the thread; batches that it has loaded are lost."""
        if self._stopping is not None:
            self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _load(batches: Iterator[Any], queue: Queue[Any], stopping: threading.Event) -> None:
    try:
        for batch in batches:
            if not _put(queue, batch, stopping):
                return
        _put(queue, _END, stopping)
    except BaseException as error:  # the reader raises it
        _put(queue, _Failure(error), stopping)


def _put(queue: Queue[Any], item: Any, stopping: threading.Event) -> bool:
    while not stopping.is_set():
        try:
            queue.put(item, timeout=0.1)
            return True
        except Full:
            continue
    return False


def _get(queue: Queue[Any], stopping: threading.Event) -> Any:
    while not stopping.is_set():
        try:
            return queue.get(timeout=0.1)
        except Empty:
            continue
    return _END
