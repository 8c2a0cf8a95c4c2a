"""Runs first in every Python process of `sirtakirun --as-horovod`: imports of horovod will find Sirtaki.

Costs other Python processes nothing: Sirtaki itself is imported when somebody imports horovod.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any


class _FirstImportOfHorovod:
    """Installs Sirtaki as Horovod at the first import of horovod, and then is gone."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "horovod":
            return None
        sys.meta_path.remove(self)
        try:
            from sirtaki.horovod.installation import install_as_horovod
        except ImportError as error:
            raise ImportError(
                f"sirtakirun --as-horovod: this Python, {sys.executable}, does not have Sirtaki ({error})"
            ) from error
        install_as_horovod()
        return importlib.util.find_spec(fullname)


if os.environ.get("SIRTAKI_AS_HOROVOD") == "1":
    sys.meta_path.insert(0, _FirstImportOfHorovod())

# The sitecustomize that would have run without this one.
_here = os.path.dirname(os.path.abspath(__file__))
_elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_next = importlib.machinery.PathFinder.find_spec("sitecustomize", _elsewhere)
if _next is not None and _next.loader is not None:
    _module = importlib.util.module_from_spec(_next)
    sys.modules["sitecustomize"] = _module
    _next.loader.exec_module(_module)
