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


class UnreducedGradientsError(SirtakiError, RuntimeError):
    """A job of several ranks trains a model without reducing its gradients."""


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


class RankJoinedError(SirtakiError, RuntimeError):
    """A rank that is needed has called `sirtaki.join` and gives nothing any more."""


class UnresponsiveError(RanksFailedError):
    """A rank gave no sign of life for too long: it is stopped, or its host or network hangs.

    `ranks` names it. A rank that goes on later finds that the job has failed without it.
    """


class StalledError(SirtakiError, RuntimeError):
    """Tensors have waited too long for ranks that do not submit them, and a setting ends such a job."""


class OutOfMemoryError(SirtakiError, MemoryError):
    """A result could not be allocated on this rank; the other ranks have theirs."""


class InternalError(SirtakiError, RuntimeError):
    """A broken invariant inside Sirtaki: a defect, please report it with the message."""


# The numbers of sirtaki_error in native/engine_abi.h.
_BY_CODE: dict[int, type[SirtakiError]] = {
    1: InvalidArgumentError,
    2: MismatchError,
    3: RanksFailedError,
    4: RankLeftError,
    5: DuplicateNameError,
    6: NotInitializedError,
    7: OutOfMemoryError,
    8: InternalError,
    9: StalledError,
    10: UnresponsiveError,
    11: RankJoinedError,
}
MISMATCH_CODE = 2
STALLED_CODE = 9
UNRESPONSIVE_CODE = 10


def from_code(code: int, text: str, failed_ranks: tuple[int, ...] = ()) -> SirtakiError:
    """Return the exception for an error of the engine.

    Args:
        code: a ``sirtaki_error`` other than 0.
        text: the engine's message.
        failed_ranks: for a failed job, the ranks that failed first.

    Example:
        >>> from_code(2, "'w' differs between ranks")
        MismatchError("'w' differs between ranks")
    """
    kind = _BY_CODE.get(code, InternalError)
    if issubclass(kind, RanksFailedError):
        return kind(text, failed_ranks)
    return kind(text)
