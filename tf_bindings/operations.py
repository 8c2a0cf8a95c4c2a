"""Which reductions TensorFlow's tensors can have: fewer than NumPy's arrays, and checked before anything is sent."""

from __future__ import annotations

import numpy as np
import sirtaki.dtypes
import sirtaki.reduce_ops
import tensorflow as tf
from sirtaki.reduce_ops import Average, ReduceOp, Sum


def resolve(average: bool | None, op: int | None) -> ReduceOp:
    """Return the operation that the arguments ask for, as `sirtaki.reduce_ops.resolve` does.

    Raises:
        NotImplementedError: it is neither Average nor Sum, whose gradients are the only ones that are known.
    """
    found = sirtaki.reduce_ops.resolve(average, op)
    if found not in (Average, Sum):
        raise NotImplementedError(
            f"op={found.name} is not possible for TensorFlow's tensors yet: use Average or Sum, or reduce NumPy arrays "
            "with sirtaki.allreduce"
        )
    return found


def check_reducible(dtype: tf.DType, op: ReduceOp, prescale_factor: float, postscale_factor: float) -> None:
    """Raise TypeError unless tensors of this type can be reduced so, as arrays can."""
    scaled = prescale_factor != 1.0 or postscale_factor != 1.0
    sirtaki.dtypes.check_reducible(np.dtype(dtype.as_numpy_dtype), op, scaled)
