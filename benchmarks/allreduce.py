"""Allreduce of NumPy arrays beside a raw MPI Allreduce.

    sirtakirun -np 2 python -m sirtaki.benchmarks.allreduce [--json FILE]

Both reduce float32 in place, in the same run, taking turns. Every result is verified. Ratios of one run mean
something; single times depend on the machine and its mood.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import sirtaki
from sirtaki.benchmarks.measure import bus_bandwidth, medians

_DEFAULT_SIZES = [4 * 4**i for i in range(14)]  # 4 B to 256 MiB


def size_in_bytes(text: str) -> int:
    """Parse a size such as 4, 64K or 16M.

    Example:
        >>> size_in_bytes("64K")
        65536
    """
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    try:
        number = int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4, 64K or 16M") from None
    if number < 4 or number % 4:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive multiple of 4 bytes (a float32)")
    return number


def measure(num_bytes: int) -> dict[str, Any]:
    """Return one row of the table."""
    ranks = sirtaki.size()
    buffer = np.full(num_bytes // 4, sirtaki.rank() + 1, np.float32)
    expected = sum(range(1, ranks + 1))

    def with_sirtaki() -> None:
        sirtaki.allreduce_(buffer, op=sirtaki.Sum)

    with_mpi = None
    if ranks > 1:
        from mpi4py import MPI

        world = MPI.COMM_WORLD

        def with_mpi() -> None:
            world.Allreduce(MPI.IN_PLACE, buffer, MPI.SUM)

    candidates = [c for c in (with_sirtaki, with_mpi) if c is not None]
    for candidate in candidates:
        buffer[:] = sirtaki.rank() + 1
        candidate()
        if not (buffer == expected).all():
            raise SystemExit(f"{candidate.__name__} gave a wrong sum at {num_bytes} bytes on rank {sirtaki.rank()}")
    buffer[:] = 0  # so that repeated sums stay finite
    seconds = medians(candidates)
    algorithm, bus = bus_bandwidth(num_bytes, seconds[0], ranks)
    row: dict[str, Any] = {"bytes": num_bytes, "us": seconds[0] * 1e6, "algbw_GBs": algorithm, "busbw_GBs": bus}
    if with_mpi is not None:
        mpi_algorithm, mpi_bus = bus_bandwidth(num_bytes, seconds[1], ranks)
        row |= {"mpi_us": seconds[1] * 1e6, "mpi_algbw_GBs": mpi_algorithm, "mpi_busbw_GBs": mpi_bus}
        row["speedup"] = seconds[1] / seconds[0]
    return row


def format_row(row: dict[str, Any]) -> str:
    """Format a row under `HEADER`."""
    text = f"{row['bytes']:>12,} {row['us']:>12,.1f} {row['algbw_GBs']:>8.2f} {row['busbw_GBs']:>8.2f}"
    if "mpi_us" in row:
        text += f" {row['mpi_us']:>12,.1f} {row['mpi_busbw_GBs']:>8.2f} {row['speedup']:>8.2f}"
    return text


HEADER = f"{'bytes':>12} {'median us':>12} {'algbw':>8} {'busbw':>8} {'MPI us':>12} {'MPI busbw':>8} {'MPI us / us':>8}"


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m sirtaki.benchmarks.allreduce", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes",
        type=size_in_bytes,
        nargs="+",
        default=_DEFAULT_SIZES,
        metavar="BYTES",
        help="sizes to measure, such as 4 64K 16M (default: 4 B to 256 MiB)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    options = parser.parse_args(arguments)

    sirtaki.init()
    speaks = sirtaki.rank() == 0
    if speaks:
        print(f"allreduce of float32 on {sirtaki.size()} ranks, bandwidths in GB/s", flush=True)
        if sirtaki.size() > 1:
            from mpi4py import MPI

            print(f"MPI: {MPI.Get_library_version().splitlines()[0]}", flush=True)
        print(HEADER, flush=True)
    rows = []
    for num_bytes in options.sizes:
        rows.append(measure(num_bytes))
        if speaks:
            print(format_row(rows[-1]), flush=True)
    if speaks and options.json:
        options.json.write_text(json.dumps({"ranks": sirtaki.size(), "rows": rows}, indent=2) + "\n")
        print(f"wrote {options.json}", file=sys.stderr)
    sirtaki.shutdown()


if __name__ == "__main__":
    main()
