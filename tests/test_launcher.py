"""sirtakirun: exit codes, output, and that a job ends as a whole however it ends.

The ranks are plain Python or shell programs: nothing here needs the engine or MPI's library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import SIRTAKIRUN, RunningJob, run_ranks, wait_for_processes

# What a rank of a job of any MPI knows of itself.
PREAMBLE = """
import os, signal, sys
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
size = int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ["PMI_SIZE"])
"""
# A rank that tells that it is there, starts a process of its own, and never ends by itself.
ENDLESS = "import subprocess; subprocess.Popen(['sleep', '1000000']); print(f'up {rank}.'); signal.pause()"


def python(body: str) -> list[str]:
    return [sys.executable, "-c", PREAMBLE + body]


def launch(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Runs sirtakirun to its end, with its two streams apart."""
    job = subprocess.run([*SIRTAKIRUN, *arguments], input=stdin, capture_output=True, timeout=60)
    return subprocess.CompletedProcess(job.args, job.returncode, job.stdout.decode(), job.stderr.decode())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_rank_runs_once(n: int) -> None:
    result = run_ranks(n, PREAMBLE + "print(rank, size)")
    assert sorted(result.output.splitlines()) == [f"[{rank}]<stdout>:{rank} {n}" for rank in range(n)]


def test_streams_stay_apart() -> None:
    result = launch("-np", "2", *python("print('out'); print('err', file=sys.stderr)"))
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:out", "[1]<stdout>:out"]
    assert sorted(result.stderr.splitlines()) == ["[0]<stderr>:err", "[1]<stderr>:err"]


def test_no_label_passes_bytes_through() -> None:
    result = launch("-np", "1", "--no-label", *python("sys.stdout.write('a\\r\\nb\\tc\\rd')"))
    assert (result.stdout, result.stderr, result.returncode) == ("a\r\nb\tc\rd", "", 0)


def test_output_before_the_end_is_complete() -> None:
    lines = 20000
    result = launch("-np", "2", *python(f"for _ in range({lines}): print('x' * 99)"))
    assert result.stdout.splitlines().count("[0]<stdout>:" + "x" * 99) == lines
    assert result.stdout.splitlines().count("[1]<stdout>:" + "x" * 99) == lines


def test_partial_line_appears_while_the_rank_runs() -> None:
    # The rank's answer needs the signal, which is sent only when the prompt has been seen.
    body = "sys.stdout.write('name? ')\nsignal.sigwait([signal.SIGUSR1])\nprint('thanks')"
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nprint(f'pid={os.getpid()}.')\n"
    with RunningJob(["-np", "1", *python(block + body)]) as job:
        seen = job.read_until("name? ")
        os.kill(int(seen.partition("pid=")[2].partition(".")[0]), signal.SIGUSR1)
        assert job.wait().stdout(0).endswith("name? thanks\n")


def test_lines_of_ranks_are_never_mixed() -> None:
    # Each line is written in two parts.
    body = "for _ in range(500):\n  os.write(1, b'%d-' % rank * 20); os.write(1, b'%d\\n' % rank)"
    result = run_ranks(3, PREAMBLE + body)
    for rank in range(3):
        assert set(result.stdout(rank).splitlines()) == {"-".join([str(rank)] * 21)}


@pytest.mark.parametrize("code", [1, 3, 255])
def test_exit_code_of_the_first_failing_rank(code: int) -> None:
    result = run_ranks(3, PREAMBLE + f"signal.pause() if rank != 1 else sys.exit({code})",
                       expect_failure=True, launcher_options=["--grace-period", "0"])  # fmt: skip
    assert result.returncode == code
    where = f"rank 1 on host {os.uname().nodename}"
    assert f"sirtakirun: {where} exited with code {code}\n" in result.launcher_output


def test_killed_rank_is_named() -> None:
    result = run_ranks(2, PREAMBLE + "signal.pause() if rank == 0 else os.kill(os.getpid(), signal.SIGKILL)",
                       expect_failure=True, launcher_options=["--grace-period", "0"])  # fmt: skip
    assert result.returncode == 128 + signal.SIGKILL
    assert "rank 1 on host" in result.launcher_output
    assert "was killed by SIGKILL" in result.launcher_output


def test_survivors_may_speak_before_they_are_ended(tmp_path: Path) -> None:
    # Rank 1 fails; rank 0 notices through the pipe between them, as an engine would, and has its say.
    body = """
fifo = sys.argv[1]
if rank == 1:
    open(fifo, "w").write("x")
    sys.exit(9)
open(fifo).read()
sys.stderr.write("rank 0: my peer has died\\n")
sys.exit(1)
"""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    options = ["--grace-period", "60"]
    result = run_ranks(2, PREAMBLE + body, [fifo], expect_failure=True, launcher_options=options)
    assert "rank 0: my peer has died" in result.stderr(0)
    assert result.launcher_output.count("sirtakirun:") == 1


def test_traceback_is_shown() -> None:
    result = run_ranks(2, PREAMBLE + "raise ValueError('the reason')", expect_failure=True)
    assert result.returncode == 1
    assert "ValueError: the reason" in result.stderr(0) + result.stderr(1)


def test_rank_deaf_to_sigterm_is_killed() -> None:
    body = """
if rank == 1: sys.exit(5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True: signal.pause()
"""
    result = run_ranks(2, PREAMBLE + body, expect_failure=True, launcher_options=["--grace-period", "0"])
    assert result.returncode == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_launcher_ends_every_rank(number: signal.Signals) -> None:
    with RunningJob(["-np", "2", *python(ENDLESS)]) as job:
        job.read_until("up 0.", "up 1.")
        job.process.send_signal(number)
        result = job.wait()
    assert result.returncode == 128 + number
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in result.stderr(0)
        assert "KeyboardInterrupt" in result.stderr(1)


def test_second_interrupt_kills() -> None:
    body = """
def on_interrupt(number, frame):
    print(f"not yet {rank}.")
signal.signal(signal.SIGINT, on_interrupt)
print(f"up {rank}.")
while True: signal.pause()
"""
    with RunningJob(["-np", "2", "--grace-period", "600", *python(body)]) as job:
        job.read_until("up 0.", "up 1.")
        job.process.send_signal(signal.SIGINT)
        job.read_until("not yet 0.", "not yet 1.")
        job.process.send_signal(signal.SIGINT)
        assert job.wait().returncode == 128 + signal.SIGINT


def test_killed_launcher_leaves_nothing() -> None:
    with RunningJob(["-np", "2", *python(ENDLESS)]) as job:
        job.read_until("up 0.", "up 1.")
        job.process.kill()
        job.wait()
        wait_for_processes(job.name)


def test_killed_mpiexec_ends_the_job() -> None:
    with RunningJob(["-np", "2", *python(ENDLESS)]) as job:
        job.read_until("up 0.", "up 1.")
        children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        result = job.wait()
    assert result.returncode == 128 + signal.SIGKILL
    assert "mpiexec was killed by SIGKILL" in result.launcher_output


def test_background_processes_end_with_their_rank() -> None:
    # `nothing_left_behind` would find them.
    result = run_ranks(2, "import subprocess\nsubprocess.Popen(['sleep', '1000000'])\nprint('bye')")
    assert result.stdout(0) == result.stdout(1) == "bye\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_rank_leaves_nothing_of_mpi(number: signal.Signals) -> None:
    # The fixture `nothing_left_behind` would find it.
    pytest.importorskip("mpi4py")
    body = f"""
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if rank == 1: os.kill(os.getpid(), {int(number)})
signal.pause()
"""
    options = ["--grace-period", "0"]
    result = run_ranks(2, PREAMBLE + body, expect_failure=True, launcher_options=options)
    assert result.returncode == 128 + number


def test_mpi_abort_ends_the_job_with_its_code() -> None:
    pytest.importorskip("mpi4py")
    body = "from mpi4py import MPI\nMPI.COMM_WORLD.Abort(3) if rank == 1 else signal.pause()"
    options = ["--grace-period", "0"]
    result = run_ranks(2, PREAMBLE + body, expect_failure=True, launcher_options=options)
    assert result.returncode == 3


def test_closed_output_ends_the_job() -> None:
    with RunningJob(["-np", "2", *python("while True: print('y' * 1000)")]) as job:
        job.read_until("y")
        assert job.process.stdout is not None
        job.process.stdout.close()
        assert job.process.wait(60) == 128 + signal.SIGPIPE


def test_command_that_is_not_found() -> None:
    result = launch("-np", "2", "no-such-command", "argument")
    assert result.returncode == 127
    assert result.stderr == "sirtakirun: command not found: no-such-command\n"


def test_script_that_is_not_executable(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('never')")
    result = launch("-np", "2", str(script), "--epochs", "3")
    assert result.returncode == 126
    advice = f"did you mean: python {script} --epochs 3"
    assert result.stderr == f"sirtakirun: {script} is not executable; {advice}\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-np", "0", "true"], "must be a positive number"),
        (["-np", "2"], "no command given"),
        (["-np", "2", "--simulate-hosts", "3", "true"], "more than the number of ranks"),
        (["-H", "a:", "true"], "must look like"),
        (["--hostfile", "hosts", "true"], "--hostfile needs -np"),
        (["--env", "SIRTAKI_NOT_SET", "true"], "is not set here"),
        (["--mpiexec", "/no/such/mpiexec", "true"], "no such program"),
        (["--mpiexec", "true", "true"], "is of no known MPI"),
    ],
)
def test_wrong_command_line(arguments: list[str], reason: str) -> None:
    result = launch(*arguments)
    assert result.returncode == 2
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_mpi_is_explained(tmp_path: Path) -> None:
    # An interpreter without an mpiexec beside it, and nothing in PATH.
    code = """
import sys, sysconfig
sys.executable = "/nowhere/python"
sysconfig.get_path = lambda name: "/nowhere"
from sirtaki.launcher.__main__ import main
sys.exit(main())
"""
    result = subprocess.run(
        [sys.executable, "-c", code, "-np", "2", "/bin/true"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "pip install 'sirtaki[mpi]'" in result.stderr


def test_default_number_of_ranks_is_that_of_usable_cores() -> None:
    core = min(os.sched_getaffinity(0))
    command = [*SIRTAKIRUN, "echo", "here"]
    code = f"import os; os.sched_setaffinity(0, [{core}]); os.execv({command[0]!r}, {command})"
    # No GPU, whatever the machine has: else there would be one rank for each.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.stdout == "[0]<stdout>:here\n"


def test_environment_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIRTAKI_TEST_INHERITED", "from outside")
    options = ["--env", "SIRTAKI_TEST_SET=a=b c", "--env", "SIRTAKI_TEST_INHERITED"]
    body = """
names = "LAUNCHED", "TEST_SET", "TEST_INHERITED", "LAUNCHER"
print([os.environ.get("SIRTAKI_" + name) for name in names], os.environ["PYTHONUNBUFFERED"])
"""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    result = run_ranks(2, PREAMBLE + body, launcher_options=options)
    expected = "['1', 'a=b c', 'from outside', None] 1\n"
    assert result.stdout(0) == result.stdout(1) == expected


@pytest.mark.parametrize(("n", "hosts", "expected"), [(4, 2, [0, 0, 1, 1]), (3, 2, [0, 0, 1]), (3, 3, [0, 1, 2])])
def test_simulated_hosts_are_blocks_of_ranks(n: int, hosts: int, expected: list[int]) -> None:
    result = run_ranks(n, PREAMBLE + "print(os.environ['SIRTAKI_HOSTNAME'])", hosts=hosts)
    assert [result.stdout(rank) for rank in range(n)] == [f"simulated-{host}\n" for host in expected]


def test_ranks_have_no_standard_input_unless_asked() -> None:
    body = "print(repr(sys.stdin.read()))"
    without = launch("-np", "2", *python(body), stdin=b"data")
    assert sorted(without.stdout.splitlines()) == ["[0]<stdout>:''", "[1]<stdout>:''"]
    asked = launch("-np", "2", "--stdin", *python(body), stdin=b"data")
    assert sorted(asked.stdout.splitlines()) == ["[0]<stdout>:'data'", "[1]<stdout>:''"]


def test_arguments_of_the_command_are_its_own() -> None:
    result = launch("-np", "1", "--", *python("print(sys.argv[1:])"), "-np", "7", "--no-label", "a b")
    assert result.stdout == "[0]<stdout>:['-np', '7', '--no-label', 'a b']\n"


def test_verbose_shows_the_call_of_mpiexec() -> None:
    result = launch("-np", "1", "--verbose", "true")
    assert "mpiexec" in result.stderr and "-np 1" in result.stderr


def test_watchdog_ends_a_hang_and_shows_the_stacks() -> None:
    program = PREAMBLE + "def in_the_wrong_place():\n  signal.pause()\nin_the_wrong_place()"
    result = run_ranks(2, program, timeout=1, expect_failure=True)
    assert "in in_the_wrong_place" in result.rank_output(0) + result.rank_output(1)
