"""What is seen of a job from outside: its timeline, counters, ranking of stragglers and messages."""

import json
import subprocess
import sys

import pytest
from harness import TESTS, run_ranks
from sirtaki.timeline.merge import RankTimeline, clock_offsets, load, merged

PROGRAM = TESTS / "engine_programs" / "observed.py"


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_timeline_has_a_lane_per_tensor_with_its_phases(tmp_path, ranks, hosts):
    result = run_ranks(ranks, PROGRAM, ["timeline", tmp_path, hosts], hosts=hosts)
    assert result.output.count("checked") == ranks


def test_timeline_of_a_killed_rank_merges(tmp_path):
    result = run_ranks(2, PROGRAM, ["killed", tmp_path], expect_failure=True)
    assert "failed" in result.stdout(0)
    files = [str(tmp_path / f"k.{rank}.json") for rank in range(2)]
    out = tmp_path / "merged.json"
    command = [sys.executable, "-m", "sirtaki.timeline", "merge", str(out), *files]
    subprocess.run(command, check=True, capture_output=True)
    events = json.loads(out.read_text())
    for rank in range(2):
        done = [e for e in events if e["pid"] == rank and e.get("name") == "allreduce"]
        assert len(done) == 20 or (rank == 1 and done), done
    waiting = [e["ph"] for e in events if e["pid"] == 0 and e["ph"] in "BE"]
    assert waiting.count("B") == 21
    json.loads((tmp_path / "k.0.json").read_text())


def test_file_cut_off_at_any_byte_loads(tmp_path):
    run_ranks(1, PROGRAM, ["timeline", tmp_path, 1])
    whole = (tmp_path / "t0.json").read_bytes()
    events = load(tmp_path / "t0.json").events
    assert len(events) > 50
    cut = tmp_path / "cut.json"
    before = 0
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        found = load(cut)
        assert found.events == events[: len(found.events)]
        assert before <= len(found.events) and found.num_unreadable <= 1
        before = len(found.events)
        merged([found])
    assert before == len(events)
    # As the format has it for readers of JSON: the lines that are whole, without the last comma, and a bracket.
    for length in range(whole.index(b"\n", 2), len(whole), 97):
        lines = whole[:length].rpartition(b"\n")[0].rstrip(b",\n]")
        assert isinstance(json.loads(lines + b"]"), list)


def test_names_with_line_ends_of_unicode_are_merged(tmp_path):
    names = ["next\x85line", "line\u2028separator", "paragraph\u2029separator", "carriage\rreturn", "file\x1cseparator"]
    program = f"""
        import numpy as np
        import sirtaki
        sirtaki.init()
        sirtaki.start_timeline({str(tmp_path / "names.json")!r})
        for name in {names!a}:
            sirtaki.allreduce(np.ones(3), name=name)
        sirtaki.stop_timeline()
    """
    run_ranks(1, program)
    found = load(tmp_path / "names.json")
    assert found.num_unreadable == 0
    assert [e["args"]["name"] for e in found.events if e.get("name") == "thread_name"] == names


def test_clocks_of_hosts_are_aligned_by_what_must_have_been():
    def timeline(boot, wall, begin, end):
        anchor = {"boot": boot, "monotonic_ns": 0, "realtime_ns": wall}
        whole = {"name": "allreduce", "pid": 0, "tid": 1, "ts": begin, "dur": end - begin, "args": {"batch": 1}}
        return RankTimeline(anchor, [whole, {"name": "queue", "pid": 0, "tid": 1, "ts": begin, "dur": 0}])

    # The wall clocks say 0 us apart; but the second host was done (at 40) before the first had begun (at 100).
    first, second = timeline("a", 0, 100.0, 130.0), timeline("b", 0, 20.0, 40.0)
    assert clock_offsets([first, second]) == {"a": 0.0, "b": 60.0}
    # Wall clocks that agree with what must have been stay as they are.
    assert clock_offsets([first, timeline("b", 90_000, 20.0, 40.0)]) == {"a": 0.0, "b": 90.0}


@pytest.mark.parametrize(("ranks", "hosts"), [(3, 1), (3, 2)])
def test_late_rank_is_first_among_stragglers(ranks, hosts):
    result = run_ranks(ranks, PROGRAM, ["late"], hosts=hosts)
    assert result.output.count("checked") == ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_counters_are_exact_and_served(ranks):
    result = run_ranks(ranks, PROGRAM, ["numbers"])
    assert result.output.count("checked") == ranks


@pytest.mark.parametrize(("level", "is_shown"), [("info", True), ("WARNING", False), (None, False)])
def test_level_of_messages(level, is_shown):
    program = """
        import sirtaki
        sirtaki.init()
        sirtaki.shutdown()
    """
    result = run_ranks(2, program, env={"SIRTAKI_LOG_LEVEL": level} if level else {})
    for rank in range(2):
        shown = f"[{rank}] sirtaki INFO: joined a job of 2 ranks on 1 hosts as local rank {rank} of 2\n"
        assert (shown in result.stderr(rank)) == is_shown


@pytest.mark.parametrize(("level", "is_shown"), [("fatal", True), ("OFF", False)])
def test_off_lets_nothing_out(level, is_shown):
    program = """
        import logging
        import sirtaki
        sirtaki.init()
        logging.getLogger("sirtaki").critical("the worst")
    """
    result = run_ranks(1, program, env={"SIRTAKI_LOG_LEVEL": level})
    assert ("the worst" in result.stderr(0)) == is_shown


def test_wrong_level_names_the_right_ones():
    result = run_ranks(1, "import sirtaki\nsirtaki.init()\n", env={"SIRTAKI_LOG_LEVEL": "loud"}, expect_failure=True)
    assert "SIRTAKI_LOG_LEVEL='loud' cannot be used: must be one of trace, debug" in result.output


@pytest.mark.parametrize("ranks", [1, 2])
def test_init_that_cannot_observe_leaves_nothing_and_may_be_tried_again(ranks):
    program = """
        import os
        import socket
        import threading
        import numpy as np
        import sirtaki

        before = threading.active_count()
        rank = int(os.environ.get("PMI_RANK", "0"))
        taken = socket.create_server(("", 0))
        port = taken.getsockname()[1]
        os.environ["SIRTAKI_TIMELINE"] = "/tmp/no such folder/timeline.json"
        for words in ("SIRTAKI_TIMELINE", "SIRTAKI_METRICS_PORT"):
            try:
                sirtaki.init()
            except sirtaki.errors.ConfigError as error:
                assert words in str(error), error
            else:
                raise AssertionError("init worked")
            assert not sirtaki.is_initialized() and threading.active_count() == before
            os.environ["SIRTAKI_TIMELINE"] = ""
            del os.environ["SIRTAKI_TIMELINE"]
            os.environ["SIRTAKI_METRICS_PORT"] = str(port - rank)
        os.environ["SIRTAKI_METRICS_PORT"] = "0"
        sirtaki.init()
        assert sirtaki.allreduce(np.ones(2), op=sirtaki.Sum)[0] == sirtaki.size()
    """
    run_ranks(ranks, program)


def test_metrics_without_the_client_library_say_what_to_install():
    program = """
        import os
        import sys
        sys.modules["prometheus_client"] = None
        os.environ["SIRTAKI_METRICS_PORT"] = "0"
        import sirtaki
        sirtaki.init()
    """
    result = run_ranks(1, program, expect_failure=True)
    assert "MissingDependencyError" in result.output and "pip install 'sirtaki[metrics]'" in result.output
