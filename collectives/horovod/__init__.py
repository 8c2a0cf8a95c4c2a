"""Horovod's module names, for scripts that import them.

`install_as_horovod` (or ``sirtakirun --as-horovod``) makes ``import horovod.tensorflow`` give `sirtaki.tensorflow`, and
so on; nothing called horovod is installed. The modules below have the names that exist in Horovod beside those of
TensorFlow and Keras.
"""

from sirtaki.horovod.installation import HOROVOD_VERSION, install_as_horovod
from sirtaki.horovod.runner import run

__version__ = HOROVOD_VERSION

__all__ = ["install_as_horovod", "run"]
