"""Causes of failures, and which failures fuzzing and reports count as one fault."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from tlmatrix.check.finding import KEEPS_STATE, Finding
from tlmatrix.matrix import Case
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.triage.cause import Cause, cause_of, known_fault, lines_of, same_fault
from tlmatrix.triage.groups import group_failures

_SPEC = SimpleNamespace(axes={"causal": (False, True), "dtype": ("float32", "float16")})


_PLAIN = {"causal": False, "dtype": "float32"}
_CAUSAL = {"causal": True, "dtype": "float32"}
_HALF = {"causal": False, "dtype": "float16"}


def _failed(case, *findings, status=Status.FAILED, **values):
    values = {**_PLAIN, **values}
    return CaseResult(
        "x", "x.yaml", case, status, key=f"x:{case}", values=values, findings=findings
    )


def test_two_sanitizer_reports_on_one_line_are_one_fault():
    beyond = _failed(
        "a", Finding("sanitizers", "sequences: write of out[1]", source="k.py:83", kernel="k")
    )
    race = _failed(
        "b",
        Finding("sanitizers", "races: out[1] is written by two blocks", source="k.py:100",
                kernel="k", against="a write by block (0, 0) at k.py:83"),
    )  # fmt: skip
    other = _failed("c", Finding("sanitizers", "races: lse[1]", source="k.py:7", kernel="k"))
    assert lines_of(race) == {"k.py:83", "k.py:100"}
    assert same_fault(beyond, race)
    assert not same_fault(beyond, other)


def test_a_known_bug_has_no_cause():
    known = _failed("a", Finding("numeric", "out: off", "out"), status=Status.KNOWN_BUG)
    assert cause_of(known) is None


# Fuzzing and reports ---------------------------------------------------------------------------


def _numeric(case, pattern="rows", tensor="out", **values):
    return _failed(case, Finding("numeric", "off", tensor, pattern=pattern), **values)


def _later(case, check="repeat", pattern="rows", detail=None, **values):
    return _failed(case, Finding(check, "off", "out", pattern=pattern, detail=detail), **values)


def _ended(case, title, source, **values):
    finding = Finding("determinism", title, source=source, kernel="k", pattern=f"races at {source}")
    return _failed(case, finding, **values)


def _gradient(case, tensor, **values):
    return _failed(case, Finding("gradients", "off", tensor, pattern="rows"), **values)


def _raised(case, title, **values):
    return _failed(case, Finding("entry", title), status=Status.ERROR, **values)


def _sanitized(case, title, source, kernel="k", **values):
    return _failed(case, Finding("sanitizers", title, source=source, kernel=kernel), **values)


def _guards(case, tensor, pattern, **values):
    return _failed(case, Finding("guards", "off", tensor, pattern=pattern), **values)


def _refusal(case, pattern, **values):
    return _failed(case, Finding("rejects", "off", pattern=pattern), **values)


def _passed(case, **values):
    return _failed(case, status=Status.PASSED, **values)


_PASSED = tuple(_passed(f"p{n}", n=n) for n in range(4))


@dataclass(frozen=True)
class _Fault:
    smallest: CaseResult
    all_causes: frozenset[Cause]


def _faults_of_fuzzing(failures):
    """The faults of a search that shrinks nothing, as lists of cases."""
    faults, cases = [], []
    for result in failures:
        index = known_fault(_SPEC, Case("x", result.values, "fuzz"), result, faults)
        if index is None:
            faults.append(_Fault(result, frozenset({cause_of(result)})))
            cases.append([result.case])
        else:
            cases[index].append(result.case)
    return sorted(cases)


@pytest.mark.parametrize(
    ("failures", "faults"),
    [
        ([_numeric("a"), _numeric("b")], 1),
        ([_numeric("a", **_CAUSAL), _numeric("b", **_CAUSAL)], 1),
        ([_numeric("a"), _numeric("b", "last tile of a sequence")], 2),
        ([_numeric("a"), _numeric("b", tensor="lse")], 2),
        ([_gradient("a", "dq"), _gradient("b", "dk")], 1),
        ([_raised("a", "raises E: 3 rows"), _raised("b", "raises E: 70 rows")], 1),
        ([_raised("a", "raises E: rows"), _raised("b", "raises E: keys")], 2),
        ([_raised("a", "raises E: float16 q"), _raised("b", "raises E: bfloat16 q")], 1),
        ([_raised("a", "raises E: int32 q"), _raised("b", "raises E: int32 k")], 2),
        ([_numeric("a"), _later("b")], 1),
        ([_numeric("a"), _later("b", pattern="last tile")], 2),
        ([_numeric("a"), _later("b", detail=f"out returned again: {KEEPS_STATE}")], 2),
        ([_numeric("a"), _later("b", "determinism")], 2),
        ([_sanitized("a", "races: q", "k.py:3"), _ended("b", "call 2: races: q", "k.py:3")], 1),
        ([_sanitized("a", "races: q", "k.py:3"), _ended("b", "call 2: races: q", "k.py:8")], 2),
        ([_failed("a", status=Status.CRASHED), _failed("b", status=Status.CRASHED)], 1),
        ([_failed("a", status=Status.CRASHED), _failed("b", status=Status.TIMEOUT)], 2),
        ([_sanitized("a", "races: q", "k.py:3"), _sanitized("b", "bounds: q", "k.py:3")], 1),
        ([_sanitized("a", "races: q", "k.py:3"), _sanitized("b", "races: v", "k.py:8")], 1),
        ([_sanitized("a", "races: q", "k.py:3"), _sanitized("b", "races: q", "k.py:8", "m")], 2),
        ([_guards("a", "out", "past the end"), _guards("b", "out", "before the start")], 1),
        ([_guards("a", "out", "past the end"), _guards("b", "lse", "past the end")], 2),
        ([_refusal("a", "accepted"), _refusal("b", "another exception")], 2),
        ([_refusal("a", "accepted"), _refusal("b", "accepted")], 1),
    ],
)  # fmt: skip
def test_fuzzing_and_reports_find_the_same_faults(failures, faults):
    fuzzed = _faults_of_fuzzing(failures)
    groups = group_failures([*failures, *_PASSED])
    assert fuzzed == sorted([item.case for item in group.results] for group in groups)
    assert len(fuzzed) == faults


def test_fuzzing_and_reports_separate_wrong_numbers_by_values():
    failures = [
        _numeric("a", **_CAUSAL),
        _numeric("b", **_CAUSAL),
        _numeric("c", **_CAUSAL),
        _numeric("d", "everything", **_HALF),
        _numeric("e", "everything", **_HALF),
    ]
    groups = group_failures([*failures, *_PASSED])
    assert [[item.case for item in group.results] for group in groups] == [
        ["a", "b", "c"], ["d", "e"],
    ]  # fmt: skip
    assert _faults_of_fuzzing(failures) == [["a", "b", "c"], ["d", "e"]]


def test_fuzzing_separates_three_faults_of_one_cause_at_most():
    dtypes = ("bfloat16", "float16", "float64", "e4m3")
    failures = [_numeric(dtype, dtype=dtype) for dtype in dtypes]
    assert _faults_of_fuzzing(failures) == [["bfloat16", "e4m3"], ["float16"], ["float64"]]


_BRAIN = {"causal": False, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (_numeric("a", n=5, **_HALF), _numeric("b", n=7, **_BRAIN), True),
        (_numeric("a", n=5, **_HALF), _later("b", n=7, **_BRAIN), True),
        (_numeric("a", n=5, **_HALF), _numeric("b", "everything", n=5, **_BRAIN), False),
        (_numeric("a", n=5, **_HALF), _numeric("b", tensor="lse", n=5, **_BRAIN), False),
        (_numeric("a", n=5, **_HALF), _numeric("b", n=5, dtype="bfloat16", causal=True), False),
        (_numeric("a", n=5, **_HALF), _numeric("b", n=7, **_HALF), False),
    ],
)
def test_smallest_cases_that_differ_in_the_dtype_alone_are_one_fault(one, two, same):
    assert same_fault(one, two) is same


@pytest.mark.parametrize(("pattern", "groups"), [("rows", 1), ("everything", 2)])
def test_reports_do_not_separate_one_fault_by_dtype(pattern, groups):
    """Every float16 case fails, which is evidence by itself, and one of bfloat16."""
    results = [
        _numeric("a", n=5, **_HALF),
        _numeric("b", n=9, **_HALF),
        _numeric("c", pattern, n=9, **_BRAIN),
        _passed("d", n=5, **_BRAIN),
        _passed("e", n=8, **_BRAIN),
        _passed("f", n=9, **_PLAIN),
    ]
    found = group_failures(results)
    assert len(found) == groups
    assert sum(len(group.results) for group in found) == 3
