"""Kernels compiled beside a run: by whom, in which order, and how others wait for them."""

import json
import multiprocessing
import os
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

import preloaded_python
from tlmatrix.backend.ahead import FOLDER, Scheduler, Tickets, Waiting
from tlmatrix.commands.compile_ahead import compiling_ahead, planned_kernels
from tlmatrix.run.kernel_plan import KernelJob

KERNEL = """
import tilelang
import tilelang.language as T


@tilelang.jit
def scale_kernel(dtype, factor):
    rows = T.dynamic("rows")

    @T.prim_func
    def scale(X: T.Tensor((rows,), dtype), Y: T.Tensor((rows,), dtype)):
        with T.Kernel(rows, threads=32) as row:
            Y[row] = X[row] * T.cast(factor, dtype)

    return scale


def double(X):
    import torch

    Y = torch.empty_like(X)
    scale_kernel(str(X.dtype).removeprefix("torch."), 2)(X, Y)
    return Y


def reference(X):
    return 2 * X
"""
SPEC = """
name: doubled
problem:
  inputs: {X: {shape: [rows], dtype: $dtype}}
  outputs: {Y: {shape: [rows], dtype: $dtype}}
  reference: doubling:reference
entry: doubling:double
compile_axes: [dtype]
axes:
  dtype: [float32, float16]
  rows: [1, 7]
"""


@pytest.fixture
def tickets(tmp_path):
    found = Tickets(tmp_path)
    with found.create():
        yield found


def waiting(key, seconds, log, sleep=0.0, exit_code=None):
    def compile_kernel():
        with log.open("a") as file:
            file.write(f"begin {key}\n")
        time.sleep(sleep)
        if exit_code is not None:
            os._exit(exit_code)
        with log.open("a") as file:
            file.write(f"end {key}\n")

    return Waiting(key, seconds, compile_kernel)


def begun(log):
    return [line.split()[1] for line in log.read_text().splitlines() if line.startswith("begin")]


def test_the_longest_go_first_and_each_once(tickets, tmp_path):
    log = tmp_path / "log"
    scheduler = Scheduler(1, tickets)
    for key, seconds in (("a", 1), ("b", 3), ("c", 2)):
        assert scheduler.add(waiting(key, seconds, log))
    assert not scheduler.add(waiting("a", 9, log))
    scheduler.finish()
    assert begun(log) == ["b", "c", "a"] == scheduler.compiled


def test_what_a_case_waits_for_goes_before_all_others(tickets, tmp_path):
    log = tmp_path / "log"
    scheduler = Scheduler(1, tickets)
    for key, seconds in (("a", 1), ("b", 3), ("c", 2)):
        scheduler.add(waiting(key, seconds, log, sleep=0.05))
    (tmp_path / "wanted" / "a").touch()
    scheduler.finish()
    assert begun(log) == ["a", "b", "c"]


def test_at_most_as_many_at_a_time_as_there_are_slots(tickets, tmp_path):
    log = tmp_path / "log"
    scheduler = Scheduler(2, tickets)
    for key in "abcd":
        scheduler.add(waiting(key, 1, log, sleep=0.2))
    scheduler.finish()
    running = most = 0
    for line in log.read_text().splitlines():
        running += 1 if line.startswith("begin") else -1
        most = max(most, running)
    assert most == 2


def test_a_compiler_that_crashes_ends_alone(tickets, tmp_path):
    scheduler = Scheduler(2, tickets)
    scheduler.add(waiting("bad", 2, tmp_path / "log", exit_code=9))
    scheduler.add(waiting("good", 1, tmp_path / "log"))
    scheduler.finish()
    assert (scheduler.failed, scheduler.compiled) == (["bad"], ["good"])
    assert not list((tmp_path / "planned").iterdir())


def test_other_children_of_the_process_are_left_to_those_who_wait_for_them(tickets, tmp_path):
    """Such as the server of workers: `multiprocessing` fails if its exit is gone."""
    other = subprocess.Popen(["true"])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    scheduler = Scheduler(1, tickets)
    scheduler.add(waiting("one", 1, tmp_path / "log"))
    scheduler.finish()
    assert scheduler.compiled == ["one"]
    os.waitid(os.P_PID, other.pid, os.WEXITED)
    other.returncode = 0


def test_a_case_waits_until_its_kernel_has_been_compiled(tickets, tmp_path):
    scheduler = Scheduler(1, tickets)
    scheduler.add(waiting("key", 1, tmp_path / "log", sleep=0.3))
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_wait_and_log, args=(tmp_path,))
    process.start()
    scheduler.finish()
    process.join(10)
    assert (tmp_path / "log").read_text().split("\n")[:3] == ["begin key", "end key", "waited"]


def _wait_and_log(folder):
    assert Tickets(folder).wait_for("key")
    with (folder / "log").open("a") as file:
        file.write("waited\n")


def test_nothing_waits_for_a_process_that_has_ended(tmp_path):
    tickets = Tickets(tmp_path)
    with tickets.create():
        tickets.plan("key")
    assert tickets.wait_for("key")
    assert not tickets.wait_for("another")
    assert not Tickets(None).wait_for("key")


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "doubling.py").write_text(KERNEL)
    (tmp_path / "doubled.yaml").write_text(SPEC)
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "tilelang"))
    return tmp_path


def job(project, backend, *dtypes, **rest):
    cases = [{"dtype": dtype, "rows": rows} for dtype in dtypes for rows in (1, 7)]
    return KernelJob(
        {str(project / "doubled.yaml"): cases}, roots=[str(project)], backend=backend, **rest
    )


PARENT = """
import subprocess, sys

words = [sys.executable, "-m", "tlmatrix.run.kernel_plan"]
plan = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
plan.communicate(sys.argv[1] + "\\n")
print("alive", plan.returncode)
"""


def test_a_plan_that_ends_with_its_parent_kills_none_of_the_parents_group(project):
    """The parent closes the input at once, and is in the process group in which it starts it."""
    line = job(project, "cuda", "float32", arch="sm_90a", folder=str(project)).to_json()
    done = preloaded_python.run("-c", PARENT, line, timeout=240, start_new_session=True)
    assert done.stdout == "alive -9\n", done.stderr


USE = """
import json, os
from doubling import scale_kernel
from tlmatrix.backend.kernel_cache import share_kernels

share_kernels()
scale_kernel("float32", 2)
"""


def used_kernels(project, folder):
    """The events of all processes so far, after another one has used the kernel."""
    used = preloaded_python.run(
        "-c",
        textwrap.dedent(USE),
        cwd=project,
        env={**os.environ, "TILELANG_DEFAULT_TARGET": '{"kind": "cuda", "arch": "sm_90a"}'},
    )
    assert used.returncode == 0, used.stderr
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_gpu_would_load_what_was_compiled_ahead(project):
    """`@tilelang.jit` finds the kernel under the key of the plan, without compiling."""
    one = job(project, "cuda", "float32", arch="sm_90a", processes=2)
    with compiling_ahead(one) as kernels:
        folder = Path(os.environ[FOLDER])
        until = time.monotonic() + 240
        while not (folder / "events.jsonl").exists() and time.monotonic() < until:
            time.sleep(0.1)
        events = used_kernels(project, folder)
        key = events[0]["key"]
        assert [each["key"] for each in events if each.get("reused")] == [key]
        # A damaged library of the same size costs one compilation; it is never loaded.
        (library,) = (project / "tilelang").rglob(f"{key}/*.so")
        damaged = bytearray(library.read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        library.write_bytes(damaged)
        again = used_kernels(project, folder)[len(events) :]
        assert [(each["key"], "reused" in each) for each in again] == [(key, False)]
        assert library.read_bytes() != damaged
    assert kernels.compiled == 1
    both = planned_kernels(job(project, "cuda", "float32", "float16", arch="sm_90a"))
    assert [(each["kernel"], each["cached"]) for each in both] == [
        ("scale", True),
        ("scale", False),
    ]
    assert both[0]["key"] == events[0]["key"]
