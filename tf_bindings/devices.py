"""Devices that TensorFlow has."""

import tensorflow as tf


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Returns whether TensorFlow sees a GPU. Collectives run on the CPU nevertheless, on copies of the tensors.

    Args:
        ext_base_name, verbose: Horovod's; they change nothing here.

    Example:
        >>> hvd.gpu_available()
        False
    """
    return bool(tf.config.list_physical_devices("GPU"))
