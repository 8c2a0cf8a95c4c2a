"""Runs random programs of collectives on all ranks. Arguments: number of hosts, of programs.

Rank 0 draws them, the others follow; what goes wrong on any rank is gathered, and hypothesis looks on rank 0 for a
smaller program that goes wrong.
"""

import itertools
import os
import sys
import threading
import traceback

import numpy as np
import sirtaki
from hypothesis import HealthCheck, given, settings
from random_programs import REDUCTIONS, Call, Program, expected, problem, programs, splits, value_of

hosts, number = int(sys.argv[1]), int(sys.argv[2])
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
host_of = [r * hosts // size for r in range(size)]
# All pairs, and some larger ones; each rank is in many.
ranks_of_sets = [tuple(range(size))]
for n in range(1, size + 1):
    ranks_of_sets += itertools.combinations(range(size), n)
ranks_of_sets = ranks_of_sets[:12]
process_sets = [sirtaki.global_process_set, *(sirtaki.add_process_set(r) for r in ranks_of_sets[1:])]
serial = itertools.count()


def laid_out(array, layout):
    """The same values in memory of another kind."""
    if layout == "strided" and array.ndim:
        wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "columns first":
        return np.asfortranarray(array) if array.ndim else array
    if layout == "big endian" and array.dtype.kind in "iufc" and array.dtype.name != "bfloat16":
        return array.astype(array.dtype.newbyteorder(">"))
    array = array.copy()
    array.flags.writeable = layout != "read only"
    return array


def other(call: Call, arrays, op, root, member, members):
    """What the last member does instead where the ranks are to disagree."""
    if call.odd == "type":
        arrays = [a.astype(np.float32 if a.dtype.name == "float64" else np.float64) for a in arrays]
    elif call.odd == "columns":
        arrays = [np.zeros((*a.shape, 2), a.dtype) for a in arrays]
    elif call.odd == "op":
        # One that the type can have: an error on this side alone would leave the others waiting.
        one, another = (sirtaki.Sum, sirtaki.Product) if arrays[0].dtype.kind == "c" else (sirtaki.Max, sirtaki.Min)
        op = one if op != one else another
    elif call.odd == "root":
        root = members[(call.root + 1) % len(members)]
    return arrays, op, root


def start(call: Call, name):
    """Submit a call; return a function that waits for its results."""
    members = ranks_of_sets[call.process_set]
    member, n = members.index(rank), len(members)
    arrays = [laid_out(value_of(call, t, member, n), call.layout) for t in range(len(call.types))]
    op, root = sirtaki.ReduceOp[call.op], members[call.root]
    if call.odd and member == n - 1:
        arrays, op, root = other(call, arrays, op, root, member, members)
    keywords = {"name": name if call.named else None, "process_set": process_sets[call.process_set]}
    if call.kind in REDUCTIONS:
        keywords.update(op=op, prescale_factor=call.prescale, postscale_factor=call.postscale)
    what = arrays if call.kind.startswith("grouped") else arrays[0]
    if call.kind == "barrier":
        positional = ()
    elif call.kind == "broadcast":
        positional = (what, root)
    elif call.kind == "alltoall":
        own = splits(call, member, n)
        positional = (what, None if call.even else own)
    else:
        positional = (what,)
    if call.kind == "barrier":
        keywords = {"name": keywords["name"], "process_set": keywords["process_set"]}
    suffix = "_" if call.in_place else ""
    if call.is_async:
        handle = getattr(sirtaki, f"{call.kind}_async{suffix}")(*positional, **keywords)
        return handle.result
    done = getattr(sirtaki, f"{call.kind}{suffix}")(*positional, **keywords)
    return lambda: done


def as_list(call: Call, result):
    if call.kind == "barrier":
        return []
    return list(result) if call.kind == "alltoall" or call.kind.startswith("grouped") else [result]


def finish(call: Call, wait, texts, name):
    """Wait for a call; return what is wrong."""
    members = ranks_of_sets[call.process_set]
    try:
        result = wait()
    except sirtaki.errors.MismatchError as error:
        texts[name] = str(error)
        return "" if call.odd else f"MismatchError: {error}"
    if call.odd:
        return f"the ranks disagree about the {call.odd} and rank {rank} got a result"
    right = expected(call, members.index(rank), [host_of[r] for r in members])
    return problem(call, as_list(call, result), right)


def run_thread(blocks, first_name, found, texts, order):
    try:
        for b, block in enumerate(blocks):
            mine = [
                (f"{first_name}.{b}.{c}", call)
                for c, call in enumerate(block)
                if rank in ranks_of_sets[call.process_set]
            ]
            if len(block) > 1:
                order.shuffle(mine)
            waits = []
            for name, call in mine:
                try:
                    waits.append((name, call, start(call, name)))
                except sirtaki.errors.MismatchError as error:

                    def wait(error=error):
                        raise error

                    waits.append((name, call, wait))
            order.shuffle(waits)
            for name, call, wait in waits:
                wrong = finish(call, wait, texts, name)
                if wrong:
                    found.append(f"rank {rank}, {name}, {call}: {wrong}")
    except Exception:
        # The others wait for what this thread does not call any more: this is the end of the job.
        traceback.print_exc()
        os._exit(1)


def run_joins(extra, first_name, found):
    for i in range(extra[rank]):
        got = sirtaki.allreduce(np.full(3, rank + 1), op=sirtaki.Sum, name=f"{first_name}.extra.{i}")
        right = sum(r + 1 for r in range(size) if extra[r] > i)
        if not (got == right).all():
            found.append(f"rank {rank}: allreduce {i} beside ranks that have joined is {got} instead of {right}")
    last = sirtaki.join()
    if extra[last] != max(extra):
        found.append(f"rank {rank}: rank {last} joined last, which had {extra[last]} of {extra}")


def run(program: Program, index: int):
    """Run a program and return what went wrong, on all ranks."""
    found, texts = [], {}
    arguments = [
        (blocks, f"{index}.{t}", found, texts, np.random.default_rng([rank, t, index]))
        for t, blocks in enumerate(program.threads)
    ]
    threads = [threading.Thread(target=run_thread, args=a) for a in arguments[1:]]
    for thread in threads:
        thread.start()
    run_thread(*arguments[0])
    for thread in threads:
        thread.join()
    if program.extra:
        sirtaki.barrier()
        run_joins(program.extra, index, found)
    by_rank = sirtaki.allgather_object((found, texts))
    wrong = [text for found, _ in by_rank for text in found]
    for name in {name for _, texts in by_rank for name in texts}:
        # Unnamed calls are described by their number, which is the same on all ranks too.
        heard = {texts[name] for _, texts in by_rank if name in texts}
        if len(heard) > 1:
            wrong.append(f"{name}: the ranks were told different things: {heard}")
    return wrong


def lead():
    counts = {"programs": 0, "calls": 0}

    @settings(
        max_examples=number, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(programs(ranks_of_sets))
    def play(program):
        counts["programs"] += 1
        counts["calls"] += sum(len(block) for thread in program.threads for block in thread)
        index = next(serial)
        sirtaki.broadcast_object((index, program))
        wrong = run(program, index)
        assert not wrong, "\n".join(wrong)

    try:
        play()
    finally:
        sirtaki.broadcast_object(None)
    print(f"played {counts['programs']} programs of {counts['calls']} calls", flush=True)


def follow():
    while (sent := sirtaki.broadcast_object(None)) is not None:
        run(sent[1], sent[0])


lead() if rank == 0 else follow()
