"""Horovod's ``horovod.common``."""
