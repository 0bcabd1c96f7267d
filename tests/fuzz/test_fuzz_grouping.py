"""Which failures are taken for one fault."""

from tlmatrix.check.finding import Finding
from tlmatrix.fuzz.search import FuzzFailure
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.triage.cause import cause_of, lines_of


def _failed(case, *findings, status=Status.FAILED):
    return CaseResult("x", "x.yaml", case, status, key=f"x:{case}", findings=findings)


def _found(result):
    return FuzzFailure(cause_of(result), result, result)


def test_a_line_that_sanitizers_blame_for_two_things_is_one_fault():
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
    assert _found(beyond).same_fault(_found(race))
    assert not _found(beyond).same_fault(_found(other))


def test_the_worst_of_some_gradients_makes_no_other_fault_and_another_place_does():
    dq, dk = (_failed(name, Finding("gradients", f"{name}: off", name)) for name in ("dq", "dk"))
    assert cause_of(dq) == cause_of(dk)
    tail = _failed("t", Finding("numeric", "out: off", "out", pattern="last tile of a sequence"))
    rows = _failed("r", Finding("numeric", "out: off", "out", pattern="rows"))
    assert cause_of(tail) != cause_of(rows)


def test_exceptions_that_differ_in_numbers_are_one_fault():
    errors = [
        _failed(str(n), Finding("entry", f"raises ValueError: {n} rows"), status=Status.ERROR)
        for n in (3, 70)
    ]
    assert cause_of(errors[0]) == cause_of(errors[1])


def test_what_makes_no_run_fail_has_no_cause():
    known = _failed("a", Finding("numeric", "out: off", "out"), status=Status.KNOWN_BUG)
    assert cause_of(known) is None
