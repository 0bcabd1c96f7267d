"""A run on several processes, which cases end in every way."""

import json
import multiprocessing
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import preloaded_python
from outside_project import Project
from tlmatrix.backend.gpus import GpuAssignment
from tlmatrix.engine.cases import CaseGroup, Cases
from tlmatrix.engine.pool import CtrlC, Pool
from tlmatrix.engine.worker import WorkerSettings, worker_main
from tlmatrix.exit_codes import ExitCode
from tlmatrix.options.table import RunOptions
from tlmatrix.run import RecordsWriter, Status, read_records
from tlmatrix.run.plan import plan
from tlmatrix.spec import load_spec


def _results(path):
    return {result.case: result.status for result in read_records(path).results}


class _Spawning:
    """An executor from outside of the package, whose workers are new processes."""

    def start(self, settings, name, gpu, _job):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=worker_main, args=(theirs, settings, name, gpu))
        process.start()
        theirs.close()
        return process, ours


def test_an_executor_is_one_class(project):
    path = project.spec(how="[right, exit, wrong]", rows="[5]")
    group = CaseGroup("scale.yaml", tuple(plan(load_spec(path)).cases()))
    settings = WorkerSettings(RunOptions({"backend": "interpreter"}))
    records = RecordsWriter(project.folder / "out.jsonl")
    reported = []
    work = Cases([group], settings, records, reported.append)
    with CtrlC().deferred() as ctrl_c:
        Pool(work, settings, records, 1, GpuAssignment(()), ctrl_c, _Spawning()).run()
    records.close()
    counts = {Status.PASSED: 2, Status.CRASHED: 2, Status.FAILED: 2}
    assert Counter(result.status for result in reported) == counts
    assert read_records(records.path).counts() == counts


class _SlowToEnd:
    """A process that takes its time to end, as one that uses a GPU does."""

    exitcode = None

    def join(self, _timeout=None):
        time.sleep(1)
        self.exitcode = 0

    def kill(self):
        self.exitcode = -9


class _Threads:
    """Workers as threads: the first has nothing to do, the second asks, and measures the wait."""

    waited = 0.0

    def __init__(self):
        self.processes = []

    def start(self, _settings, name, _gpu, _job):
        ours, theirs = multiprocessing.Pipe()
        threading.Thread(target=self._work, args=(name, theirs), daemon=True).start()
        self.processes.append(_SlowToEnd())
        return self.processes[-1], ours

    def _work(self, name, connection):
        connection.recv()
        if name != "worker 0":
            time.sleep(0.2)  # until the other one ends
            start = time.monotonic()
            connection.send(("ask", 7))
            assert connection.recv() is True
            self.waited = time.monotonic() - start
        connection.send(("done", None))


@dataclass(frozen=True)
class _Part:
    limit: float = 0.0
    gpus: int = 0


class _TwoJobs:
    over = False

    def __init__(self):
        self._jobs = [_Part(), _Part()]

    def next_job(self):
        return self._jobs.pop() if self._jobs else None

    def message(self, _job, _kind, content):
        return content == 7

    def done(self, _job, _report):
        pass

    tick = staticmethod(lambda: None)


def test_a_worker_that_ends_slowly_keeps_no_other_waiting(tmp_path):
    threads, records = _Threads(), RecordsWriter(tmp_path / "out.jsonl")
    settings = WorkerSettings(RunOptions({"backend": "interpreter"}))
    with CtrlC().deferred() as ctrl_c:
        Pool(_TwoJobs(), settings, records, 2, GpuAssignment(()), ctrl_c, threads).run()
    records.close()
    assert threads.waited < 0.7
    assert all(each.exitcode == 0 for each in threads.processes)


@dataclass(frozen=True)
class _Crashing:
    """A run whose workers die in every way: what it printed, and its records as plain data."""

    code: int
    out: str
    file: Path

    def started(self):
        """(case, worker) of every case that began."""
        records = map(json.loads, self.file.read_text().splitlines())
        return [
            (record["case"], record["worker"]) for record in records if record["record"] == "start"
        ]


@pytest.fixture(scope="module")
def crashing(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("crashing"))
    path = project.spec(how="[right, exit, sleep, hang, wrong]", rows="[5, 7]")
    path.write_text(path.read_text().replace("axes:", "axes:\n  values: [normal, large, ramp]"))
    # A kernel that hangs is given its time twice: an exception first, then the process is ended.
    # The first case of a process may take some seconds where others keep the machine busy.
    process = project.start(
        "tlmatrix", "run", ".", "-n", "2", "--timeout", "8", "--results", "out.jsonl",
        "-k", "how=right or how=wrong or (values=normal and ((how=exit and rows=5 and "
        "dtype=float32) or (how=hang and rows=5 and dtype=float16) or "
        "(how=sleep and rows=7 and dtype=float16)))",
    )  # fmt: skip
    out, _ = process.communicate(timeout=120)
    return _Crashing(process.returncode, out, project.folder / "out.jsonl")


def test_a_command_that_starts_no_worker_ends_their_server(project):
    """One that still imports would keep the output of the command open."""
    project.spec()
    words = ("tlmatrix", "run", "scale.yaml", "-k", "(")
    process = project.start(*words, executable=preloaded_python.PLAIN)
    assert process.wait(timeout=60) == ExitCode.USAGE
    deadline = time.monotonic() + 1
    while _of_session(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.communicate()


def _of_session(session):
    """The processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, mine, *_ = stat.read_text().rpartition(")")[2].split()
            if int(mine) == session and state not in "ZX":
                found.append(stat.parent.name)
    return found


def test_workers_share_a_file_and_a_crash_or_hang_costs_one_case(crashing):
    assert crashing.code == 1, crashing.out
    by_how = {}
    for case, status in _results(crashing.file).items():
        by_how.setdefault(re.search(r"how=(\w+)", case)[1], []).append(status)
    assert by_how == {
        "right": [Status.PASSED] * 12,
        "exit": [Status.CRASHED],
        "hang": [Status.TIMEOUT],
        "sleep": [Status.TIMEOUT],
        "wrong": [Status.FAILED] * 12,
    }
    assert "the process ended while this case was running" in crashing.out


def test_a_case_that_ended_its_worker_is_not_run_again(crashing):
    cases = [case for case, _ in crashing.started()]
    assert len(cases) == len(set(cases)) == 27


def test_cases_that_share_kernels_run_on_one_worker(crashing):
    workers = {}
    for case, worker in crashing.started():
        kernels = case.partition("-values=")[0]
        workers.setdefault(kernels, set()).add(worker)
    assert len(workers) == 11
    assert all(len(found) == 1 for found in workers.values())
    # Two to begin with, and one in place of each that ended.
    assert {"worker 0", "worker 1"} < set.union(*workers.values())
