"""Conditions of sizes that exactly the accepted cases satisfy."""

from types import SimpleNamespace

import pytest

from tlmatrix.check.finding import Finding
from tlmatrix.draft.conditions import conditions_of, distinguished
from tlmatrix.draft.text import Draft
from tlmatrix.run.result import Status


def conditions(accepts, cases):
    """The conditions found where the code under test takes the cases that `accepts` says."""
    results = [SimpleNamespace(values=case, status="passed", findings=()) for case in cases]
    return conditions_of(results, ["" if accepts(**case) else "refused" for case in cases])


def cases(*pairs):
    return [{"a": a, "b": b} for a, b in pairs]


@pytest.mark.parametrize(
    ("accepts", "found"),
    [
        (lambda a, b: a == b, "a == b"),
        (lambda a, b: a % b == 0, "a % b == 0"),
        (lambda a, b: a <= b, "a <= b"),
        (lambda a, b: a % 8 == 0, "a % 8 == 0"),
        (lambda a, b: a * b < 40, None),
    ],
)
def test_the_condition_that_exactly_the_accepted_cases_satisfy(accepts, found):
    pairs = [(a, b) for a in (1, 2, 4, 6, 8, 12, 16, 24) for b in (1, 2, 4, 6, 8, 12, 16, 24)]
    assert conditions(accepts, cases(*pairs))[:1] == ([found] if found else [])


def test_no_condition_divides_by_a_size_that_may_be_0():
    def accepts(a, b):
        return b in (3, 6)

    found = conditions(accepts, cases((12, 3), (12, 6), (12, 0), (12, 5), (9, 6), (9, 2)))
    assert not any("% b" in each for each in found)


@pytest.mark.parametrize(
    ("accepts", "found"), [(lambda a, _: a <= 128, []), (lambda a, b: a <= b, ["a <= b"])]
)
def test_a_condition_of_two_axes_is_confirmed_by_another_value_of_the_second(accepts, found):
    """Here `b` is 128 in all cases where `a` alone is varied."""

    def case(draft, values):
        fine = accepts(values["a"], values["b"])
        findings = () if fine else (Finding("entry", "raises ValueError", pattern="ValueError"),)
        status = Status.PASSED if fine else Status.ERROR
        return SimpleNamespace(values=values, status=status, findings=findings, failed=not fine)

    axes = {"a": (1, 128, 129), "b": (1, 31, 128)}
    draft = Draft("x", "", "m:x", factory=False, problem="gemm", axes=axes)
    results = [case(draft, {"a": a, "b": 128}) for a in (128, 1, 129, 256)]
    assert distinguished(draft, "a", results, SimpleNamespace(case=case)) == found


def test_a_size_of_1_confirms_no_condition_of_two_axes():
    """Of it one row passes by chance."""

    def case(draft, values):
        fine = values["cols"] > 1 or values["rows"] == 1
        findings = () if fine else (Finding("numeric", "out is NaN"),)
        status = Status.PASSED if fine else Status.FAILED
        return SimpleNamespace(values=values, status=status, findings=findings, failed=not fine)

    axes = {"rows": (1, 2, 3), "cols": (1, 63, 64)}
    draft = Draft("x", "", "m:x", factory=False, problem="gemm", axes=axes, multiples={"cols": 64})
    results = [case(draft, {"rows": 2, "cols": cols}) for cols in (64, 1, 63)]
    assert distinguished(draft, "cols", results, SimpleNamespace(case=case)) == []
