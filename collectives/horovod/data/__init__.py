"""Horovod's ``horovod.data``."""
