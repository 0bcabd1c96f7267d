"""Invalid-argument tests: a refusal holds after valid calls, and what it offers is accepted."""

from pathlib import Path

import pytest

from spec_results import results_of
from tlmatrix.run import Status

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


def refused(runner, entry, pages="[16, 32, 64]"):
    text = TEXT.replace("ENTRY", entry).replace("PAGES", pages)
    (result,) = results_of(text, HERE / f"{entry}.yaml", runner=runner, origins={"invalid"})
    return result


def test_an_entry_that_accepts_what_it_offers_passes(runner):
    result = refused(runner, "accepting")
    assert (result.status, result.findings) == (Status.PASSED, ())


def test_a_value_that_is_offered_and_refused_is_a_finding(runner):
    (finding,) = refused(runner, "refusing_the_largest").findings
    assert finding.check == "invalid_inputs"
    assert finding.title == "refuses page=256, which a message of its own offers"
    assert "got 256" in finding.hint


def test_a_value_that_is_offered_and_refused_for_this_gpu_is_none(runner):
    assert refused(runner, "refusing_the_largest_here").status is Status.PASSED


def test_an_offered_value_with_wrong_results_is_a_finding(runner):
    finding = refused(runner, "wrong_with_the_largest").findings[0]
    assert finding.check == "numeric"
    assert finding.detail.startswith("with page=256, which a message of the entry offers")


@pytest.mark.parametrize("pages", ["[16, 32]", "[16]"])
def test_an_axis_with_some_of_the_values_on_purpose_is_left_alone(runner, pages):
    assert refused(runner, "refusing_the_largest", pages).status is Status.PASSED


SCALED = """
name: scaled
problem:
  inputs: {x: {shape: [rows], dtype: float32}}
  outputs: [y]
  reference: refusing:scaled
entry: refusing:ENTRY
axes: {rows: [5], scale: [2, 1]}
invalid_inputs:
  - raises: TypeError
    messages: {scale must be an int: [SETTINGS]}
"""
ADDED = """
name: added
problem:
  inputs:
    a: {shape: [rows, cols], dtype: float32, grad: true}
    b: {shape: [rows, cols], dtype: float32, grad: true}
  outputs: [y]
  reference: refusing:added
entry: refusing:ENTRY
axes: {rows: [5], cols: [4, 8]}
invalid_inputs:
  cols must be at most 8: {cols: 9}
"""


def judged(text, entry, **words):
    """The results of the invalid inputs of a spec, in a runner of their own."""
    for name, word in {"ENTRY": entry, **words}.items():
        text = text.replace(name, word)
    return results_of(text, HERE / f"{entry}.yaml", origins={"invalid"})


def test_a_refusal_must_hold_after_a_valid_call_with_an_equal_value():
    (result,) = judged(SCALED, "checked_once_per_value", SETTINGS="{scale: true}")
    (finding,) = result.findings
    assert finding.check == "invalid_inputs"
    assert finding.title.startswith("accepts an invalid input: expected TypeError")
    assert finding.call == "after a valid call with scale=1"


def test_a_refusal_must_hold_after_any_valid_call_of_equal_shapes():
    """The valid call is made once for both, and named for both."""
    results = judged(SCALED, "checked_once_per_shape", SETTINGS="{scale: 2.5}, {scale: 3.5}")
    calls = [[each.call for each in result.findings] for result in results]
    assert calls == [["after a valid call with scale=2"]] * 2


def test_a_refusal_that_holds_after_valid_calls_passes():
    settings = "{scale: true}, {scale: 1.0}, {scale: 2.5}"
    results = judged(SCALED, "checked_once_per_type", SETTINGS=settings)
    assert [each.status for each in results] == [Status.PASSED] * 3


@pytest.mark.parametrize(
    ("entry", "accepted"),
    [
        ("refusing_any_gradient", ""),
        ("refusing_wide_inputs", ""),
        ("refusing_the_gradient_of_b", ""),
        ("refusing_the_first_gradient", "only b of a, b"),
        ("refusing_all_gradients_together", "only a or only b of a, b"),
    ],
)
def test_a_refusal_of_gradients_must_hold_for_those_of_each_input(entry, accepted):
    (result,) = judged(ADDED, entry)
    titles = [each.title for each in result.findings]
    assert len(titles) == bool(accepted)
    assert all(title.endswith(f"where {accepted} requires grad") for title in titles)
