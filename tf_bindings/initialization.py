"""`init` for TensorFlow: the job, and what Keras does in it."""

from __future__ import annotations

from typing import Any

import sirtaki
from sirtaki.tensorflow import training


def init(*args: Any, **kwargs: Any) -> None:
    """Joins this process to the job, as `sirtaki.init` does, and watches over Keras.

    From here on `keras.Model.fit` warns if the job has several ranks and gradients are not reduced, evens out the
    numbers of batches of the ranks, and takes what callbacks decide for all of them. Arguments are those of
    `sirtaki.init`.

    Example:
        >>> hvd.init()
        >>> print(f"rank {hvd.rank()} of {hvd.size()}")
    """
    sirtaki.init(*args, **kwargs)
    training.watch()
