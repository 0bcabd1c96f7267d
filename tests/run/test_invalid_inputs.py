"""Invalid-argument tests: what a refusal offers must be accepted, and right."""

from pathlib import Path

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.run import Status
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import parse_spec

HERE = Path(__file__).parent
TEXT = """
name: offered
problem:
  inputs: {x: {shape: [rows], dtype: float32}}
  outputs: [y]
  reference: offering:doubled
entry: offering:ENTRY
axes: {rows: [5], page: PAGES}
invalid_inputs:
  page must be one of: {page: 24}
"""


@pytest.fixture(scope="module")
def runner():
    found = Runner(backend_named("interpreter"))
    yield found
    found.close()


def refused(runner, entry, pages="[16, 32, 64]"):
    spec = parse_spec(TEXT.replace("ENTRY", entry).replace("PAGES", pages), HERE / f"{entry}.yaml")
    (case,) = (each for each in plan(spec).cases() if each.origin == "invalid")
    return runner.run(spec, case)


def test_an_entry_that_accepts_what_it_offers_passes(runner):
    result = refused(runner, "accepting")
    assert (result.status, result.findings) == (Status.PASSED, ())


def test_a_value_that_is_offered_and_refused_is_a_finding(runner):
    (finding,) = refused(runner, "refusing_the_largest").findings
    assert finding.check == "invalid_inputs"
    assert finding.title == "refuses page=256, which a message of its own offers"
    assert "got 256" in finding.hint


def test_an_offered_value_with_wrong_results_is_a_finding(runner):
    finding = refused(runner, "wrong_with_the_largest").findings[0]
    assert finding.check == "numeric"
    assert finding.detail.startswith("with page=256, which a message of the entry offers")


@pytest.mark.parametrize("pages", ["[16, 32]", "[16]"])
def test_an_axis_with_some_of_the_values_on_purpose_is_left_alone(runner, pages):
    assert refused(runner, "refusing_the_largest", pages).status is Status.PASSED
