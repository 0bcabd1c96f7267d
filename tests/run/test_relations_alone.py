"""Relations of a spec find bugs without a reference, and report no false positives."""

from pathlib import Path

import pytest

from spec_results import results_of
from tlmatrix.run import Status
from tlmatrix.run.plan import plan
from tlmatrix.spec import SpecError, parse_spec

PATH = Path(__file__).parent / "related.yaml"
NORM = """
name: norm
problem:
  inputs:
    x: {shape: [rows, cols], dtype: $dtype, grad: true}
    w: {shape: [cols], dtype: $dtype, grad: true, fill: constant_rows}
  outputs: {y: {shape: [rows, cols]}}
entry: related:normalise
axes: {rows: [1, 2, 7, 9], cols: [1, 40], dtype: [float32, float16], values: [normal], how: [HOW]}
tiers: {quick: product}
relations: RELATIONS
"""
FEW = NORM.replace("[1, 2, 7, 9]", "[2, 9]").replace("[float32, float16]", "[float32]")
CLIP = """
name: clip
problem:
  inputs: {x: {shape: [rows, 5], dtype: float16}}
  outputs: {y: {shape: [rows, 5], dims: [line, place]}}
entry: related:clip
axes: {rows: [8], values: [large], how: [HOW]}
relations: RELATIONS
"""


def filled(text, how, relations):
    return text.replace("HOW", how).replace("RELATIONS", relations)


def found(text, how, relations):
    """Findings of all cases of the quick tier, and the results."""
    results = results_of(filled(text, how, relations), PATH)
    return [finding for result in results for finding in result.findings], results


ALL = """
  - permute: rows
  - split: rows
  - {scale: {x: 4}, when: "rows > 0"}
  - {scale: {w: 2}, gives: {y: 2}}
  - finite
  - related:signs_cancel
  - related:unit_rows
"""


def test_a_correct_entry_without_a_reference_passes():
    findings, results = found(NORM, "right", ALL)
    assert [each.title for each in findings] == []
    assert len(results) == 16
    assert {result.status for result in results} == {Status.PASSED}


@pytest.mark.parametrize(
    ("how", "relation", "words"),
    [
        ("tail", "{permute: rows}", "rows_permuted: y: "),
        ("tail", "{split: rows}", "rows_split: y: "),
        ("absolute", "{scale: {x: 4}}", "scaled: y: "),
        ("neighbour", "{split: rows}", "rows_split: y: "),
        ("neighbour", "related:unit_rows", "unit_rows: y: "),
        ("gradient", "{permute: rows}", "rows_permuted: dx: "),
        ("gradient", "{split: rows}", "rows_split: dx: "),
        ("nan", "finite", "finite: y: "),
    ],
)
def test_a_relation_alone_detects_a_mutant(how, relation, words):
    findings, _ = found(FEW, how, f"[{relation}]")
    told = [each.title for each in findings]
    # Equal findings of several results are merged; the detail names the others.
    relation, _, tensor = words.partition(": ")
    assert any(
        title.startswith(words) or (title.startswith(relation) and f"{tensor}" in str(each.detail))
        for title, each in zip(told, findings, strict=True)
    ), told
    assert all(each.check == "relations" for each in findings), findings


def test_a_finding_names_the_worst_element_by_dimensions():
    (finding, *_), _ = found(FEW, "tail", "[{permute: rows, because: rows are apart}]")
    assert set(finding.index) == {"rows", "cols"}
    assert finding.detail.startswith("rows are apart")


def test_an_output_that_aliases_an_input():
    assert found(CLIP, "right", "[{idempotent: {x: y}, exact: true}]")[0] == []
    findings, _ = found(CLIP, "drops", "[{idempotent: {x: y}, exact: true}]")
    # 0.5 stays 0.5: the relation does not detect a bug that is the same in both calls.
    assert not findings
    findings, _ = found(CLIP, "drops", "[{scale: {x: 0.0625}, gives: {y: 0.0625}}]")
    assert findings[0].title.startswith("scaled: y: ")
    assert set(findings[0].index) == {"line", "place"}


def test_an_output_with_the_dimension_twice_is_permuted_and_not_split():
    gram = """
name: gram
problem:
  inputs: {x: {shape: [rows, 5], dtype: float32}}
  outputs: {y: {shape: [rows, rows]}}
entry: related:gram
axes: {rows: [2, 7], values: [normal]}
relations: [{permute: rows}, {split: rows}]
"""
    findings, results = found(gram, "", "")
    assert [each.title for each in findings] == []
    assert {result.status for result in results} == {Status.PASSED}


def test_a_condition_of_the_spec_limits_a_relation():
    findings, _ = found(FEW, "tail", "[{permute: rows, when: rows < 3}]")
    assert findings == []


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        ("related:forgetful", "must return two mappings"),
        ("related:misnamed", "no input 'z'; did you mean"),
        ("related:broken", "related:broken raised KeyError: 'nothing'"),
        ("related:nowhere", "related has no 'nowhere'"),
        ("norelated:any", "no module 'norelated'"),
    ],
)
def test_an_invalid_relation_is_an_error_at_its_location(relation, words):
    findings, results = found(FEW, "right", f"[{relation}]")
    assert {result.status for result in results} == {Status.ERROR}
    assert words in findings[0].title.replace(" known:", " did you mean")
    assert "related.yaml:11:13: " in findings[0].title


def test_uninitialized_memory_is_found_without_a_reference():
    text = """
name: unwritten
problem:
  inputs: {x: {shape: [rows], dtype: float32}}
  outputs: {y: {shape: [rows]}}
factory: half_written:half_written
call: [x, y]
returns: [y]
axes: {rows: [4]}
relations: [{permute: rows}]
checks: [poison, relations]
"""
    (result,) = results_of(text, PATH)
    first = result.findings[0]
    assert (first.check, first.wrong) == ("poison", 2)
    assert "never written" in first.title


GEMM = """
name: product
problem: gemm
entry: related_product:product
axes: {dtype: [float32], m: [5], n: [4], k: [6], values: [normal], transpose_a: [false, true],
       transpose_b: [false, true], how: [HOW]}
relations: RELATIONS
checks: [relations]
"""


def test_relations_of_the_problem_are_selected_by_name():
    findings, _ = found(GEMM, "late_rows", "[]")
    assert {each.title.partition(":")[0] for each in findings} == {"rows_permuted", "transposed"}
    findings, _ = found(GEMM, "late_rows", "[transposed]")
    assert {each.title.partition(":")[0] for each in findings} == {"transposed"}
    # A relation of the spec does not deselect those of the problem.
    findings, _ = found(GEMM, "late_rows", "[{scale: {a: 2}, gives: {c: 2}}]")
    assert {each.title.partition(":")[0] for each in findings} == {"rows_permuted", "transposed"}
    findings, _ = found(GEMM, "offset", "[{scale: {a: 2}, gives: {c: 2}}]")
    assert "scaled" in {each.title.partition(":")[0] for each in findings}


@pytest.mark.parametrize(
    ("text", "relation", "words"),
    [
        (NORM, "{permute: cols, split: rows}", "11:13: a relation needs exactly one of"),
        (NORM, "{because: so}", "11:13: a relation needs exactly one of"),
        (NORM, "{permute: row}", "11:23: unknown dimension 'row'; did you mean 'rows'?"),
        (NORM, "{scale: {z: 2}}", "11:22: unknown input 'z'. Inputs: x, w"),
        (NORM, "{scale: {x: 2}, gives: {w: 2}}", "unknown output 'w'. Outputs: y"),
        (NORM, "{permute: rows, gives: {y: 2}}", "'gives' needs 'scale'"),
        (NORM, "{idempotent: {x: z}}", "unknown output 'z'"),
        (NORM, "finit", "11:13: unknown relation 'finit'; did you mean 'finite'?"),
        (NORM, "'related:'", "must be written package.module:name"),
        (NORM, "{permute: rows, when: row > 1}", "unknown name 'row'"),
        (GEMM, "transpose", "unknown relation 'transpose'; did you mean 'transposed'?"),
        (GEMM, "{permute: m}", "'permute' needs a problem declared in the spec"),
    ],
)
def test_an_error_in_a_relation_has_its_location(text, relation, words):
    with pytest.raises(SpecError) as caught:
        plan(parse_spec(filled(text, "right", f"[{relation}]"), PATH))
    assert words in str(caught.value)


def test_without_a_reference_outputs_need_shapes_and_a_relation():
    for old, new, words in (
        ("{y: {shape: [rows, cols]}}", "[y]", "7:12: without a reference, outputs need shapes"),
        (
            "{y: {shape: [rows, cols]}}",
            "{y: {}}",
            "7:13: without a reference, the output 'y' needs",
        ),
        ("relations: RELATIONS", "", "3:1: the key 'reference' is missing"),
        ("relations: R", "checks: [guards]\nrelations: R", "'relations' has no effect"),
    ):
        with pytest.raises(SpecError) as caught:
            parse_spec(filled(NORM.replace(old, new), "right", "[finite]"), PATH)
        assert words in str(caught.value)
