"""Horovod's `horovod.tensorflow.data`."""
