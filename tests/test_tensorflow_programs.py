"""TensorFlow and Keras on one and several ranks: runs the programs of tensorflow_programs/."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from harness import run_ranks

PROGRAMS = Path(__file__).parent / "tensorflow_programs"
# Generous: they guard against a hang on a busy machine and measure nothing.
TIMEOUT = 300


def run(ranks: int, program: str, *args: object, **options: object) -> None:
    run_ranks(ranks, PROGRAMS / program, args=[str(arg) for arg in args], timeout=TIMEOUT, **options)


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (2, 1), (4, 2)])
def test_collectives_in_eager_and_graph_mode(ranks: int, hosts: int) -> None:
    run(ranks, "collectives.py", hosts=hosts)


@pytest.mark.parametrize("ranks", [1, 3])
def test_gradients_are_those_of_one_process(ranks: int) -> None:
    run(ranks, "gradients.py")


@pytest.mark.parametrize("ranks", [1, 2])
def test_reductions_are_in_flight_together_and_in_place(ranks: int) -> None:
    run(ranks, "in_flight.py")


def test_a_rank_that_left_is_an_aborted_error() -> None:
    run(2, "lost_rank.py", "left")


@pytest.mark.parametrize("how", ["killed", "stopped", "stalled"])
def test_a_rank_that_died_or_waits_for_something_else_is_an_error_of_its_kind(how: str) -> None:
    limit = "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS" if how == "stalled" else "SIRTAKI_UNRESPONSIVE_TIME_SECONDS"
    result = run_ranks(3, PROGRAMS / "lost_rank.py", args=[how], env={limit: "3"}, timeout=TIMEOUT, expect_failure=True)
    for rank in (0, 2):
        assert f"rank {rank} heard: " in result.stdout(rank), result.output


@pytest.mark.parametrize("ranks", [1, 2])
def test_keras_training(ranks: int, tmp_path: Path) -> None:
    run(ranks, "keras_training.py", tmp_path)


@pytest.mark.parametrize(("ranks", "threads"), [(1, 1), (2, 1), (3, 4)])
def test_xla(ranks: int, threads: int) -> None:
    run(ranks, "xla.py", env={"SIRTAKI_TEST_THREADS": str(threads)})


@pytest.mark.parametrize("ranks", [1, 3])
def test_fit_and_callbacks_for_all_ranks(ranks: int, tmp_path: Path) -> None:
    run(ranks, "keras_callbacks.py", tmp_path)


def test_each_optimizer_and_option_trains_as_one_process_does(tmp_path: Path) -> None:
    for ranks in (1, 2):
        run(ranks, "equivalence.py", tmp_path / f"{ranks}.npz")
    alone, together = (np.load(tmp_path / f"{ranks}.npz") for ranks in (1, 2))
    assert alone.files == together.files
    for key in alone.files:
        np.testing.assert_allclose(together[key], alone[key], rtol=1e-9, atol=1e-12, err_msg=key)


@pytest.mark.parametrize(("float_type", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_loss_curve_does_not_depend_on_the_number_of_ranks(float_type: str, tolerance: float, tmp_path: Path) -> None:
    curves = {}
    for ranks in (1, 2, 4):
        output = tmp_path / f"{ranks}.json"
        run(ranks, "loss_curve.py", float_type, output)
        curves[ranks] = json.loads(output.read_text())
    assert len(curves[1]) == 50
    assert curves[1][-1] < 0.9 * curves[1][0], "the network has not learnt anything"
    for ranks in (2, 4):
        assert curves[ranks] == pytest.approx(curves[1], rel=tolerance, abs=0), f"{ranks} ranks"


def test_training_repeats_bit_for_bit_whatever_is_fused(tmp_path: Path) -> None:
    digests = []
    # The same job twice, and with nothing and little fused together.
    for run_number, threshold in enumerate((None, None, 0, 4096)):
        output = tmp_path / f"{run_number}.json"
        env = None if threshold is None else {"SIRTAKI_FUSION_THRESHOLD": str(threshold)}
        run(2, "repeatable.py", output, env=env)
        digests.append(json.loads(output.read_text()))
    assert len(set(digests[0])) == len(digests[0]), "the weights stand still"
    for run_number, other in enumerate(digests[1:], start=1):
        assert other == digests[0], f"run {run_number}"
