"""The rules by which ranks agree about tensors: pure, without I/O.

The native sequencer (``native/sequencer.h``) handles what is known by number. What is rare comes here, on
rank 0: a name or signature met for the first time, and ranks that disagree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sirtaki import _native
from sirtaki.dtypes import dtype_name
from sirtaki.kinds import REDUCTIONS, WITHOUT_TENSORS, Kind
from sirtaki.reduce_ops import ReduceOp

_LONGEST_NAME = 300  # characters of a name that a message shows


@dataclasses.dataclass(frozen=True)
class Signature:
    """What must be equal on all ranks, as a person reads it."""

    kind: Kind
    reduction: str
    dtype: str
    root_rank: int | None
    prescale_factor: float
    postscale_factor: float
    shapes: tuple[tuple[int, ...], ...]
    values: tuple[int, ...] = ()

    @classmethod
    def decode(cls, encoded: bytes) -> Signature:
        """Decode the engine's bytes."""
        fields = _native.describe_signature(encoded)
        kind = Kind(fields["kind"])
        return cls(
            kind=kind,
            reduction=ReduceOp(fields["reduce_op"]).name if kind in REDUCTIONS else "",
            dtype="" if kind in WITHOUT_TENSORS else dtype_name(fields["dtype"]),
            root_rank=fields["root_rank"] if kind == Kind.BROADCAST else None,
            prescale_factor=fields["prescale_factor"],
            postscale_factor=fields["postscale_factor"],
            shapes=tuple(tuple(s) for s in fields["shapes"]),
            values=tuple(fields["values"]),
        )

    def __str__(self) -> str:
        if self.kind in WITHOUT_TENSORS:
            return f"{self.kind.label}({', '.join(map(str, self.values))})" if self.values else self.kind.label
        shapes = [str(s).replace("-1", "any") for s in self.shapes]
        if len(shapes) > 6:
            shapes[5:] = [f"... ({len(shapes)} tensors)"]
        text = f"{self.kind.label} of {self.dtype} {', '.join(shapes)}"
        if self.reduction:
            text += f" with op={self.reduction}"
        if self.root_rank is not None:
            text += f" with root_rank={self.root_rank}"
        if self.prescale_factor != 1.0:
            text += f" prescale_factor={self.prescale_factor!r}"
        if self.postscale_factor != 1.0:
            text += f" postscale_factor={self.postscale_factor!r}"
        return text


def _differing_fields(signatures: Sequence[Signature]) -> list[str]:
    words = {
        "kind": "operation",
        "reduction": "reduction",
        "dtype": "type",
        "root_rank": "root rank",
        "prescale_factor": "prescale factor",
        "postscale_factor": "postscale factor",
        "shapes": "shape",
        "values": "process set",
    }
    if len({s.kind for s in signatures}) > 1:
        return ["operation"]
    return [word for field, word in words.items() if len({getattr(s, field) for s in signatures}) > 1]


def disagreement_text(name: str, sent: Sequence[tuple[int, Signature]]) -> str:
    """Say how the ranks disagree about a tensor.

    Args:
        name: the tensor's name, or a description of an unnamed call.
        sent: each rank with what it sent.

    Example:
        >>> a = Signature(Kind.ALLREDUCE, "Sum", "float32", None, 1.0, 1.0, ((2,),))
        >>> b = dataclasses.replace(a, dtype="float64")
        >>> print(disagreement_text("w", [(0, a), (1, b), (2, b)]))
        'w' differs between ranks in its type: rank 0 sent allreduce of float32 (2,) with op=Sum; ranks 1, 2 \
sent allreduce of float64 (2,) with op=Sum. Nothing was computed. Make the call the same on all ranks.
    """
    groups: dict[Signature, list[int]] = {}
    for rank, signature in sent:
        groups.setdefault(signature, []).append(rank)
    parts = []
    for signature, ranks in groups.items():
        listed = ", ".join(map(str, ranks[:8])) + (f", ... ({len(ranks)} ranks)" if len(ranks) > 8 else "")
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {listed} sent {signature}")
    fields = " and ".join(_differing_fields(list(groups)))
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return (
        f"'{shown}' differs between ranks in its {fields}: {'; '.join(parts)}. Nothing was computed. "
        "Make the call the same on all ranks."
    )
