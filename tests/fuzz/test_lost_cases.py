"""Shrinking of cases that crash or hang, each attempt in a child process."""

import multiprocessing
import os
import time
from dataclasses import replace

import pytest
from fuzz_specs import rows_spec

from tlmatrix.engine.lost import (
    ChildProcess,
    LostCase,
    crashed,
    fork_child,
    shrink_lost,
    spawn_child,
    timed_out,
)
from tlmatrix.engine.worker import WorkerSettings
from tlmatrix.matrix import Case
from tlmatrix.options.table import RunOptions
from tlmatrix.run import Status

pytestmark = pytest.mark.usefixtures("preloaded")


def children_of(runner, spec):
    return ChildProcess(lambda: fork_child(runner, spec, "rows.yaml"))


def lost_case(runner, spec, rows, told):
    """The result of a case that was lost with its process."""
    case = Case("rows", {"rows": rows, "cols": 8, "dtype": "float16"}, "fuzz")
    right = Case("rows", {**case.values, "rows": 1}, "fuzz")
    blank = runner.run(spec, right, path="rows.yaml")
    blank = replace(blank, case=case.id, key=case.key, values=dict(case.values))
    return case, told(blank, 9)


def test_crash_is_shrunk(tmp_path, runner):
    spec = rows_spec(tmp_path, "dies")
    _, result = lost_case(runner, spec, 250, crashed)
    found = shrink_lost(spec, LostCase(result, 10, 60), children_of(runner, spec))
    assert found.smallest.values == {"rows": 101, "cols": 3, "dtype": "float32"}
    assert found.smallest.status is Status.CRASHED
    assert found.smallest.case != found.first.case == result.case
    assert found.ended
    assert found.tried > 5


def test_hang_is_shrunk_and_leaves_no_process(tmp_path, runner):
    spec = rows_spec(tmp_path, "hangs")
    _, result = lost_case(runner, spec, 120, timed_out)
    before = len(multiprocessing.active_children())
    found = shrink_lost(spec, LostCase(result, 0.5, 60), children_of(runner, spec))
    assert found.smallest.values == {"rows": 101, "cols": 3, "dtype": "float32"}
    assert found.smallest.status is Status.TIMEOUT
    assert len(multiprocessing.active_children()) == before


def test_lost_case_that_does_not_reproduce(tmp_path, runner):
    spec = rows_spec(tmp_path, "right")
    _, result = lost_case(runner, spec, 250, crashed)
    found = shrink_lost(spec, LostCase(result, 10, 60), children_of(runner, spec))
    assert found.smallest.key == result.key
    assert not found.ended
    assert "the case ended well when it ran again" in found.smallest.findings[0].detail


def test_shrinking_stops_at_its_time_limit(tmp_path, runner):
    spec = rows_spec(tmp_path, "hangs")
    _, result = lost_case(runner, spec, 250, timed_out)
    begin = time.monotonic()
    found = shrink_lost(spec, LostCase(result, 0.4, 0.5), children_of(runner, spec))
    assert time.monotonic() - begin < 10
    assert not found.ended
    assert found.smallest.values["rows"] > 100


def test_child_is_reused_and_replaced(tmp_path, runner):
    spec = rows_spec(tmp_path, "dies")
    case, blank = lost_case(runner, spec, 250, crashed)
    small = Case("rows", {**case.values, "rows": 3}, "fuzz")
    children = children_of(runner, spec)
    statuses = [children.run(each, "all", blank, 10).status for each in (small, small, case, small)]
    children.end()
    assert statuses == [Status.PASSED, Status.PASSED, Status.CRASHED, Status.PASSED]


def test_child_ends_without_its_parent(tmp_path, runner):
    spec = rows_spec(tmp_path, "right")
    process, ours = fork_child(runner, spec, "rows.yaml")
    assert ours.recv() == "ready"
    ours.close()
    process.join(20)
    assert process.exitcode == 0
    assert os.getpid() != process.pid


def test_spawned_child(tmp_path, runner):
    spec = rows_spec(tmp_path, "dies")
    case, blank = lost_case(runner, spec, 250, crashed)
    small = Case("rows", {**case.values, "rows": 3}, "fuzz")
    settings = WorkerSettings(RunOptions({"backend": "interpreter"}))
    children = ChildProcess(lambda: spawn_child(str(spec.path), settings))
    statuses = [children.run(each, "all", blank, 60).status for each in (small, case)]
    children.end()
    assert statuses == [Status.PASSED, Status.CRASHED]
