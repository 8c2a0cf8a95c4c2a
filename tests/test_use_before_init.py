"""Every public function without a job, and in a forked child of a rank, says so at once."""

import subprocess
import sys

import pytest
import sirtaki
from harness import run_ranks

# What needs no job: types, constants, ways in and out, and questions that have an answer without one.
NEEDS_NO_JOB = {
    *("Adasum", "Average", "Max", "Min", "Product", "Sum", "ReduceOp"),
    *("Handle", "ProcessSet", "__version__", "errors", "global_process_set"),
    *("init", "is_initialized", "shutdown"),
    "Straggler",
    *("ccl_built", "cuda_built", "ddl_built", "gloo_built", "mpi_built", "nccl_built", "rocm_built"),
    *("gloo_enabled", "install_as_horovod", "mpi_enabled", "run"),
    *("poll", "synchronize"),  # their handle comes from another function
}
_ONE = "np.ones(2)"
_ARGUMENTS = {
    "add_process_set": "[0]",
    "remove_process_set": "sirtaki.ProcessSet([0])",
    **dict.fromkeys(("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"), f"{_ONE}, 0"),
    "broadcast_object": "1, 0",
    "allgather_object": "1",
    "start_timeline": "'timeline.json'",
    **dict.fromkeys(("metrics", "stragglers", "stop_timeline"), ""),
    **dict.fromkeys(("barrier", "barrier_async", "join", "join_async"), ""),
    **dict.fromkeys(("is_homogeneous", "mpi_threads_supported"), ""),
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"), ""),
}


def calls():
    """Return the source of a call of every public function that needs a job."""
    found = {}
    for name in sorted(set(sirtaki.__all__) - NEEDS_NO_JOB):
        default = f"[{_ONE}, {_ONE}]" if name.startswith("grouped") else _ONE
        found[name] = f"sirtaki.{name}({_ARGUMENTS.get(name, default)})"
    return found


CHECK = f"""
import faulthandler, os
faulthandler.dump_traceback_later(30, exit=True)
import numpy as np
import sirtaki

def check(words):
    wrong = []
    for name, call in {calls()!r}.items():
        try:
            eval(call)
        except sirtaki.errors.NotInitializedError as error:
            if words not in str(error):
                wrong.append((name, str(error)))
        except Exception as error:
            wrong.append((name, repr(error)))
        else:
            wrong.append((name, "worked"))
    for line in wrong:
        print(*line, flush=True)
    return not wrong
"""


def test_before_init_and_after_shutdown():
    program = (
        CHECK + 'assert check("sirtaki.init()")\nsirtaki.init()\nsirtaki.shutdown()\nassert check("sirtaki.init()")'
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_in_a_forked_child(ranks):
    program = (
        CHECK
        + """
sirtaki.init()
pid = os.fork()
if pid == 0:
    os._exit(0 if check("forked") and not sirtaki.is_initialized() else 9)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
sirtaki.barrier()
"""
    )
    run_ranks(ranks, program)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_of_multiprocessing_is_a_job_of_one_rank(method):
    program = f"""
        import multiprocessing
        import numpy as np
        import sirtaki

        def work(queue):
            sirtaki.init()
            queue.put((sirtaki.rank(), sirtaki.size(), sirtaki.allreduce(np.ones(1), op=sirtaki.Sum).tolist()))

        if __name__ == "__main__":
            sirtaki.init()
            context = multiprocessing.get_context({method!r})
            queue = context.SimpleQueue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            assert queue.get() == (0, 1, [1.0])
            child.join()
            assert child.exitcode == 0
            sirtaki.barrier()
    """
    run_ranks(2, program)
