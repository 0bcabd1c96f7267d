"""A runner makes all further checks of a case, or one in turn; the result says which."""

import json

import pytest

from tlmatrix.matrix import Case
from tlmatrix.run import Status
from tlmatrix.run.result import CaseResult
from tlmatrix.run.runner import Runner
from tlmatrix.spec import parse_spec

SPEC = """
name: turns
problem:
  inputs: {x: {shape: [rows, 8], dtype: float32}}
  outputs: [y]
  reference: check_rotation_code:reference
entry: check_rotation_code:entry
returns: [y]
axes: {rows: [1]}
checks: [numeric, determinism, repeat]
"""
CODE = """
KEPT = {}

def reference(x):
    return x * 2

def entry(x):
    return 2 * KEPT.setdefault(len(x), x.clone())  # the first data of each size, for ever
"""
BUG = """
known_bugs:
  - {when: rows > 0, issue: "#1", expires: 2099-01-01, mode: tolerate}
"""


@pytest.fixture(scope="module")
def run(code_folder):
    def run(rows, relations="all", more=""):
        spec = parse_spec(SPEC + more, code_folder / "turns.yaml")
        runner = Runner("interpreter")
        case = Case("turns", {"rows": rows}, origin="fuzz")
        return runner.run(spec, case, reruns=relations)

    return run


def turns(run, **options):
    """A result for each of the two further checks, by its name."""
    found = {}
    for rows in range(1, 30):
        result = run(rows, "rotate", **options)
        assert len(result.relations) == 1
        found[result.relations[0]] = result
    return found


def test_all_checks_run_by_default(run):
    result = run(1)
    assert [finding.check for finding in result.findings] == ["repeat"]
    assert result.relations == ()


def test_with_rotation_the_result_names_the_check_that_ran(run):
    found = turns(run)
    assert set(found) == {"determinism", "repeat", "other_options", "history"}
    assert found["determinism"].status is Status.PASSED
    assert found["repeat"].status is Status.FAILED


def test_only_named_checks_run(run):
    assert run(1, {"repeat"}).relations == ("repeat",)
    assert run(2, {"determinism"}).status is Status.PASSED


def test_the_record_names_the_checks_that_ran(run):
    result = run(1, {"repeat"})
    told = json.loads(json.dumps(result.to_json()))
    assert CaseResult.from_json(told).relations == ("repeat",)
    assert "relations" not in run(2).to_json()


def test_a_known_bug_is_not_stale_if_another_check_ran(run):
    found = turns(run, more=BUG)
    assert found["determinism"].status is Status.PASSED
    assert found["repeat"].status is Status.KNOWN_BUG
