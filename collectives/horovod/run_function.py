"""What each rank of `sirtaki.run` runs: ``python -m sirtaki.horovod.run_function DIRECTORY [OUTPUT_DIRECTORY]``."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path


def main() -> None:
    """Calls the function that lies in the directory and puts its result there."""
    import cloudpickle
    from mpi4py import MPI

    folder = Path(sys.argv[1])
    rank = MPI.COMM_WORLD.Get_rank()
    if len(sys.argv) > 2:
        own = Path(sys.argv[2]) / f"rank.{rank}"
        own.mkdir(parents=True, exist_ok=True)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(own / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(file, stream)
            os.close(file)
    func, args, kwargs = pickle.loads((folder / "call").read_bytes())
    result = func(*args, **kwargs)
    # Under another name first: a file that is there is complete.
    unfinished = folder / f"unfinished.{rank}"
    unfinished.write_bytes(cloudpickle.dumps(result))
    unfinished.rename(folder / f"result.{rank}")


if __name__ == "__main__":
    main()
