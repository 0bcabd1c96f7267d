"""Fuzz cases under pytest: after the tier's cases, the same in every worker, shrunk."""

import re
import shlex

import pytest

from tlmatrix.run import Status, read_records

_FUZZ = """\
fuzz:
  axes: {rows: 1..300}
  examples: {quick: 8}
"""


def _listed(project, *more):
    out = project.pytest(".", "-q", "-n", "0", "--collect-only", *more).out
    return [line for line in out.splitlines() if "::" in line]


def _results(project):
    (path,) = project.folder.rglob("*.jsonl")
    return read_records(path).results


def test_fuzz_cases_run_after_the_tier(project):
    project.spec(more=_FUZZ)
    listed = _listed(project)
    assert len(listed) == len(set(listed)) == 4 + 8
    assert listed[:4] == _listed(project, "--tlmatrix-no-fuzz")
    assert _listed(project, "-k", "fuzz") == listed[4:]
    assert listed == _listed(project)
    assert listed[4:] != _listed(project, "--tlmatrix-seed", "7")[4:]


def test_spec_without_examples_is_not_fuzzed(project):
    project.spec(more="fuzz: {axes: {rows: 1..300}, examples: {nightly: 8}}\n")
    assert len(_listed(project)) == 4


def test_workers_share_fuzz_cases(project):
    project.spec(more=_FUZZ)
    project.pytest(".", "-q", "-n", "2", code=pytest.ExitCode.OK)
    results = _results(project)
    assert [result.status for result in results] == [Status.PASSED] * 12
    assert len({result.key for result in results}) == 12
    assert sum(result.origin == "fuzz" for result in results) == 8
    (path,) = project.folder.rglob("*.jsonl")
    assert path.read_text().count('"record":"start"') == 12


def test_failing_fuzz_case_is_shrunk_and_reported(project):
    project.spec(how="[right, wrong]", rows="[1]", more=_FUZZ)
    outcome = project.tlmatrix("run", "scale.yaml", "-n", "0", "-k", "fuzz and how=wrong", code=1)
    smaller = [result.smaller for result in _results(project) if result.smaller is not None]
    (found,) = smaller
    assert found.values == {"rows": 1, "cols": 3, "dtype": "float32", "how": "wrong"}
    assert "wrong with these or other data: " in outcome.out
    repro = re.search(r"repro +tlmatrix (.*)$", outcome.out, re.MULTILINE)
    again = project.tlmatrix(*shlex.split(repro[1]), code=1)
    assert "numeric: y" in again.out


def test_fuzz_case_runs_again_by_id(project):
    project.spec(more=_FUZZ)
    node = _listed(project)[-1].strip()
    assert project.tlmatrix("repro", node).code == 0
    assert "1 passed" in project.pytest(node, "-q", "-n", "0").out
    outside = project.tlmatrix("repro", "scale.yaml::cols=7-dtype=float16-how=right-rows=5")
    assert "the axis cols has no value '7'" in outside.out


def test_crashing_fuzz_case_is_recorded(project):
    project.spec(how="[exit]", rows="[1]", more=_FUZZ.replace("8}", "1}"))
    outcome = project.pytest(".", "-q", "-n", "1", "-k", "fuzz", code=pytest.ExitCode.TESTS_FAILED)
    (result,) = _results(project)
    assert (result.status, result.origin) == (Status.CRASHED, "fuzz")
    assert f"tlmatrix repro '{result.node}'" in outcome.out


def test_known_bugs_of_fuzz_cases_are_not_failures(project):
    ledger = """\
known_bugs:
  - {when: how == 'wrong' and rows > 1, issue: "#1", expires: 2999-01-01}
"""
    project.spec(how="[right, wrong]", rows="[2]", more=_FUZZ.replace("1..300", "2..300") + ledger)
    outcome = project.pytest(".", "-q", "-n", "0", "-k", "fuzz", code=pytest.ExitCode.OK)
    assert "xfailed" in outcome.out
