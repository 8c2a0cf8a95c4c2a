"""Random programs of collectives, and what each of their calls must give.

A program is data, the same on all ranks: what is called, by which ranks, with which values. It is drawn by hypothesis,
so that one that fails is shrunk to a small one. `engine_programs/random_programs.py` runs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import oracle
from hypothesis import strategies as st
from sirtaki.dtypes import CELLS

Array = np.ndarray[Any, Any]

REDUCTIONS = ("allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter")
GROUPED = ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter")
KINDS = (*REDUCTIONS, "allgather", "grouped_allgather", "broadcast", "alltoall", "barrier")
IN_PLACE = ("allreduce", "grouped_allreduce", "broadcast")
SCALABLE = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
LAYOUTS = ("plain", "strided", "columns first", "big endian", "read only")
# Sizes of one dimension: nothing, one, a few, more than a vector register, more than a chunk of the data plane.
SIZES = (0, 1, 2, 3, 5, 16, 33, 257)


@dataclasses.dataclass(frozen=True)
class Call:
    """One collective.

    Attributes:
        process_set: index into the program's sets.
        types, shapes: of the tensors; one each, or several of a group.
        op: name of the reduction.
        salt: seed of the values, of splits and of uneven rows.
        root: index into the set, of a broadcast.
        even: alltoall without splits, gathers with as many rows from each.
        odd: what one member does otherwise than the others, so that all must get an error; "" for nothing.
        awkward: values with infinities, NaN, limits of integers and the like.
    """

    kind: str
    process_set: int
    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    op: str
    salt: int
    root: int
    even: bool
    layout: str
    in_place: bool
    is_async: bool
    named: bool
    prescale: float
    postscale: float
    odd: str
    awkward: bool


@dataclasses.dataclass(frozen=True)
class Program:
    """What the ranks do.

    Attributes:
        sets: the process sets, by their ranks; the first has all.
        threads: for each thread blocks of calls; the calls of a block are in flight together, submitted in another
            order on each rank.
        extra: how many allreduces each rank makes before it joins; empty: nobody joins.
    """

    sets: tuple[tuple[int, ...], ...]
    threads: tuple[tuple[tuple[Call, ...], ...], ...]
    extra: tuple[int, ...]


@st.composite
def shapes(draw: Any, needs_rows: bool) -> tuple[int, ...]:
    """Return a shape, seldom a large one."""
    if draw(st.integers(0, 30)) == 0:
        return (draw(st.sampled_from((40_000, 300_001))),)
    return tuple(draw(st.lists(st.sampled_from(SIZES), min_size=int(needs_rows), max_size=3)))


@st.composite
def calls(draw: Any, sets: Sequence[Sequence[int]], alone: bool, may_be_unnamed: bool) -> Call:
    """Return a call; `alone`: nothing else of its thread is in flight."""
    kind = draw(st.sampled_from(KINDS))
    process_set = draw(st.integers(0, len(sets) - 1))
    op = draw(st.sampled_from(("Sum", "Average", "Min", "Max", "Product", "Adasum")))
    if op == "Adasum" and "reducescatter" in kind:
        op = "Sum"
    possible = [t for t, cells in CELLS.items() if kind not in REDUCTIONS or not cells[op].startswith("no: ")]
    number = draw(st.integers(1, 4)) if kind in GROUPED else 1
    types = tuple(draw(st.sampled_from(possible)) for _ in range(number))
    needs_rows = kind not in ("allreduce", "grouped_allreduce", "broadcast")
    scaled = kind in REDUCTIONS and all(t in SCALABLE for t in types) and draw(st.booleans())
    factors = st.sampled_from((0.5, 1.0, 2.0))  # exact
    in_place = kind in IN_PLACE and draw(st.booleans())
    # A group of several types is several requests, and one of them may go well.
    may_be_odd = kind != "barrier" and len(sets[process_set]) > 1 and len(set(types)) == 1
    wrongs = ["type", "columns"]
    if kind in REDUCTIONS:
        wrongs.append("op")
    if kind == "broadcast":
        wrongs.append("root")
    return Call(
        kind=kind,
        process_set=process_set,
        types=types,
        shapes=tuple(draw(shapes(needs_rows)) for _ in types),
        op=op,
        salt=draw(st.integers(0, 1000)),
        root=draw(st.integers(0, len(sets[process_set]) - 1)),
        even=draw(st.booleans()),
        layout="plain" if in_place else draw(st.sampled_from(LAYOUTS)),
        in_place=in_place,
        is_async=not alone or draw(st.booleans()),
        named=not (alone and may_be_unnamed) or draw(st.booleans()),
        prescale=draw(factors) if scaled else 1.0,
        postscale=draw(factors) if scaled else 1.0,
        odd=draw(st.sampled_from(wrongs)) if may_be_odd and draw(st.integers(0, 7)) == 0 else "",
        awkward=kind in REDUCTIONS and op != "Adasum" and not scaled and draw(st.booleans()),
    )


@st.composite
def programs(draw: Any, sets: Sequence[Sequence[int]]) -> Program:
    """Return a program for a job with these process sets."""
    threads = []
    for thread in range(draw(st.integers(1, 3))):
        blocks = []
        for _ in range(draw(st.integers(1, 4))):
            size = draw(st.sampled_from((1, 1, 2, 6)))
            # Unnamed calls are counted by process, so only one thread may make them.
            drawn = st.lists(calls(sets, size == 1, thread == 0), min_size=size, max_size=size)
            blocks.append(tuple(draw(drawn)))
        threads.append(tuple(blocks))
    joins = draw(st.integers(0, 3)) == 0
    extra = tuple(draw(st.integers(0, 3)) if joins else 0 for _ in sets[0])
    return Program(tuple(map(tuple, sets)), tuple(threads), extra if joins else ())


def numpy_type(name: str) -> np.dtype[Any]:
    """Return a type by its name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _few_or_many(call: Call, tensor: int) -> int:
    """Return a factor for numbers of rows: now and then so large that a tensor takes many chunks."""
    columns = int(np.prod(call.shapes[tensor][1:], dtype=np.int64))
    return 1 + 200_000 // max(columns, 1) if call.salt % 8 == 0 else 1


def splits(call: Call, giver: int, size: int) -> list[int]:
    """Return how many rows a member of an alltoall gives to each."""
    many = _few_or_many(call, 0)
    if call.even:
        return [call.shapes[0][0] % 7 * many] * size
    return [int(n) * many for n in np.random.default_rng([call.salt, giver, 1]).integers(0, 5, size)]


def shape_of(call: Call, tensor: int, member: int, size: int) -> tuple[int, ...]:
    """Return the shape of a member's tensor."""
    shape = call.shapes[tensor]
    if call.kind == "alltoall":
        return (sum(splits(call, member, size)), *shape[1:])
    if call.kind in ("allgather", "grouped_allgather") and not call.even:
        rows = int(np.random.default_rng([call.salt, member, tensor]).integers(0, 6))
        return (rows * _few_or_many(call, tensor), *shape[1:])
    return shape


def value_of(call: Call, tensor: int, member: int, size: int) -> Array:
    """Return the values that a member gives."""
    dtype = numpy_type(call.types[tensor])
    shape = shape_of(call, tensor, member, size)
    draw = np.random.default_rng([call.salt, member, tensor, 2])
    if call.awkward:
        values = oracle.extremes(dtype, member)
        return np.resize(values, int(np.prod(shape, dtype=np.int64))).reshape(shape)
    if dtype.kind == "b":
        return np.asarray(draw.random(shape) < 0.5)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.asarray(draw.integers(info.min, info.max, shape, dtype, endpoint=True))
    if dtype.kind == "c":
        return np.asarray(draw.normal(size=shape) + 1j * draw.normal(size=shape)).astype(dtype)
    return np.asarray(draw.normal(size=shape)).astype(dtype)


def _adasum(values: Sequence[Array]) -> Array:
    def add(a: Array, b: Array) -> Array:
        dot, aa, bb = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
        return np.asarray((1 - dot / (2 * aa) if aa else 1.0) * a + (1 - dot / (2 * bb) if bb else 1.0) * b)

    tree = [np.asarray(v, np.float64) for v in values]
    while len(tree) > 1:
        tree = [add(*tree[i : i + 2]) if i + 1 < len(tree) else tree[i] for i in range(0, len(tree), 2)]
    return tree[0]


def _reduced(call: Call, values: Sequence[Array], hosts: Sequence[int]) -> Array:
    dtype = values[0].dtype
    if call.prescale != 1.0:
        values = [(v.astype(_wide(dtype)) * call.prescale).astype(dtype) for v in values]
    total = _adasum(values) if call.op == "Adasum" else oracle.reduce_cell(values, hosts, call.op)
    if call.postscale != 1.0:
        total = total.astype(_wide(total.dtype)) * call.postscale
    return np.asarray(total).astype(np.float64 if call.op == "Adasum" else dtype)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def expected(call: Call, member: int, hosts: Sequence[int]) -> list[Array]:
    """Return a member's results, one by one; those of an alltoall are the rows and who gave how many.

    Args:
        hosts: the host of each member.
    """
    size = len(hosts)
    results = []
    for tensor in range(len(call.types)):
        values = [value_of(call, tensor, m, size) for m in range(size)]
        if call.kind == "broadcast":
            results.append(values[call.root])
        elif call.kind in ("allgather", "grouped_allgather"):
            results.append(np.concatenate(values))
        elif call.kind == "alltoall":
            parts = []
            for giver, value in enumerate(values):
                ends = np.cumsum(splits(call, giver, size))
                parts.append(value[ends[member] - splits(call, giver, size)[member] : ends[member]])
            results += [np.concatenate(parts), np.array([len(part) for part in parts], np.int32)]
        elif call.kind in REDUCTIONS:
            total = _reduced(call, values, hosts)
            if "reducescatter" in call.kind:
                rows = len(total)
                begin = member * (rows // size) + min(member, rows % size)
                total = total[begin : begin + rows // size + (member < rows % size)]
            results.append(total)
    return results


def problem(call: Call, got: Sequence[Array], right: Sequence[Array]) -> str:
    """Return what is wrong with the results; empty if nothing is."""
    if len(got) != len(right):
        return f"{len(got)} results instead of {len(right)}"
    for i, (a, b) in enumerate(zip(got, right, strict=True)):
        if call.op == "Adasum" and call.kind in REDUCTIONS:
            dtype = numpy_type(call.types[i])
            tolerance = {8: 1e-9, 4: 1e-4, 2: 2e-2}[dtype.itemsize] * (8 if dtype.name == "bfloat16" else 1)
            good = (
                a.dtype == dtype and a.shape == b.shape and np.allclose(a.astype(np.float64), b, tolerance, tolerance)
            )
        else:
            good = oracle.same_values(np.asarray(a), b)
        if not good:
            return f"result {i} is {a!r} instead of {b!r}"
    return ""
