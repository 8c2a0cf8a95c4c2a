"""Compression: what becomes of a tensor before it is sent, and of the result.

A compressor is a class with static methods, or an object, that has `Compressor`'s two functions. An object may keep
state between calls, such as the error that its rounding has made, to add it to the next gradient.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """The interface of compressors."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and whatever `decompress` needs.

        Args:
            tensor: a dense tensor of any type and shape.

        Returns:
            A tensor whose shape and type are the same on all ranks, and a context.
        """
        raise NotImplementedError("a compressor defines compress")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the result in the form of the original tensor.

        Args:
            tensor: the reduction of what all ranks have sent.
            ctx: what this rank's `compress` has returned.
        """
        raise NotImplementedError("a compressor defines decompress")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor itself."""
        return tensor


class _NarrowCompressor(Compressor):
    """Sends wider floating types as `wire`; all others as they are."""

    wire: tf.DType

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor in the narrow type, and its own type."""
        if not tensor.dtype.is_floating or tensor.dtype.size <= cls.wire.size:
            return tensor, None
        return tf.cast(tensor, cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor in its original type."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_NarrowCompressor):
    """Sends float32 and float64 as float16: values above 65504 become infinite."""

    wire = tf.float16


class BF16Compressor(_NarrowCompressor):
    """Sends float32 and float64 as bfloat16: their range, with 8 bits of precision."""

    wire = tf.bfloat16


class Compression:
    """The compressors that there are.

    Example:
        >>> import sirtaki.tensorflow as hvd, tensorflow as tf
        >>> hvd.init()
        >>> hvd.allreduce(tf.constant([0.1]), compression=hvd.Compression.fp16).dtype.name
        'float32'
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def check(compression: Any) -> None:
    """Raises TypeError unless `compression` is a compressor."""
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        raise TypeError(
            f"compression must be one of hvd.Compression, or have the functions compress and decompress, and "
            f"{compression!r} has not"
        )
