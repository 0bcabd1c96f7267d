"""Regressions run first; `tlmatrix replay` reports them."""

import json
import re

import pytest

from tlmatrix.exit_codes import ExitCode
from tlmatrix.spec import load_spec

_MORE = """
regressions:                    # found by fuzzing
  - {rows: 5, how: right}       # the first
  - {case: {rows: 1, how: wrong}, failed: dx is off, issue: "#3"}
  - {rows: 3, how: raise}
"""


@pytest.fixture
def spec(project):
    text = project.spec(more=_MORE).read_text()
    axes = load_spec(project.folder / "scale.yaml").axes
    assert {"cols", "dtype", "how", "rows"} == set(axes), axes
    return text


def _id(project, number):
    from tlmatrix.matrix import expand

    return list(expand(load_spec(project.folder / "scale.yaml"), "smoke"))[number].id


def test_each_regression_is_fixed_failed_or_an_error(project, spec):
    outcome = project.tlmatrix("replay", "scale.yaml", "-n", "0", code=ExitCode.FINDINGS)
    lines = outcome.out.splitlines()
    assert f"FIXED   scale.yaml::{_id(project, 0)}" in lines
    at = lines.index(f"FAILED  scale.yaml::{_id(project, 1)}")
    assert lines[at + 1].strip() == "found with: #3, dx is off"
    assert "numeric: y: " in lines[at + 2]
    assert lines[at + 3].strip().startswith("tlmatrix repro 'scale.yaml::")
    at = lines.index(f"ERROR   scale.yaml::{_id(project, 2)}")
    assert "raises RuntimeError: the kernel gave up" in lines[at + 1]
    assert "3 regressions of 1 spec: 1 fixed, 1 failed, 1 error, 0 skipped" in lines
    assert (project.folder / "scale.yaml").read_text() == spec


def test_a_regression_that_ends_its_process_is_an_error(project):
    project.spec(more="regressions: [{how: exit}, {how: right}]\n")
    outcome = project.tlmatrix("replay", code=ExitCode.USAGE)
    outcome = project.tlmatrix("replay", ".", code=ExitCode.FINDINGS)
    assert re.search(r"^ERROR   scale.yaml::.*how=exit.*\n +crash: ", outcome.out, re.MULTILINE)
    assert re.search(r"^FIXED   scale.yaml::.*how=right", outcome.out, re.MULTILINE)


def test_specs_without_regressions_need_no_run(project):
    project.spec()
    outcome = project.tlmatrix("replay", ".")
    assert (outcome.code, outcome.out) == (ExitCode.OK, "no regressions\n")


@pytest.mark.parametrize("workers", [0, 2])
def test_regressions_run_first_with_and_without_workers(project, workers):
    project.spec(rows="[1, 2, 3, 4, 5, 6]", more="regressions: [{rows: 9}, {rows: 3}, {rows: 8}]\n")
    path = project.folder / "found.jsonl"
    outcome = project.tlmatrix("run", ".", "-n", str(workers), "--results", str(path))
    assert outcome.code == ExitCode.OK, outcome.out
    records = [json.loads(line) for line in path.read_text().splitlines()]
    origins = {each["case"]: each["origin"] for each in records if each["record"] == "case"}
    assert len(origins) == 14
    ran = {}
    for each in records:
        if each["record"] == "start":
            ran.setdefault(each["worker"], []).append(origins[each["case"]])
    assert len(ran) == max(workers, 1)
    for kinds in ran.values():  # On each worker all of them come before anything else.
        first = kinds.count("regression")
        assert first
        assert kinds[:first] == ["regression"] * first
