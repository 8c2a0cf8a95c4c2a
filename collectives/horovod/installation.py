"""Makes imports of ``horovod`` find Sirtaki."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sirtaki import initialization
from sirtaki.horovod import settings

# The release whose interface this is.
HOROVOD_VERSION = "0.28.1"

_TARGETS = (
    ("horovod.tensorflow", "sirtaki.tensorflow"),
    ("horovod.keras", "sirtaki.keras"),
    ("horovod", "sirtaki.horovod"),
)
_ABSENT = {
    "horovod.torch": "PyTorch",
    "horovod.mxnet": "MXNet",
    "horovod.spark": "Spark",
    "horovod.ray": "Ray",
}


def install_as_horovod() -> None:
    """Make ``import horovod...`` in this process give Sirtaki, and ``HOROVOD_*`` settings count.

    Call it before the script's first import of horovod; ``sirtakirun --as-horovod`` does so for every rank. A Horovod
    that is installed is hidden. Settings are translated at `init`: those with an equal one here, unless that is set
    itself; the others are named in one warning.

    Raises:
        ImportError: the real horovod has been imported already.

    Example:
        >>> import sirtaki
        >>> sirtaki.install_as_horovod()
        >>> import horovod.common.util
        >>> horovod.common.util.num_rank_is_power_2(8)
        True
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "horovod" in sys.modules:
        raise ImportError(
            "horovod has been imported already: call sirtaki.install_as_horovod() before the first import of horovod, "
            "or start the script with sirtakirun --as-horovod"
        )
    sys.meta_path.insert(0, _Finder())
    initialization.before_init.append(_translate_settings)


def _translate_settings() -> None:
    problem = settings.translate()
    if problem:
        warnings.warn(problem, RuntimeWarning, stacklevel=3)


def _target(name: str) -> str | None:
    for source, target in _TARGETS:
        if name == source or name.startswith(source + "."):
            return target + name[len(source) :]
    return None


class _Finder(MetaPathFinder):
    """Finds Sirtaki's modules under Horovod's names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for absent, what in _ABSENT.items():
            if fullname == absent or fullname.startswith(absent + "."):
                raise ModuleNotFoundError(
                    f"{fullname}: Sirtaki stands in for Horovod's TensorFlow and Keras interfaces, and has none "
                    f"for {what}",
                    name=fullname,
                )
        found = _target(fullname)
        if found is None or importlib.util.find_spec(found) is None:
            return None
        return ModuleSpec(fullname, _AliasLoader(found), is_package=True)


class _AliasLoader(Loader):
    """Makes a module with the names of another: two modules, since a module knows its own name."""

    def __init__(self, target: str) -> None:
        self._target = target

    def exec_module(self, module: ModuleType) -> None:
        target = importlib.import_module(self._target)
        own = set(vars(module))
        vars(module).update({name: value for name, value in vars(target).items() if name not in own})
        # What the target gets later, and what it computes.
        module.__getattr__ = lambda name: _later(target, name)  # type: ignore[method-assign]


def _later(target: ModuleType, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(target, name)
