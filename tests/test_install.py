"""The package alone: what it needs, and what it says about what is missing."""

import os
import subprocess
import sys

# Runs in a fresh process in which TensorFlow and MPI cannot be imported.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras", "mpi4py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def run(program, **variables):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_tensorflow_and_mpi_a_process_is_a_job_of_one_rank():
    result = run("import sirtaki; sirtaki.init(); print(sirtaki.rank(), sirtaki.size(), sirtaki.allreduce(3.0))")
    assert (result.returncode, result.stdout) == (0, "0 1 3.0\n"), result.stderr


def test_a_launched_process_without_mpi4py_says_what_to_install():
    result = run("import sirtaki; sirtaki.init()", PMI_RANK="0", PMI_SIZE="2")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "MissingDependencyError" in last and "pip install 'sirtaki[mpi]'" in last, result.stderr


def test_bindings_without_tensorflow_say_what_to_install():
    result = run("import sirtaki.tensorflow")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "MissingDependencyError" in last and "pip install 'sirtaki[tensorflow]'" in last, result.stderr
