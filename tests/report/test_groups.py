"""Failures that a person would call the same are told once, with what the cases share."""

from __future__ import annotations

from tlmatrix.check import Finding
from tlmatrix.report import describe_result, group_failures
from tlmatrix.run import CaseResult, Status


def _result(
    number: int,
    status: Status = Status.FAILED,
    *,
    path: str = "x.yaml",
    tensor: str = "out",
    pattern: str = "a row",
    **values: object,
) -> CaseResult:
    findings = (Finding(check="numeric", title="off", tensor=tensor, pattern=pattern),)
    return CaseResult(
        spec=path.removesuffix(".yaml"),
        path=path,
        case=f"n={number}",
        status=status,
        values={"n": number, **values},
        findings=findings if status is Status.FAILED else (),
    )


def test_the_same_cause_is_one_group_and_the_largest_comes_first() -> None:
    groups = group_failures(
        [
            _result(1, tensor="dq"),
            _result(2),
            _result(3, Status.PASSED),
            _result(4),
            _result(5, path="y.yaml"),
            _result(6, pattern="everything"),
            _result(7, Status.CRASHED),
        ]
    )
    assert [[item.case for item in group.results] for group in groups] == [
        ["n=2", "n=4"],
        ["n=1"],
        ["n=6"],
        ["n=7"],
        ["n=5"],
    ]


def test_what_failing_cases_share_is_what_others_do_not_have() -> None:
    (group,) = group_failures(
        [
            _result(1, causal=True, window=63, dtype="float16"),
            _result(2, causal=True, window=63, dtype="float16"),
            _result(3, Status.PASSED, causal=True, window=None, dtype="float16"),
            _result(4, Status.PASSED, causal=False, window=63, dtype="float16"),
        ]
    )
    assert group.shared == ("causal=true", "window=63")
    assert group.passing == 0


def test_cases_that_passed_with_all_that_is_shared_are_counted() -> None:
    (group,) = group_failures(
        [
            _result(1, causal=True),
            _result(2, causal=True),
            _result(3, Status.PASSED, causal=True),
            _result(4, Status.PASSED, causal=False),
        ]
    )
    assert group.shared == ("causal=true",)
    assert group.passing == 1


def test_one_case_shares_nothing_worth_telling() -> None:
    (group,) = group_failures([_result(1, causal=True), _result(2, Status.PASSED, causal=False)])
    assert group.shared == ()


def test_the_example_does_not_depend_on_the_order_of_workers() -> None:
    results = [_result(number) for number in (12, 3, 7)]
    assert group_failures(results)[0].example == group_failures(results[::-1])[0].example


def test_a_result_is_told_with_its_command_unbroken() -> None:
    result = CaseResult(
        spec="x",
        path="specs/x.yaml",
        case="-".join(f"axis_{number}=value" for number in range(20)),
        status=Status.FAILED,
        findings=(
            Finding(
                check="numeric",
                title="out: wrong " * 20,
                tensor="out",
                index={"sequence": 1, "position": 17},
                expected=0.25,
                got=float("nan"),
                ratio=float("inf"),
                wrong=3,
                total=300,
                pattern="a row",
                where="rows 3-17 of sequence 1",
                hint="the mask",
            ),
            Finding(check="gradients", title="dq: wrong"),
        ),
    )
    lines = describe_result(result, width=60, brief=True)
    assert lines[-1].split(maxsplit=1)[1] == f"tlmatrix repro 'specs/x.yaml::{result.case}'"
    assert all(len(line) <= 60 for line in lines[:-1])
    text = " ".join(" ".join(lines).split())
    assert "worst at out at sequence 1, position 17" in text
    assert "expected 0.25, got nan" in text
    assert "inf times the allowance; 3 of 300 elements wrong (1 %); a row" in text
    assert "also gradients: dq: wrong" in text
