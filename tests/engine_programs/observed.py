"""What a job tells about itself; the first argument says which part is tried."""

import json
import logging
import os
import signal
import sys
import urllib.request

import numpy as np
import sirtaki
from mpi4py import MPI
from sirtaki import _native, job
from sirtaki.timeline.merge import load, merged


def timeline(folder):
    """Two timelines one after the other; rank 0 merges and checks the lanes."""
    sirtaki.init()
    for session in range(2):
        sirtaki.start_timeline(f"{folder}/t{session}.json", mark_cycles=session == 1)
        try:
            sirtaki.start_timeline(f"{folder}/t{session}.json")
        except sirtaki.errors.InvalidArgumentError:
            pass
        else:
            raise AssertionError("a second timeline was started beside the first")
        handles = [sirtaki.allreduce_async(np.ones(1000, np.float32), name=f"w{i}", op=sirtaki.Sum) for i in range(5)]
        for handle in handles:
            handle.result()
        sirtaki.allreduce(np.ones(2**19), name='big "quoted"')
        sirtaki.broadcast(np.ones(10), 0, name="b")
        sirtaki.allgather(np.ones((2, 3)), name="g")
        sirtaki.allreduce(np.ones(3))
        sirtaki.barrier(name="end")
        sirtaki.stop_timeline()
    sirtaki.allreduce(np.ones(3), name="not in any timeline")
    sirtaki.stop_timeline()
    if sirtaki.rank() == 0:
        size = sirtaki.size()
        for session in range(2):
            files = [f"{folder}/t{session}.{r}.json" if size > 1 else f"{folder}/t{session}.json" for r in range(size)]
            for file in files:
                json.load(open(file))
            check_lanes(merged([load(file) for file in files]), marked=session == 1)
    print("checked", flush=True)


def check_lanes(events, marked):
    """Each tensor has one lane per rank, and in it each phase after the other."""
    size = sirtaki.size()
    hosts = int(sys.argv[3])
    backend = (
        "local" if size == 1 else "shared-memory" if hosts == 1 else "mpi" if hosts == size else "shared-memory+mpi"
    )
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name" if "name" in e else "ph"] == "thread_name"
    }
    tensors = [*(f"w{i}" for i in range(5)), 'big "quoted"', "b", "g", "(unnamed)", "end"]
    expected = {(rank, name) for rank in range(size) for name in [*tensors, *(["batches"] if marked else [])]}
    assert sorted((pid, name) for (pid, _), name in names.items()) == sorted(expected), names
    assert {e["pid"] for e in events} == set(range(size))
    for (rank, lane), name in names.items():
        own = [e for e in events if (e["pid"], e.get("tid")) == (rank, lane) and e["ph"] in "BEX"]
        if name == "batches":
            assert len(own) == 10 or size > 1, own
            continue
        begin, end, whole, *phases = own
        kind = {"b": "broadcast", "g": "allgather", "end": "barrier"}.get(name, "allreduce")
        assert (begin["ph"], begin["name"], end["ph"], whole["name"]) == ("B", "negotiate", "E", kind)
        assert whole["args"]["backend"] == backend, whole
        assert begin["ts"] <= end["ts"] == whole["ts"]
        if kind == "allreduce":
            phase_names = ["queue", "pack", "reduce", "unpack"] if size > 1 else ["queue", "reduce"]
            assert [p["name"] for p in phases] == phase_names, phases
        else:
            assert phases[0]["name"] == "queue"
        at = whole["ts"]
        for phase in phases:
            assert abs(phase["ts"] - at) < 0.01
            at = phase["ts"] + phase["dur"]
        assert at <= whole["ts"] + whole["dur"] + 0.01
        expected_bytes = {"b": 80, "g": 48, "end": 0, "(unnamed)": 24, 'big "quoted"': 2**22}.get(name, 4000)
        assert whole["args"]["bytes"] == begin["args"]["bytes"] == expected_bytes
        if name.startswith("w"):
            assert (whole["args"]["dtype"], whole["args"]["op"]) == ("float32", "sum")


def killed(folder):
    """Rank 1 is killed while its timeline runs; rank 0's goes on to the end."""
    os.environ["SIRTAKI_TIMELINE"] = f"{folder}/k.json"
    sirtaki.init()
    for i in range(20):
        sirtaki.allreduce(np.ones(10), name=f"k{i}")
    if sirtaki.rank() == 1:
        # What it has recorded is written soon; then the kill comes.
        while not any(e.get("name") == "allreduce" for e in load(f"{folder}/k.1.json").events):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        sirtaki.allreduce(np.ones(10), name="never")
    except sirtaki.errors.RanksFailedError:
        print("failed", flush=True)


def late():
    """Rank 1 submits each tensor only after rank 0 has seen it from all others."""
    sirtaki.init()
    rank, size = sirtaki.rank(), sirtaki.size()
    for i in range(10):
        name = f"t{i}"
        if rank != 1:
            handle = sirtaki.allreduce_async(np.ones(4), name=name)
        if rank == 0:
            incomplete = job.current("test").engine.native.incomplete
            while not any(entry[1] == name and len(entry[2]) == size - 1 for entry in incomplete()):
                pass
        MPI.COMM_WORLD.Barrier()
        if rank == 1:
            handle = sirtaki.allreduce_async(np.ones(4), name=name)
        handle.result()
    found = sirtaki.stragglers()
    assert [(s.rank, s.times) for s in found] == [(1, 10)], found
    assert found[0].seconds > 0
    assert sirtaki.metrics()["stragglers"] == found
    everywhere = MPI.COMM_WORLD.allgather(found)
    assert all(one == found for one in everywhere), everywhere
    print("checked", flush=True)


def numbers():
    """Known calls and bytes, as numbers and as Prometheus sees them."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append((record.levelno, record.getMessage()))
    logging.getLogger("sirtaki").addHandler(handler)
    os.environ["SIRTAKI_METRICS_PORT"] = "0"
    os.environ["SIRTAKI_LOG_LEVEL"] = "Debug"
    sirtaki.init()

    def calls():
        for _ in range(7):
            sirtaki.allreduce(np.ones(100, np.float32), name="a")
        sirtaki.grouped_allreduce([np.ones(5), np.ones(6)], name="group")
        sirtaki.allgather(np.ones((sirtaki.rank() + 1, 2)), name="g")
        sirtaki.barrier()

    calls()
    values = sirtaki.metrics()
    counted = values["collectives"]
    assert counted["allreduce"] == {"calls": 8, "tensors": 9, "bytes": 7 * 400 + 88}, counted
    assert counted["allgather"] == {"calls": 1, "tensors": 1, "bytes": 16 * (sirtaki.rank() + 1)}, counted
    assert counted["barrier"]["calls"] == 1 and counted["broadcast"]["calls"] == 0
    assert values["batches"] == 10 and values["tensors_per_batch"] == {1: 9, 2: 1}, values
    if sirtaki.size() > 1:
        assert values["cache_hits"] + values["cache_misses"] == 10 and values["cache_hits"] >= 6, values
    port = next(int(text.split()[-1]) for _, text in messages if text.startswith("metrics are served"))
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    line = f'sirtaki_collective_bytes_total{{collective="allreduce",rank="{sirtaki.rank()}"}} {7 * 400 + 88}.0'
    assert line in page.splitlines(), page
    assert f'sirtaki_batch_tensors_bucket{{le="2.0",rank="{sirtaki.rank()}"}} 10.0' in page.splitlines(), page
    if sirtaki.size() > 1:
        # The first calls missed, on the ranks that had not heard of their numbers through others; the second ones hit.
        by_rank = sirtaki.allgather_object(values["cache_misses"], name="misses")
        assert 4 <= sum(by_rank) <= 4 * sirtaki.size(), by_rank
        before = sirtaki.metrics()
        calls()
        after = sirtaki.metrics()
        assert after["cache_hits"] - before["cache_hits"] == 10, (before, after)
        assert after["cache_misses"] == before["cache_misses"], (before, after)
    _native.write_log(logging.ERROR, "from native code: \u00e4")
    sirtaki.shutdown()
    assert (logging.ERROR, "from native code: \u00e4") in messages, messages
    print("checked", flush=True)


globals()[sys.argv[1]](*sys.argv[2:3])
