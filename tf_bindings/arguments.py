"""The arguments of the collectives: what is given to a call, checked and turned into what an op takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import sirtaki.dtypes
import tensorflow as tf
from sirtaki import ProcessSet, job, process_sets
from sirtaki.reduce_ops import ReduceOp
from tensorflow.python.framework import ops as tf_ops

# A NumPy array, a Keras or TensorFlow variable, or anything else that `tf.convert_to_tensor` takes.
TensorLike = Any

TYPES = (
    *(tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
)
# tf.data names the functions that it traces after its transformations.
_OF_A_DATASET = re.compile(r"(\w*Dataset)_(\w+?)_")


def convert(function: str, value: TensorLike, name: str | None) -> tf.Tensor:
    """Returns what a collective was given as a tensor.

    Raises:
        TypeError: its type cannot be sent.
        NotImplementedError: the call is traced by tf.data.
    """
    check_place(function)
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in TYPES:
        known = ", ".join(dtype.name for dtype in TYPES)
        raise TypeError(
            f"{function} of {name or 'an unnamed tensor'}: type {tensor.dtype.name} is not among those it "
            f"can take ({known}); cast the tensor first"
        )
    return tensor


def check_place(function: str) -> None:
    """Raises NotImplementedError where a collective cannot be called."""
    if tf.executing_eagerly():
        return
    graph = tf_ops.get_default_graph()
    while graph is not None:
        if found := _OF_A_DATASET.match(getattr(graph, "name", None) or ""):
            raise NotImplementedError(
                f"sirtaki.tensorflow.{function} cannot be called in tf.data's {found[1]}.{found[2]}: a pipeline runs "
                "its functions in an order of its own on each rank, so calls would meet the wrong partners. Call it "
                "on the elements that the dataset gives"
            )
        graph = getattr(graph, "outer_graph", None)


def check_reducible(dtype: tf.DType, op: ReduceOp, prescale_factor: float, postscale_factor: float) -> None:
    """Raises TypeError unless tensors of this type can be reduced so, as arrays can."""
    scaled = prescale_factor != 1.0 or postscale_factor != 1.0
    sirtaki.dtypes.check_reducible(np.dtype(dtype.as_numpy_dtype), op, scaled)


def number_of(process_set: ProcessSet, function: str) -> int:
    """Returns the engine's number of a process set.

    Raises:
        TypeError: it is no ProcessSet.
        InvalidArgumentError: the job does not know it.
        NotInitializedError: there is no job. The set of all ranks needs none until the op runs.
    """
    if process_set is process_sets.global_process_set:
        return 0
    return process_sets.number_of(process_set, job.current(function).engine)


def place_in(process_set: int) -> tuple[int, int]:
    """Returns this process's index in the process set of this number (-1: none), and the set's size.

    Raises:
        NotInitializedError: there is no job.
        ValueError: there is no such set.
    """
    return job.current("a collective").engine.native.locate(process_set)


def rows_of_members(tensor: tf.Tensor, process_set: int) -> list[int] | None:
    """Returns how many rows of a tensor each member gets in a reducescatter; None if its rows are not known."""
    if tensor.shape.rank is None or tensor.shape.rank == 0 or tensor.shape[0] is None:
        return None
    _, size = place_in(process_set)
    rows = int(tensor.shape[0])
    return [rows // size + (member < rows % size) for member in range(size)]


def positions_by_type(tensors: Sequence[tf.Tensor]) -> dict[tf.DType, list[int]]:
    """Groups tensors: one request has one type."""
    found: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(position)
    return found


def name_of_part(base: str, dtype: tf.DType, num_parts: int) -> str:
    """Returns the name of the request for one type of a group; an unnamed group has unnamed requests."""
    return f"{base}.{dtype.name}" if base and num_parts > 1 else base
