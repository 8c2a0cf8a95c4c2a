"""Random programs of up to 64 simulated ranks, in random interleavings, end as the model says.

An example is told by its `Setup`, which the failing test prints; `control_plane_simulation.py` searches longer.
"""

import pytest
from control_plane_simulation import Setup, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.one_of(st.integers(1, 5), st.integers(6, 64))
THRESHOLDS = st.sampled_from([0, 16, 64, 1000])

# The same examples everywhere: a failure in CI is met again at home.
few = settings(max_examples=40, deadline=None, derandomize=True)


@few
@given(seed=SEEDS, size=SIZES, tensors=st.integers(0, 5), threshold=THRESHOLDS)
def test_what_all_submit_is_executed(seed: int, size: int, tensors: int, threshold: int) -> None:
    Simulation(Setup(seed, size, tensors, threshold=threshold)).run()


@few
@given(seed=SEEDS, size=SIZES, threshold=THRESHOLDS)
def test_disagreements_end_on_all_ranks(seed: int, size: int, threshold: int) -> None:
    Simulation(Setup(seed, size, disagreements=0.4, threshold=threshold)).run()


@few
@given(seed=SEEDS, size=SIZES, data=st.data())
def test_ranks_that_leave_early_end_what_needs_them(seed: int, size: int, data: st.DataObject) -> None:
    leavers = data.draw(st.integers(1, size), "early leavers")
    Simulation(Setup(seed, size, disagreements=0.2, early_leavers=leavers)).run()


@few
@given(seed=SEEDS, size=SIZES, sets=st.integers(0, 3), threshold=THRESHOLDS)
def test_ranks_that_join_are_left_out(seed: int, size: int, sets: int, threshold: int) -> None:
    Simulation(Setup(seed, size, sets=sets, threshold=threshold, disagreements=0.2, joins=True)).run()


@few
@given(seed=SEEDS, size=SIZES, sets=st.integers(1, 4), leavers=st.integers(0, 1))
def test_overlapping_sets_do_not_get_in_each_others_way(seed: int, size: int, sets: int, leavers: int) -> None:
    Simulation(Setup(seed, size, tensors=2, sets=sets, early_leavers=leavers)).run()


@few
@given(seed=SEEDS, size=SIZES, capacity=st.integers(1, 6), joins=st.booleans())
def test_forgetting_names_and_signatures_loses_nothing(seed: int, size: int, capacity: int, joins: bool) -> None:
    simulation = Simulation(Setup(seed, size, sets=1, disagreements=0.2, capacity=capacity, joins=joins))
    simulation.run()
    if capacity == 1 and not joins:
        assert simulation.num_forgotten > 0


def test_same_seed_gives_same_run() -> None:
    logs = []
    for _ in range(2):
        simulation = Simulation(Setup(5, 7, disagreements=0.3, early_leavers=2))
        simulation.run()
        logs.append(simulation.log)
    assert logs[0] == logs[1]


def test_model_notices_a_lost_request() -> None:
    simulation = Simulation(Setup(1, 4))
    simulation.run()
    simulation.ranks[2].requests[0].ends.clear()
    with pytest.raises(AssertionError):
        simulation.check()
