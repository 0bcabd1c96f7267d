import pytest
from spec_text import spec_from, spec_of

from tlmatrix.matrix import reject_cases
from tlmatrix.spec import SpecError


def bad(values, **more):
    return {"set": values, "raises": "ValueError", "matching": "must be", **more}


def only(spec):
    (found,) = reject_cases(spec)
    return dict(found.case.values)


AXES = {"groups": [2, 1], "causal": [False, True], "window": [3, None]}


def test_a_reject_is_the_first_values_with_the_bad_ones_set():
    spec = spec_from(AXES, rejects=[bad({"groups": 0}), bad({"causal": "maybe", "groups": 5})])
    first, second = reject_cases(spec)
    assert dict(first.case.values) == {"groups": 0, "causal": False, "window": 3}
    assert first.case.origin == "reject"
    assert first.reject is spec.rejects[0]
    assert dict(second.case.values) == {"groups": 5, "causal": "maybe", "window": 3}


def test_what_is_not_bad_on_purpose_obeys_the_rules():
    spec = spec_from(AXES, ["window is none or causal"], rejects=[bad({"groups": 0})])
    assert only(spec) == {"groups": 0, "causal": False, "window": None}


def test_a_rule_broken_on_purpose_is_left_aside_and_the_others_hold():
    spec = spec_from(
        AXES,
        ["window is none or causal", "groups == 1 or causal"],
        rejects=[bad({"causal": False, "window": 3})],
    )
    assert only(spec) == {"groups": 1, "causal": False, "window": 3}


def test_a_rule_that_bad_values_make_impossible_is_left_aside():
    spec = spec_from(
        AXES, ["groups > 0 and causal", "window is none"], rejects=[bad({"groups": -1})]
    )
    assert only(spec) == {"groups": -1, "causal": False, "window": None}


def test_a_rule_without_an_answer_for_a_bad_value_is_left_aside():
    spec = spec_from(AXES, ["groups < 3"], rejects=[bad({"groups": "many"})])
    assert only(spec)["groups"] == "many"


def test_the_same_case_refused_twice_is_an_error_at_the_second():
    spec = spec_of(
        """
        axes: {a: [1], b: [1]}
        rejects:
          - {set: {a: 0}, raises: ValueError, matching: one}
          - {set: {a: 0, b: 1}, raises: TypeError, matching: other}
        """
    )
    with pytest.raises(SpecError, match=r"tried.yaml:8:5: an earlier .* same case, a=0-b=1"):
        reject_cases(spec)


def test_a_case_that_the_matrix_runs_cannot_be_refused():
    spec = spec_from(AXES, rejects=[bad({"groups": 1})])
    with pytest.raises(SpecError, match="groups=1-window=3 is a case of the matrix"):
        reject_cases(spec)
    spec = spec_from(AXES, ["groups != 1 or causal"], rejects=[bad({"groups": 1, "causal": False})])
    assert only(spec)["groups"] == 1
