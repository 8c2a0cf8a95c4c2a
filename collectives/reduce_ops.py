"""The operations of a reduction, under Horovod's names and numbers."""

from __future__ import annotations

from enum import IntEnum


class ReduceOp(IntEnum):
    """How a reduction combines the ranks' values; ``docs/types.md`` says what that means for each type.

    ``Average`` is the sum divided by the number of ranks. ``Adasum`` adds gradients so that what they agree on is
    not counted twice (see native/adasum.h). ``Product`` multiplies.
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


def resolve(average: bool | None, op: int | None) -> ReduceOp:
    """Return the operation that the arguments ``average`` (Horovod's old one) and ``op`` ask for.

    Raises:
        ValueError: both are given, or ``op`` is not a known operation.
    """
    if average is not None:
        if op is not None:
            raise ValueError("give either op or the older argument average, not both")
        return Average if average else Sum
    if op is None:
        return Average
    if isinstance(op, ReduceOp):
        return op
    try:
        return ReduceOp(op)
    except ValueError:
        known = ", ".join(f"sirtaki.{o.name}" for o in ReduceOp)
        raise ValueError(f"op={op!r} is not a reduction; known are {known}") from None
