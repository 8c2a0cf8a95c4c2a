"""Horovod's exceptions."""

from __future__ import annotations

from sirtaki.errors import SirtakiError

# What a collective raises here; inside TensorFlow it is a tf.errors.OpError (docs/errors.md).
HorovodInternalError = SirtakiError


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed. A job of Sirtaki keeps its hosts, so nothing raises it here.

    Attributes:
        skip_sync: whether the state need not be sent to all ranks again.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is of another version than Horovod was built for. Sirtaki meets frameworks when it runs.

    Attributes:
        name, version, installed_version: the framework, what it was built for, and what there is.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return the text of a `HorovodVersionMismatchError`.

    Example:
        >>> get_version_mismatch_message("tensorflow", "2.15", "2.16")
        'built for tensorflow 2.15, and 2.16 is installed'
    """
    return f"built for {name} {version}, and {installed_version} is installed"
