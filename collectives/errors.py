"""The exceptions that Sirtaki raises.

Every message names the tensor and the ranks concerned, what was seen, and what to do. The engine
reports errors as a code and a text (``native/engine_abi.h``); `from_code` is the one place where
they become exceptions. ``docs/errors.md`` has the table, with TensorFlow's counterparts.
"""

from __future__ import annotations


class SirtakiError(Exception):
    """Base class of everything that Sirtaki raises on its own account."""


class NotInitializedError(SirtakiError, RuntimeError):
    """A function that needs a job was called before `init` or after `shutdown`."""


class ConfigError(SirtakiError, ValueError):
    """A setting has a value that cannot be used; the message names the setting."""


class MissingDependencyError(SirtakiError, ImportError):
    """An optional package is needed for what was asked, and is not installed."""


class InvalidArgumentError(SirtakiError, ValueError):
    """An argument of this call is wrong; nothing was sent to the other ranks."""


class MismatchError(SirtakiError, ValueError):
    """The ranks do not agree about a tensor; raised with the same text on all of them."""


class DuplicateNameError(SirtakiError, ValueError):
    """A name was submitted again while the first request under it was still in flight."""


class RankLeftError(SirtakiError, RuntimeError):
    """A rank that is needed has shut down normally and can take part in nothing any more."""


class RanksFailedError(SirtakiError, RuntimeError):
    """A rank died or announced an uncaught exception; the job cannot go on.

    Attributes:
        ranks: the global ranks that failed first, as far as this process knows.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class InternalError(SirtakiError, RuntimeError):
    """A broken invariant inside Sirtaki: a defect, please report it with the message."""
