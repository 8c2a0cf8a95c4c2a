"""Random programs of all collectives on real ranks, against NumPy.

SIRTAKI_TEST_PROGRAMS sets how many are played for each number of ranks.
"""

import os
import re
from pathlib import Path

import pytest
from harness import run_ranks

PROGRAM = Path(__file__).parent / "engine_programs" / "play_programs.py"
DEFAULT = 60


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (2, 1), (2, 2), (3, 1), (4, 2)])
def test_random_programs_give_what_numpy_gives(ranks, hosts):
    number = int(os.environ.get("SIRTAKI_TEST_PROGRAMS", DEFAULT))
    result = run_ranks(ranks, PROGRAM, [hosts, number], hosts=hosts, timeout=120 + number)
    played, calls = map(int, re.findall(r"played (\d+) programs of (\d+) calls", result.stdout(0))[0])
    assert played >= number and calls > 3 * played
