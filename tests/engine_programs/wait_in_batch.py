"""Rank 0 waits in the midst of a batch for rank 1, which is stopped or slow. Argument: how it stops waiting.

timeout: `wait(timeout=)` raises, and the handle and the engine are usable afterwards
interrupt: Ctrl-C raises, and gives the job up
interrupt-healthy: Ctrl-C while nobody is stopped raises, and the engine is usable afterwards
own-handler: a signal handler of the application runs, but after the batch
"""

import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import sirtaki

how = sys.argv[1]
sirtaki.init()
rank = sirtaki.rank()
me, other = os.getpid(), sirtaki.allgather_object(os.getpid())[1]
# Reducing it takes a hundred times as long as it takes to stop a process.
big = np.zeros(50_000_000, np.float32)
native = sirtaki.job.current("test").engine.native
ran = []


def wait_until_in_batch():
    while native.metrics["batches_begun"] <= before:
        os.sched_yield()


def wait_until_asleep():
    """Until the main thread has no signal to see to, and waits in the kernel for the peer."""

    def field(name):
        return Path(f"/proc/self/task/{me}/status").read_text().split(f"{name}:")[1].split()[0]

    while int(field("SigPnd"), 16) or int(field("ShdPnd"), 16) or field("State") != "S":
        os.sched_yield()


def release_other():
    """Lets rank 1 submit when rank 0 waits already, whoever drives its engine then."""
    while not native.incomplete():
        os.sched_yield()
    Path(gate).write_text("go")  # returns once rank 1 reads


def act():
    wait_until_in_batch()
    if how != "interrupt-healthy":
        os.kill(other, signal.SIGSTOP)
        wait_until_asleep()
    os.kill(me, signal.SIGUSR1 if how == "own-handler" else signal.SIGINT)
    if how == "own-handler":
        wait_until_asleep()
        ran.append("continued")
        os.kill(other, signal.SIGCONT)


folder = tempfile.TemporaryDirectory()
gate = sirtaki.broadcast_object(f"{folder.name}/gate")
if rank == 0:
    os.mkfifo(gate)
sirtaki.allreduce_(big)
before = native.metrics["batches_begun"]
try:
    if rank != 0:
        assert Path(gate).read_text() == "go"
        sirtaki.allreduce_(big)
    elif how == "timeout":
        handle = sirtaki.allreduce_async(big)
        release_other()
        thread = threading.Thread(target=lambda: (wait_until_in_batch(), os.kill(other, signal.SIGSTOP)))
        thread.start()
        for _ in range(2):
            try:
                handle.wait(timeout=1.5)
            except TimeoutError:
                print("came back", flush=True)
            else:
                raise AssertionError("the handle was done although a rank was stopped")
        thread.join()
        assert not handle.poll()
        os.kill(other, signal.SIGCONT)
        assert not handle.result().any()
        # It was stopped for the two waits, less the time until somebody waited for it.
        assert sirtaki.metrics()["data_wait_seconds"][1] > 1.5, sirtaki.metrics()
    else:
        signal.signal(signal.SIGUSR1, lambda *_: ran.append("handler"))
        if how != "own-handler":
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        releaser = threading.Thread(target=release_other)
        releaser.start()
        thread = threading.Thread(target=act)
        thread.start()
        try:
            sirtaki.allreduce_(big)
            assert how == "own-handler"
        except KeyboardInterrupt:
            assert how != "own-handler"
        print("came back", flush=True)
        releaser.join()
        thread.join()
        if how == "own-handler":
            assert ran == ["continued", "handler"], ran
        if how == "interrupt":
            os.kill(other, signal.SIGCONT)
    sirtaki.barrier()
    assert sirtaki.allreduce(np.ones(3))[0] == 1
except sirtaki.errors.RanksFailedError as error:
    assert how == "interrupt"
    print("RanksFailedError", error.ranks, error, flush=True)
    raise
