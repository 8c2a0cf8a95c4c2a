"""The collectives and positions under the name of Horovod's module `horovod.tensorflow.mpi_ops`."""

__all__ = [name for name in dir() if not name.startswith("_")]
