"""Groups of failing cases, the evidence for them, and how reports print them."""

from dataclasses import replace

import pytest

from tlmatrix.check import Finding
from tlmatrix.report import describe_finding, describe_group, describe_result, group_failures
from tlmatrix.run import CaseResult, Status


def _result(
    number,
    status=Status.FAILED,
    *,
    path="x.yaml",
    tensor="out",
    pattern="a row",
    **values,
):
    findings = (Finding(check="numeric", title="off", tensor=tensor, pattern=pattern),)
    return CaseResult(
        spec=path.removesuffix(".yaml"),
        path=path,
        case=f"n={number}",
        status=status,
        values={"n": number, **values},
        findings=findings if status is Status.FAILED else (),
    )


def _error(number, title, **values):
    finding = Finding(check="entry", title=title, pattern="ValueError")
    return replace(_result(number, Status.ERROR, **values), findings=(finding,))


def _cases(groups):
    return [[item.case for item in group.results] for group in groups]


def _text(group, width=80):
    return " ".join(" ".join(describe_group(group, width=width)).split())


# One group -------------------------------------------------------------------------------------


def test_wrong_numbers_that_share_a_value_of_no_passing_case_are_one_group():
    (group,) = group_failures(
        [
            _result(1, causal=True, window=1, pattern="everything"),
            _result(2, causal=True, window=63, tensor="lse"),
            _result(3, causal=True, window=63, tensor="dq"),
            _result(4, Status.PASSED, causal=False, window=63),
            _result(5, Status.PASSED, causal=False, window=1),
        ]
    )
    assert len(group.results) == 3
    assert group.evidence.shared == ("causal=true",)
    text = _text(group)
    assert "x: failed in 3 cases all have causal=true; no case with that passed" in text
    assert "other patterns, with a selection of one case each: 2 cases a row -k 'n=2'" in text


def test_two_shared_values_are_evidence_together():
    (group,) = group_failures(
        [
            _result(1, causal=True, window=63, dtype="float16"),
            _result(2, causal=True, window=63, dtype="float16", pattern="everything"),
            _result(3, Status.PASSED, causal=True, window=None, dtype="float16"),
            _result(4, Status.PASSED, causal=False, window=63, dtype="float16"),
        ]
    )
    assert group.evidence.shared == ("causal=true", "window=63")
    assert group.evidence.passing == 0


def test_a_value_that_only_passing_cases_have_is_evidence():
    empty = {"lengths": {"q": [0, 5], "k": [7, 0]}}
    (group,) = group_failures(
        [
            _result(1, causal=True, lengths={"q": [3]}),
            _result(2, causal=True, lengths={"q": [4]}, pattern="everything"),
            _result(3, causal=True, lengths={"q": [4]}, pattern="scattered"),
            _result(4, Status.PASSED, causal=True, **empty),
            _result(5, Status.PASSED, causal=True, **empty),
            _result(6, Status.PASSED, causal=False, lengths={"q": [3]}),
        ]
    )
    words = "all have causal=true; 2 cases with that passed, only with lengths=q0.5_k7.0"
    assert words in _text(group)


def test_an_axis_with_other_values_in_failing_cases_is_evidence():
    (group,) = group_failures(
        [
            _result(1, window=63, causal=True),
            _result(2, window=1, causal=False, pattern="everything"),
            _result(3, window=1, causal=True),
            _result(4, Status.PASSED, window=None, causal=True),
            _result(5, Status.PASSED, window=None, causal=False),
            _result(6, Status.PASSED, window=None, causal=False),
        ]
    )
    assert group.evidence.shared == ("window=1 or 63",)


def test_a_spec_without_passing_cases_is_one_group():
    (group,) = group_failures([_result(1), _result(2, pattern="everything")])
    assert "no case of this spec passed" in _text(group)


def test_patterns_without_evidence_are_separate_groups():
    groups = group_failures(
        [
            _result(1, causal=True),
            _result(2, causal=False),
            _result(3, causal=False, pattern="everything"),
            _result(4, Status.PASSED, causal=True),
            _result(5, Status.PASSED, causal=False),
        ]
    )
    assert _cases(groups) == [["n=1", "n=2"], ["n=3"]]


def test_evidence_separates_two_faults():
    groups = group_failures(
        [
            *(_result(n, causal=True, pattern=f"pattern {n}", dtype="float16") for n in (1, 2, 3)),
            _result(4, causal=False, dtype="float16"),
            _result(5, Status.PASSED, causal=False, dtype="float16"),
            _result(6, Status.PASSED, causal=False, dtype="float32"),
        ]
    )
    assert _cases(groups) == [["n=1", "n=2", "n=3"], ["n=4"]]


# Separate groups -------------------------------------------------------------------------------


def test_specs_statuses_and_checks_are_separate_groups():
    guards = Finding(check="guards", title="wrote past the end", tensor="out")
    groups = group_failures(
        [
            _result(1, causal=True),
            _result(2, causal=True),
            _result(3, Status.PASSED, causal=False),
            _result(4, Status.CRASHED, causal=True),
            replace(_result(5, causal=True), findings=(guards,)),
            _result(6, path="y.yaml"),
        ]
    )
    assert _cases(groups) == [["n=1", "n=2"], ["n=4"], ["n=5"], ["n=6"]]


def test_exceptions_are_one_group_by_type_and_first_line():
    groups = group_failures(
        [
            _error(1, "raises ValueError: q has 65 rows"),
            _error(2, "raises ValueError: q has 129 rows"),
            _error(3, "raises ValueError: no kernel for this"),
            _error(4, "raises TypeError: q has 65 rows"),
        ]
    )
    assert _cases(groups) == [["n=1", "n=2"], ["n=3"], ["n=4"]]


def test_passing_cases_with_the_shared_values_are_counted():
    (group,) = group_failures(
        [
            _result(1, causal=True),
            _result(2, causal=True),
            _result(3, Status.PASSED, causal=True),
            _result(4, Status.PASSED, causal=True),
            _result(5, Status.PASSED, causal=False),
        ]
    )
    assert "all have causal=true; 2 cases with that passed" in _text(group)


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.QUARANTINED, Status.KNOWN_BUG])
def test_a_case_that_did_not_run_is_not_passing(status):
    (group,) = group_failures(
        [
            _result(1, causal=True),
            _result(2, causal=True),
            _result(3, status, causal=True),
            _result(4, Status.PASSED, causal=False),
        ]
    )
    assert group.evidence.passing == 0


def test_a_refused_invalid_input_is_no_evidence():
    (group,) = group_failures(
        [
            _result(1, causal=True),
            _result(2, causal=True),
            replace(_result(3, Status.PASSED, causal=True), origin="invalid"),
            _result(4, Status.PASSED, causal=False),
        ]
    )
    assert group.evidence.passing == 0


def test_a_single_case_has_no_shared_values():
    (group,) = group_failures([_result(1, causal=True), _result(2, Status.PASSED, causal=False)])
    assert group.evidence.shared == ()
    assert "all have" not in _text(group)


# Output ----------------------------------------------------------------------------------------


def test_the_smallest_case_is_the_example_in_any_order():
    results = [
        replace(_result(number), elements=elements)
        for number, elements in ((12, 300), (3, 200), (7, 200))
    ]
    assert group_failures(results)[0].example.case == "n=3"
    assert group_failures(results[::-1])[0].example.case == "n=3"


def test_the_selection_of_a_pattern_matches_one_case():
    (group,) = group_failures(
        [
            replace(_result(number, status, pattern=pattern), values={"m": m, "k": k})
            for number, (status, pattern, m, k) in enumerate(
                [
                    (Status.FAILED, "a row", 1, 1),
                    (Status.FAILED, "everything", 2, 1),
                    (Status.PASSED, "", 2, 2),
                    (Status.PASSED, "", 3, 2),
                ]
            )
        ]
    )
    assert [pattern.select for pattern in group.others] == ["m=2 and k=1"]


def test_text_is_wrapped_and_commands_are_not():
    long = {f"axis_{number}": "value" for number in range(12)}
    groups = group_failures(
        [
            _result(1, causal=True, pattern="first rows", **long),
            _result(2, causal=True, pattern="everything", **long),
            _result(3, Status.PASSED, causal=False, **long),
        ]
    )
    lines = describe_group(groups[0], width=60)
    assert all(len(line) <= 60 or line.startswith("  repro ") for line in lines)
    assert sum("tlmatrix repro" in line for line in lines) == 1


def test_the_command_of_a_result_is_not_wrapped():
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


@pytest.mark.parametrize(
    ("expected", "got", "text"),
    [
        (0.1, 0.1 + 2**-30, "expected 0.1, got 0.100000001"),
        (0.5, 0.25, "expected 0.5, got 0.25"),
        (1.0, float("-inf"), "expected 1, got -inf"),
        (0.5, 0.5, "expected 0.5, got 0.5"),
    ],
)
def test_values_have_enough_digits_to_differ(expected, got, text):
    finding = Finding(check="isolation", title="out: differs", expected=expected, got=got)
    assert any(text in line for line in describe_finding(finding))


def test_the_example_is_wrong_in_a_single_run_if_possible():
    small = _result(1)
    repeated = replace(small, findings=(replace(small.findings[0], check="repeat"),))
    (group,) = group_failures([repeated, _result(2), _result(3)])
    assert group.example.case == "n=2"
