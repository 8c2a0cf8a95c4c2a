"""Processes that a launched rank starts: only one of them takes the rank's place, and the others do not hang it."""

import pytest
from harness import run_ranks

# What a worker does; it prints in one piece, so that lines of two ranks cannot mix.
WORKER = """
import sirtaki
sirtaki.init()
total = int(sirtaki.allreduce(5, op=sirtaki.Sum))
print(f"worker: {sirtaki.rank()} of {sirtaki.size()}, {total}\\n", end="", flush=True)
"""
START = f"""
import os, subprocess, sys
import numpy as np
import sirtaki
WORKER = {WORKER!r}
"""
RANK = """
assert sirtaki.size() == int(os.environ["PMI_SIZE"]), sirtaki.size()
assert sirtaki.allreduce(sirtaki.rank(), op=sirtaki.Sum) == sum(range(sirtaki.size()))
"""


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("when", ["joins after", "starts after"])
def test_a_subprocess_of_a_rank_is_a_job_of_its_own(when, closes):
    """It may be older than the rank's own init, and have the launcher's connection."""
    start = f"worker = subprocess.Popen([sys.executable, '-c', source], stdin=subprocess.PIPE, close_fds={closes})\n"
    if when == "joins after":
        program = START + "source = 'input()' + WORKER\n" + start + "sirtaki.init()\n"
        program += "worker.communicate(b'go\\n')\nassert worker.returncode == 0\n"
    else:
        program = START + "source = WORKER\nsirtaki.init()\n" + start + "assert worker.wait() == 0\n"
    result = run_ranks(2, program + RANK)
    assert result.output.count("worker: 0 of 1, 5") == 2
    assert result.output.count("becomes a job of one rank") == 2


def test_a_subprocess_without_the_launchers_connection_is_told():
    """It may be meant to be the rank, and must not go on alone then."""
    program = START + "worker = subprocess.run([sys.executable, '-c', WORKER])\nassert worker.returncode == 1\n"
    result = run_ranks(2, program + "sirtaki.init()\n" + RANK)
    assert result.output.count("not its connection to the launcher") == 2
    assert "worker:" not in result.output


def test_a_forked_worker_that_joins_after_its_rank_is_a_job_of_its_own():
    program = (
        START
        + """
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(reader, 1)
    exec(WORKER)
    sys.stdout.flush()
    os._exit(0)
sirtaki.init()
os.write(writer, b"!")
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    )
    result = run_ranks(2, program + RANK)
    assert result.output.count("worker: 0 of 1, 5") == 2


def test_a_worker_that_joins_before_its_rank_is_an_error_of_the_rank():
    """Which of the two is meant cannot be known."""
    program = (
        START
        + """
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    sirtaki.init()
    os.write(writer, b"!")
    sirtaki.barrier()
    os._exit(0)
os.read(reader, 1)
try:
    sirtaki.init()
except sirtaki.errors.SirtakiError as error:
    assert str(pid) in str(error) and "after the rank's own sirtaki.init()" in str(error), error
    print("told\\n", end="", flush=True)
else:
    os._exit(9)
finally:
    os.waitpid(pid, 0)
os._exit(0)
"""
    )
    result = run_ranks(2, program)
    assert result.output.count("told") == 2


def test_a_wrapper_may_start_the_rank():
    """A process that does not join leaves the place to what it starts, as shells and `time` do."""
    program = (
        "import os, subprocess, sys\n"
        + f"source = {START + 'sirtaki.init()' + RANK + 'print(chr(114) + chr(97) + str(sirtaki.rank()))'!r}\n"
        + "assert subprocess.run([sys.executable, '-c', source], close_fds=False).returncode == 0\n"
    )
    result = run_ranks(2, program)
    assert "ra0" in result.output and "ra1" in result.output


def test_a_rank_may_leave_and_join_again():
    program = START + "for _ in range(3):\n    sirtaki.init()\n    sirtaki.barrier()\n    sirtaki.shutdown()\n"
    run_ranks(2, program)
