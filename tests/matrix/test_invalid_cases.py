import pytest
from spec_text import spec_from, spec_of

from tlmatrix.matrix import invalid_cases
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
