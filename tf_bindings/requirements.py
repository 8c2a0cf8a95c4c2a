"""Says what is missing, before an import of it fails with less to go on."""

from __future__ import annotations

import importlib.util

from sirtaki.errors import MissingDependencyError


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


for _needed in ("tensorflow", "keras"):
    if not _is_there(_needed):
        raise MissingDependencyError(
            f"sirtaki.tensorflow needs TensorFlow 2.16 or later with Keras 3, and there is no {_needed}. "
            "Run: pip install 'sirtaki[tensorflow]', or install a TensorFlow of your choice."
        )
