"""Invalid inputs and known bugs of a spec."""

from datetime import date

import pytest
from spec_text import spec_from, spec_of

from tlmatrix.matrix import Case, expired, invalid_cases, known_bug, valid_case
from tlmatrix.spec import SpecError


def table(*settings):
    return {"must be": list(settings)}


def only(spec):
    (found,) = invalid_cases(spec)
    return dict(found.case.values)


AXES = {"groups": [2, 1], "causal": [False, True], "window": [3, None]}


def test_other_axes_take_their_first_values():
    spec = spec_from(AXES, invalid_inputs=table({"groups": 0}, {"causal": "maybe", "groups": 5}))
    first, second = invalid_cases(spec)
    assert dict(first.case.values) == {"groups": 0, "causal": False, "window": 3}
    assert first.case.origin == "invalid"
    assert (first.invalid.raises, first.invalid.message) == ("ValueError", "must be")
    assert dict(second.case.values) == {"groups": 5, "causal": "maybe", "window": 3}


def test_other_axes_satisfy_the_constraints():
    spec = spec_from(AXES, ["window is none or causal"], invalid_inputs=table({"groups": 0}))
    assert only(spec) == {"groups": 0, "causal": False, "window": None}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"groups": 0}, {"groups": 2, "causal": False, "window": None}),
        ({"groups": 1.0}, {"groups": 1, "causal": False, "window": None}),
        ({"causal": 1}, {"groups": 2, "causal": True, "window": 3}),
        ({"k": {"dtype": "int8"}}, {"groups": 2, "causal": False, "window": None}),
        ({"causal": False, "window": 3}, {"groups": 2, "causal": False, "window": None}),
        ({"groups": 1, "causal": "maybe"}, {"groups": 1, "causal": True, "window": 3}),
    ],
)
def test_valid_case_keeps_what_the_constraints_allow(settings, expected):
    spec = spec_from(AXES, ["window is none or causal"], invalid_inputs=table(settings))
    (found,) = invalid_cases(spec)
    case = valid_case(spec, found.case, found.invalid)
    assert case is not None
    assert dict(case.values) == expected
    assert [type(value) for value in case.values.values()] == [
        type(expected[name]) for name in case.values
    ]


def test_ignores_a_constraint_that_the_settings_violate():
    spec = spec_from(
        AXES,
        ["window is none or causal", "groups == 1 or causal"],
        invalid_inputs=table({"causal": False, "window": 3}),
    )
    assert only(spec) == {"groups": 1, "causal": False, "window": 3}


def test_ignores_a_constraint_that_the_settings_make_unsatisfiable():
    spec = spec_from(
        AXES, ["groups > 0 and causal", "window is none"], invalid_inputs=table({"groups": -1})
    )
    assert only(spec) == {"groups": -1, "causal": False, "window": None}


def test_ignores_a_constraint_that_cannot_be_evaluated():
    spec = spec_from(AXES, ["groups < 3"], invalid_inputs=table({"groups": "many"}))
    assert only(spec)["groups"] == "many"


def test_the_same_case_twice_is_an_error_at_the_second():
    spec = spec_of(
        """
        axes: {a: [1], b: [1]}
        invalid_inputs:
          - {one: {a: 0}}
          - {raises: TypeError, messages: {other: [{a: 0, b: 1}]}}
        """
    )
    with pytest.raises(SpecError, match=r"tried.yaml:8:44: two invalid .* same case, a=0-b=1"):
        invalid_cases(spec)


def test_a_case_of_the_matrix_is_an_error():
    spec = spec_from(AXES, invalid_inputs=table({"groups": 1}))
    with pytest.raises(SpecError, match="groups=1-window=3 is a case of the matrix"):
        invalid_cases(spec)
    spec = spec_from(
        AXES, ["groups != 1 or causal"], invalid_inputs=table({"groups": 1, "causal": False})
    )
    assert only(spec)["groups"] == 1


def test_parts_of_a_tensor_have_dotted_names_in_the_case():
    spec = spec_of(
        """
        axes: {a: [1], sink: [none, true]}
        invalid_inputs:
          _ must be float32: {k: {dtype: int8, shape: [2, 3]}}
          sink must: {sink: {value: true, device: meta}}
        """
    )
    first, second = invalid_cases(spec)
    assert dict(first.case.values) == {"a": 1, "k.dtype": "int8", "k.shape": [2, 3], "sink": None}
    assert first.invalid.message == "k must be float32"
    assert first.case.id == "a=1-k.dtype=int8-k.shape=2.3-sink=none"
    assert dict(second.case.values) == {"a": 1, "sink": True, "sink.device": "meta"}


# Known bugs ------------------------------------------------------------------------------------


SPEC = spec_of(
    """
    axes: {head_dim: [64, 256], window: [none, 3]}
    known_bugs:
      - {when: head_dim == 256 and arch == 'sm_80', issue: "#12", expires: 2027-03-01}
      - {when: backend == 'interpreter', issue: "#13", expires: 2027-04-01, mode: quarantine}
      - {when: head_dim == 256, issue: "#14", expires: 2027-05-01}
    """
)


def case(head_dim, window=None):
    return Case("tried", {"head_dim": head_dim, "window": window})


@pytest.mark.parametrize(
    ("head_dim", "arch", "backend", "issue", "mode"),
    [
        (256, "sm_80", "interpreter", "#12", "tolerate"),
        (256, "sm_90", "interpreter", "#13", "quarantine"),
        (64, "sm_80", "interpreter", "#13", "quarantine"),
        (256, "sm_90", "cuda", "#14", "tolerate"),
    ],
)
def test_the_first_entry_that_applies_is_the_known_bug(head_dim, arch, backend, issue, mode):
    bug = known_bug(SPEC, case(head_dim), {"arch": arch, "backend": backend})
    assert (bug.issue, bug.mode) == (issue, mode)


def test_a_case_no_entry_is_about_has_no_known_bug():
    assert known_bug(SPEC, case(64), {"arch": "sm_80", "backend": "cuda"}) is None


def test_an_entry_lasts_to_its_day_and_is_an_error_at_its_date_after_it():
    assert expired(SPEC, date(2027, 3, 1)) == ()
    (issue,) = expired(SPEC, date(2027, 3, 2))
    assert str(issue).startswith("tried.yaml:7:72: the known bug #12 ")
    assert "expired on 2027-03-01" in issue.message
    assert len(expired(SPEC, date(2030, 1, 1))) == 3


def test_today_is_the_default():
    spec = spec_of(
        """
        axes: {a: [1]}
        known_bugs: [{when: a == 1, issue: "#1", expires: 2020-01-01}]
        """
    )
    assert len(expired(spec)) == 1


def test_a_predicate_without_an_answer_is_an_error_at_its_place():
    spec = spec_of(
        """
        axes: {window: [none, 3]}
        known_bugs:
          - {when: window > 2, issue: "#1", expires: 2027-01-01}
        """
    )
    bad = Case("tried", {"window": None})
    with pytest.raises(SpecError, match=r"tried.yaml:7:\d+: 'window > 2' has no .*window=none"):
        known_bug(spec, bad, {"arch": "sm_90", "backend": "cuda"})
    with pytest.raises(SpecError, match="unknown name 'arch'"):
        known_bug(SPEC, case(256), {"backend": "cuda"})


def test_an_entry_without_an_answer_for_bad_values_is_not_about_an_invalid_input():
    spec = spec_of(
        """
        axes: {window: [none, 3]}
        known_bugs:
          - {when: window is not none and window > 2, issue: "#1", expires: 2027-01-01}
        """
    )
    environment = {"arch": "sm_90", "backend": "cuda"}
    assert known_bug(spec, Case("tried", {"window": "wide"}, "invalid"), environment) is None
    assert known_bug(spec, Case("tried", {"window": 3}, "invalid"), environment) is not None
    with pytest.raises(SpecError):
        known_bug(spec, Case("tried", {"window": "wide"}), environment)
