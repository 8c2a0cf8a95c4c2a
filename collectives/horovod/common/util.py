"""Horovod's helpers."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

from sirtaki.features import ccl_built, ddl_built, gloo_built, mpi_built, nccl_built
from sirtaki.horovod.common.exceptions import HorovodVersionMismatchError, get_version_mismatch_message

__all__ = [
    "EXTENSIONS",
    "HorovodVersionMismatchError",
    "ccl_built",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "get_version_mismatch_message",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
]

EXTENSIONS = ["tensorflow", "torch", "mxnet"]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework can be used.

    Example:
        >>> extension_available("mxnet")
        False
    """
    if ext_base_name != "tensorflow":
        return False
    return all(importlib.util.find_spec(name) is not None for name in ("tensorflow", "sirtaki.tensorflow"))


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework sees a GPU.

    Example:
        >>> gpu_available("mxnet")
        False
    """
    if not extension_available(ext_base_name):
        return False
    module = importlib.import_module("tensorflow")
    return bool(module.config.list_physical_devices("GPU"))


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Raise an error if a framework is not of this version.

    Raises:
        HorovodVersionMismatchError: another version is installed.

    Example:
        >>> import numpy
        >>> check_installed_version("numpy", numpy.__version__)
    """
    installed = importlib.import_module(name).__version__
    if installed != version:
        raise HorovodVersionMismatchError(name, version, installed) from exception


def get_ext_suffix() -> str:
    """Return how the file names of extension modules end.

    Example:
        >>> get_ext_suffix().endswith(".so")
        True
    """
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path of an extension module beside a file.

    Example:
        >>> get_extension_full_path("/opt/package/module.py", "lib").startswith("/opt/package/lib.")
        True
    """
    return os.path.join(os.path.dirname(pkg_path), *args) + get_ext_suffix()


@contextlib.contextmanager
def env(**kwargs: str) -> Iterator[None]:
    """Set environment variables for a while.

    Example:
        >>> with env(COLOUR="blue"):
        ...     os.environ["COLOUR"]
        'blue'
    """
    before = {name: os.environ.get(name) for name in kwargs}
    os.environ.update(kwargs)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def is_iterable(x: Any) -> bool:
    """Return whether one can iterate over this.

    Example:
        >>> is_iterable([1]), is_iterable(1)
        (True, False)
    """
    try:
        iter(x)
    except TypeError:
        return False
    return True


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of two.

    Example:
        >>> num_rank_is_power_2(6)
        False
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """Return a function that says which operation ``op`` and the older ``average`` ask for.

    Args:
        reduce_ops: has the attributes ``Average`` and ``Sum``.

    Example:
        >>> import sirtaki
        >>> get_average_backwards_compatibility_fun(sirtaki)(None, False).name
        'Sum'
    """

    def resolve(op: Any, average: Any) -> Any:
        if op is not None:
            if average is not None:
                raise ValueError("give either op or the older argument average, not both")
            return op
        return reduce_ops.Sum if average is False else reduce_ops.Average

    return resolve
