"""What a collective is to do, apart from the tensors: the same for TensorFlow's kernels, XLA and gradients."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sirtaki.kinds import Kind
from sirtaki.reduce_ops import ReduceOp


@dataclass(frozen=True)
class CallDescription:
    """One collective.

    Attributes:
        function: the public function, for messages.
        kind: of the engine's requests.
        name: what the ranks call it; empty: the next unnamed call.
        process_set: its number.
        reduce_op, prescale, postscale: for reductions.
        root_rank: for a broadcast.
    """

    function: str
    kind: Kind
    name: str
    process_set: int = 0
    reduce_op: ReduceOp = ReduceOp.Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root_rank: int = 0

    @property
    def prescale_bits(self) -> int:
        """The bits of the factor, which TensorFlow's own float attributes would round."""
        return double_bits(self.prescale)

    @property
    def postscale_bits(self) -> int:
        """The bits of the factor."""
        return double_bits(self.postscale)


def double_bits(value: float) -> int:
    """The bits of a float64 as an int64, which is how operations carry it."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def double_of_bits(bits: int) -> float:
    """The float64 that `double_bits` has made an integer."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
