"""`tlmatrix run`: runs in one process, `--lf`, `--resume`, `-k`, and the number of workers."""

import json
import os
import re

import pytest

from tlmatrix.engine.selection import SelectedCases, worker_count
from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import read_records
from tlmatrix.run.plan import plan
from tlmatrix.spec import load_spec

FIRST = "cols=3-dtype=float16-how=right-rows=5"


def _run(project, *words, code):
    """What `tlmatrix run` prints in a process of its own, as from a shell."""
    return project.run("tlmatrix", "run", *words, "--backend", "interpreter", code=code).out


def _recorded(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


# One process, or workers ---------------------------------------------------------------------


def test_a_small_run_has_one_process(project):
    project.spec(how="[right, wrong]")
    out = _run(project, ".", "--results", "out.jsonl", code=ExitCode.FINDINGS)
    assert "4 passed, 4 failed" in out
    started = [
        each for each in _recorded(project.folder / "out.jsonl") if each["record"] == "start"
    ]
    assert {each["worker"] for each in started} == {"worker 0"}
    assert len(started) == 8


@pytest.mark.parametrize("how", ["exit", "hang"])
def test_a_case_that_ends_the_process_is_a_finding_and_the_others_run(project, how):
    project.spec(how=f"[right, {how}, wrong]", rows="[5]")
    out = _run(
        project, ".", "--results", "out.jsonl", "--timeout", "5", "-k", "dtype=float32",
        code=ExitCode.FINDINGS,
    )  # fmt: skip
    ended = "crashed" if how == "exit" else "timeout"
    assert f"1 passed, 1 failed, 1 {ended}" in out
    assert f"scale: {ended} in 1 case" in out
    records = read_records(project.folder / "out.jsonl")
    assert records.summary is not None
    assert records.summary.counts == {"passed": 1, "failed": 1, ended: 1}
    lines = _recorded(project.folder / "out.jsonl")
    assert sorted(each["case"] for each in lines if each["record"] == "case") == sorted(
        result.case for result in records.results
    )


def test_exitfirst_stops_after_a_case_that_ends_its_process(project):
    project.spec(how="[exit]", rows="[5]")
    out = _run(project, ".", "-x", "--results", "out.jsonl", code=ExitCode.FINDINGS)
    assert "1 crashed; 1 not run" in out
    assert "tlmatrix run --resume out.jsonl" in out


def test_workers_are_used_if_they_save_time(project, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(4)))
    path = project.spec(rows="[1, 5, 7, 9]")
    planned = plan(load_spec(path))
    cases = list(planned.cases())

    def workers(each, *, times=1, compiled=False):
        seconds = {} if each is None else {(path, case.id): each for case in cases}
        wanted = [SelectedCases(planned, path, path.name, cases * times)]
        return worker_count(wanted, seconds, compiled=compiled)

    assert workers(None) == 1
    assert workers(0.1) == 1
    assert workers(2.0) > 1
    assert workers(None, times=10) > 1
    assert workers(None, compiled=True) > 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_recorded_durations_determine_the_number_of_workers(project):
    project.spec(rows="[1, 2, 3, 4]")
    workers = []
    for _ in range(2):
        _run(project, ".", code=ExitCode.OK)
        newest = max((project.folder / ".tlmatrix").glob("*.jsonl"), key=lambda file: file.name)
        lines = _recorded(newest)
        workers.append({each["worker"] for each in lines if each["record"] == "start"})
        # As if each case had taken a second.
        slow = [line | ({"seconds": 1.0} if "status" in line else {}) for line in lines]
        newest.write_text("".join(f"{json.dumps(line)}\n" for line in slow))
    assert workers[0] == {"worker 0"}
    assert {"worker 0", "worker 1"} <= workers[1]


# Earlier runs ---------------------------------------------------------------------------------


def test_lf_runs_the_failed_cases_until_none_fails(project):
    path = project.spec(how="[right, wrong]", rows="[5]")
    nothing = project.tlmatrix("run", "--lf", str(path), "-n", "0", "-k", "how=right")
    assert "--lf: there is no earlier run; running every case" in nothing.out
    project.tlmatrix("run", str(path), "-n", "0")
    again = project.tlmatrix("run", "--lf", "-n", "0", code=ExitCode.FINDINGS)
    assert "--lf: 2 cases that failed in .tlmatrix" in again.out
    assert "2 cases in" in again.out
    kernel = project.folder / f"{project.module}.py"
    kernel.write_text(kernel.read_text().replace('"wrong"', '"mended"'))
    out = _run(project, "--lf", "-n", "0", code=ExitCode.OK)
    assert "2 cases in" in out
    out = _run(project, "--lf", "-n", "0", code=ExitCode.OK)
    assert "no case failed in" in out
    assert "4 cases in" in out


def test_lf_leaves_out_cases_that_a_spec_no_longer_has(project):
    project.spec(how="[wrong]", rows="[5, 7]")
    project.tlmatrix("run", ".", "-n", "0")
    project.spec(how="[wrong]", rows="[5]")
    outcome = project.tlmatrix("run", ".", "--lf", "-n", "0")
    assert "--lf: 2 cases that failed in" in outcome.out
    assert "2 more are no longer in a spec" in outcome.out
    assert "2 cases in" in outcome.out


def test_lf_runs_a_fuzz_case_that_is_no_longer_generated(project):
    fuzz = "fuzz: {axes: {rows: 20..30}, examples: {quick: %d}}"
    project.spec(how="[wrong]", rows="[5]", more=fuzz % 4)
    project.tlmatrix("run", ".", "-n", "0", "-k", "fuzz")
    project.spec(how="[wrong]", rows="[5]", more=fuzz % 0)
    outcome = project.tlmatrix("run", "--lf", "-n", "0")
    assert "--lf: 4 cases that failed" in outcome.out
    assert "4 failed" in outcome.out


def test_resume_without_a_file_continues_the_last_run_with_its_k(project):
    project.spec(how="[right, wrong]", rows="[5, 7]")
    project.tlmatrix("run", "scale.yaml", "-n", "0", "-k", "dtype=float16 and rows=5")
    outcome = project.tlmatrix("run", "--resume", "-n", "0", code=ExitCode.FINDINGS)
    assert "with its -k 'dtype=float16 and rows=5'" in outcome.out
    assert "1 case of 1 spec; 1 passed before" in outcome.out
    assert len(list((project.folder / ".tlmatrix").glob("*.jsonl"))) == 1


def test_resume_without_a_run_names_the_folder(project):
    project.spec()
    outcome = project.tlmatrix("run", "--resume", code=ExitCode.USAGE)
    assert "no results in" in outcome.out


# Arguments -----------------------------------------------------------------------------------


def test_cases_are_selected_by_node_id(project):
    project.spec(rows="[1, 5]")
    second = FIRST.replace("16", "32")
    outcome = project.tlmatrix("run", f"scale.yaml::{FIRST}", f"scale.yaml::{second}", "-n", "0")
    assert outcome.code == ExitCode.OK, outcome.out
    assert "2 cases in" in outcome.out
    outcome = project.tlmatrix("run", "scale.yaml::cols=3-dtype=float61-how=right-rows=5")
    assert outcome.code == ExitCode.USAGE
    assert "did you mean 'float16'" in outcome.out


@pytest.mark.parametrize("workers", ["0", "2", "auto"])
@pytest.mark.parametrize("select", ["(", "rows=", "rows=5 and"])
def test_an_invalid_k_is_one_line(project, workers, select):
    project.spec()
    outcome = project.tlmatrix("run", ".", "-n", workers, "-k", select, code=ExitCode.USAGE)
    assert outcome.out.startswith(f"tlmatrix: -k {select!r} is invalid: ")
    assert outcome.out.count("\n") == 1
    outcome = project.pytest(".", "-q", "-n", workers.replace("auto", "1"), "-k", select)
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert [line for line in outcome.out.splitlines() if line] == [
        line
        for line in outcome.out.splitlines()
        if line.startswith(f"ERROR: -k {select!r} is invalid")
    ]
    assert not list(project.folder.rglob("*.jsonl"))


def test_k_invalid_selects_invalid_inputs(project):
    project.spec(rows="[5]", more="invalid_inputs: {right: {how: refuse}}")
    for outcome in (
        project.tlmatrix("run", ".", "-n", "0", "-k", "invalid"),
        project.pytest(".", "-n", "0", "-k", "invalid"),
    ):
        assert outcome.code == 0, outcome.out
        assert "1 passed" in outcome.out


def test_an_unknown_option_gets_the_usage_of_its_command(project):
    project.spec()
    outcome = project.tlmatrix("run", "--resum-last", "scale.yaml", code=ExitCode.USAGE)
    assert outcome.out.startswith("usage: tlmatrix run ")
    assert "unrecognized arguments: --resum-last" in outcome.out


def test_paths_may_follow_options(project):
    project.spec("one")
    project.spec("two")
    outcome = project.tlmatrix("run", "one.yaml", "-n", "0", "two.yaml")
    assert "8 cases of 2 specs" in outcome.out


def test_quiet_prints_findings_and_the_last_line_and_verbose_every_case(project):
    project.spec(how="[right, wrong]", rows="[5]")
    quiet = project.tlmatrix("run", ".", "-q", "-n", "0").out.strip().splitlines()
    assert quiet[0] == "1. scale: failed in 2 cases"
    assert re.match(r"4 cases in .* s on interpreter: 2 passed, 2 failed", quiet[-1])
    verbose = project.tlmatrix("run", ".", "-v", "-n", "0").out
    assert len(re.findall(r"^passed +\d+\.\d+ s  scale\.yaml::", verbose, re.MULTILINE)) == 2
    assert len(re.findall(r"^failed +\d+\.\d+ s  scale\.yaml::", verbose, re.MULTILINE)) == 2
