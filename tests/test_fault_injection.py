"""Some rounds of the fault injection; `make fault-injection` plays many more."""

import signal

import pytest
from fault_injection import Round, play

# Chosen among the first rounds of the seed: every signal on one and two hosts, the sequencer and others as victims.
SEED = 3
ROUNDS = range(8)


@pytest.mark.parametrize("number", ROUNDS)
def test_others_are_told_of_a_rank_killed_or_stopped_at_a_random_moment(number):
    this = Round.draw(SEED, number)
    outcome = play(this)
    assert not outcome.problems, "\n".join([str(this), *outcome.problems])


def test_rounds_are_mixed_and_can_be_repeated():
    rounds = [Round.draw(SEED, number) for number in ROUNDS]
    assert rounds == [Round.draw(SEED, number) for number in ROUNDS]
    assert {(this.signal, this.hosts) for this in rounds} == {
        (signal.SIGKILL, 1), (signal.SIGKILL, 2), (signal.SIGSTOP, 1), (signal.SIGSTOP, 2)
    }  # fmt: skip
    assert {this.role for this in rounds} == {"sequencer", "agent", "other"}
