"""Agreements between implementations; a finding names both sides and the wrong one."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.backend.backends import InterpreterBackend
from tlmatrix.run import Status
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner, run_case
from tlmatrix.spec import SpecError, load_spec, parse_spec
from tlmatrix.spec.model.spec import Agreement

HERE = Path(__file__).parent
PRODUCT = """
name: product
problem: gemm
entry: agreeing:product
axes:
  dtype: [float32]
  m: [5]
  n: [4]
  k: [8, 10]
  transpose_a: [false]
  transpose_b: [false]
  variant: [VARIANTS]
  values: [normal]
tiers: {quick: product}
checks: [CHECKS]
agree: AGREE
"""
STAGES = """
name: stages
problem:
  inputs: {x: {shape: [rows, 64], dtype: float32}}
  outputs: {y: {shape: [rows, 64], dims: [row, column]}}
  reference: agreeing:twice
factory: agreeing:scaled
factory_args: {num_stages: 0}
call: [x]
returns: [y]
axes: {rows: [8, 24]}
checks: [agreement]
agree: AGREE
"""


def made(text, agree, variants="whole", checks="numeric, agreement"):
    text = text.replace("AGREE", agree).replace("VARIANTS", variants).replace("CHECKS", checks)
    return parse_spec(text, HERE / "agreeing.yaml")


def found(spec):
    """Findings by the case's k, or its rows, and the results."""
    results = [run_case(spec, case, "interpreter") for case in plan(spec).expansion]
    axis = "k" if "k" in spec.axes else "rows"
    return {result.values[axis]: list(result.findings) for result in results}, results


def test_variants_with_another_summation_order_agree_within_both_error_bounds():
    for agree in ("[{set: {variant: chunks}}]", "[{entry: agreeing:other}]"):
        findings, results = found(made(PRODUCT, agree))
        assert findings == {8: [], 10: []}
        assert all(result.phases["agreement"] > 0 for result in results)


def test_a_variant_without_its_tail_is_a_finding_that_names_both_sides():
    findings, results = found(made(PRODUCT, "[{set: {variant: tail}, because: one sum}]"))
    assert findings[8] == []
    finding = findings[10][0]
    assert finding.check == "agreement"
    assert finding.title.startswith("variant=tail: c: largest error ")
    assert finding.title.endswith("against variant=whole")
    assert finding.index["m"] == 4
    assert finding.where == "row 4"
    lines = finding.detail.splitlines()
    assert lines[0] == "one sum"
    # The reference says which of the two is wrong.
    mine, theirs = (
        float(part.split()[-1]) for part in lines[1].split("error / bound: ")[1].split(", ")
    )
    assert mine < 1 < theirs
    failed = next(result for result in results if result.findings)
    command = f"tlmatrix repro '{HERE}/agreeing.yaml::{failed.case}'"
    assert failed.command == f"{command} --backend interpreter"


def test_the_other_value_of_an_axis_is_the_same_for_the_same_kernels():
    spec = made(PRODUCT, "[{axis: variant}]", "whole, chunks, tail", "agreement")
    findings, results = found(spec)
    for result in results:
        others = {each.title.partition(":")[0] for each in result.findings}
        assert others <= {f"variant={v}" for v in ("whole", "chunks", "tail")}
        assert f"variant={result.values['variant']}" not in others
    assert findings[8] == []
    # A case that is wrong itself differs from whatever it is compared with.
    tail = [r for r in results if r.values["variant"] == "tail" and r.values["k"] == 10]
    assert [result.status for result in tail] == [Status.FAILED]
    again = [each.title for result in found(spec)[1] for each in result.findings]
    assert again == [each.title for result in results for each in result.findings]


def test_an_argument_that_is_not_an_axis_with_bitwise_agreement():
    agree = "[{set: {chunk: 5}, exact: true, when: variant == 'chunks'}]"
    findings, _ = found(made(PRODUCT, agree, "chunks"))
    assert findings[8]  # 4 + 4 and 5 + 3: other roundings
    assert "must be bit for bit equal" in findings[8][0].title
    assert findings[8][0].title.endswith("against chunk unchanged")
    assert found(made(PRODUCT, agree.replace("5", "4"), "chunks"))[0] == {8: [], 10: []}


def test_stages_of_a_factory_agree_bitwise():
    assert found(made(STAGES, "[{factory_args: {num_stages: 2}, exact: true}]"))[0] == {
        8: [],
        24: [],
    }
    findings, _ = found(made(STAGES, "[{factory_args: {num_stages: 3}, exact: true}]"))
    for each in findings.values():
        assert each[0].title.startswith("num_stages=3: y: ")
        assert each[0].title.endswith("against num_stages=0")
        assert each[0].index["column"] < 16


def test_a_factory_agrees_with_a_plain_function():
    assert found(made(STAGES, "[{entry: agreeing:twice}]"))[0] == {8: [], 24: []}


def test_agreement_needs_no_reference():
    text = STAGES.replace("  reference: agreeing:twice\n", "")
    assert found(made(text, "[{entry: agreeing:twice}]"))[0] == {8: [], 24: []}
    findings, _ = found(
        made(text.replace("num_stages: 0", "num_stages: 3"), "[{entry: agreeing:twice}]")
    )
    assert findings[8][0].title.startswith("agreeing:twice: y: ")


def test_an_exception_of_the_other_side_is_a_finding_unless_it_is_unsupported():
    findings, _ = found(made(PRODUCT, "[{set: {variant: raises}}]"))
    assert findings[8][0].title == "variant=raises: raised EntryError: RuntimeError: no such kernel"
    assert found(made(PRODUCT, "[{set: {variant: unsupported}}]"))[0] == {8: [], 10: []}


def test_agreement_is_not_checked_after_wrong_numbers():
    findings, _ = found(made(PRODUCT, "[{set: {variant: whole}}]", "tail"))
    assert [each.check for each in findings[10]] == ["numeric"]
    assert "agreement: wrong values make them fail too" in findings[10][0].detail


@pytest.mark.parametrize(
    ("agree", "variants"),
    [
        ("[{set: {variant: whole}}]", "whole"),  # the same
        ("[{backend: interpreter}]", "whole"),  # the same
        ("[{set: {variant: tail}, when: k == 7}]", "whole"),
        ("[{set: {variant: tail}}]\nconstraints: [variant == 'whole']", "whole"),
        ("[{axis: variant}]\nconstraints: [variant == 'whole']", "whole, tail"),
    ],
)
def test_a_case_without_another_side_compares_nothing(agree, variants):
    spec = made(PRODUCT, agree, variants)
    findings, results = found(spec)
    assert findings == {8: [], 10: []}
    assert all("agreement" not in result.phases for result in results)


@pytest.mark.parametrize(
    ("agree", "words"),
    [
        ("[{set: {k: 9}}]", "16:9: with k=9 the input 'a' differs"),
        ("[{entry: agreeing:nothing}]", "agreeing has no 'nothing'"),
        ("[{entry: agreeing:doubled}]", ""),
    ],
)
def test_both_sides_must_have_the_same_inputs(agree, words):
    findings, results = found(made(PRODUCT, agree))
    if words:
        assert {result.status for result in results} == {Status.ERROR}
        assert words in findings[8][0].title
    else:
        assert findings[8][0].check == "agreement"


@pytest.mark.parametrize(
    ("agree", "words"),
    [
        ("[{because: so}]", "16:9: an agreement needs one of axis, set,"),
        ("[{axis: varient}]", "unknown axis 'varient'; did you mean 'variant'?"),
        ("[{axis: variant}]", "16:16: the axis 'variant' has one value; an agreement needs two"),
        ("[{factory_args: {num_stages: 2}}]", "'factory_args' belongs to a factory"),
        ("[{set: {variant: x}, when: vari == 1}]", "unknown name 'vari'"),
        ("[{backend: gpu}]", "'agree[0].backend' must be one of interpreter, cuda"),
        ("[{set: {variant: x}}]\nproperties: []", ""),
    ],
)
def test_an_invalid_agreement_is_an_error_at_its_location(agree, words):
    if not words:
        with pytest.raises(SpecError, match="'agree' has no effect: 'checks' leaves out"):
            made(PRODUCT, agree, checks="numeric")
        return
    with pytest.raises(SpecError) as caught:
        made(PRODUCT, agree)
    assert words in str(caught.value)


def test_with_rotation_an_agreement_costs_one_more_run():
    spec = made(PRODUCT, "[{set: {variant: chunks}}]", checks="numeric, agreement")
    runner = Runner(backend_named("interpreter"))
    result = runner.run(spec, next(iter(plan(spec).expansion)), reruns="rotate")
    assert result.relations == ("variant=chunks",)


def test_another_backend_runs_the_same_case():
    """Where there is no GPU: the interpreter under the name of one, beside itself."""
    spec = made(STAGES, "[{backend: interpreter, factory_args: {num_stages: 3}}]")
    here = replace(InterpreterBackend(), name="cuda", arch="sm_90")
    result = Runner(here).run(spec, next(iter(plan(spec).expansion)))
    words = "num_stages=3 and the backend interpreter: y: "
    assert result.findings[0].title.startswith(words)
    assert result.findings[0].title.endswith("against num_stages=0 and the backend cuda")
    same = made(STAGES, "[{backend: interpreter, exact: true}]")
    result = Runner(here).run(same, next(iter(plan(same).expansion)))
    assert (result.status, result.findings) == (Status.PASSED, ())
    assert result.phases["agreement"] > 0


@pytest.mark.cuda
def test_a_kernel_agrees_on_the_gpu_and_interpreted():
    spec = made(STAGES, "[{backend: interpreter}]")
    for case in plan(spec).expansion:
        result = run_case(spec, case, "cuda")
        assert result.status is Status.PASSED, result.findings
        assert result.phases["agreement"] > 0
    wrong = made(STAGES, "[{backend: interpreter, factory_args: {num_stages: 3}}]")
    result = run_case(wrong, next(iter(plan(wrong).expansion)), "cuda")
    assert result.findings[0].title.startswith("num_stages=3 and the backend interpreter: y: ")


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["gqa_varlen", "sink_varlen", "decode_paged", "gemm", "rms_norm"])
def test_showcase_kernels_agree_on_the_gpu_and_interpreted(name):
    spec = load_spec(HERE.parents[1] / "specs" / f"{name}.yaml")
    both = {
        "agree": (Agreement(backend="interpreter"),),
        "checks": ("numeric", "agreement"),
        "fuzz": None,
    }
    spec = spec.model_copy(update=both)
    for case in islice(plan(spec).expansion, 6):
        result = run_case(spec, case, "cuda")
        assert result.status is Status.PASSED, (case.id, result.findings)
        assert result.phases["agreement"] > 0


def test_tensors_of_repeated_calls_have_the_alignment_of_the_first():
    """Who takes another kernel where rows are aligned, with other roundings, keeps no state."""
    text = PRODUCT.replace("AGREE", "[]").replace("CHECKS", "numeric, repeat")
    text = text.replace("agreeing:product", "agreeing:by_alignment").replace("m: [5]", "m: [40]")
    text = text.replace("values: [normal]", "values: [normal]\n  storage: [offset, sliced]")
    text = text.replace("VARIANTS", "whole")
    _, results = found(parse_spec(text, HERE / "agreeing.yaml"))
    assert [result.status for result in results] == [Status.PASSED] * 4
