"""Horovod's `horovod.tensorflow.util`, which has no public names."""
