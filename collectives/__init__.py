"""Collective communication for data-parallel training: the public face."""

from sirtaki import errors

__all__ = ["errors"]
