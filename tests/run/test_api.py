"""The product from Python: load a spec, list its cases, run some, look at findings."""

import sys

import pytest
import torch

import tlmatrix
from tlmatrix.backend.backends import CudaBackend
from tlmatrix.run import SkipReason

CODE = """
def reference(x):
    return 2 * x

def double(x, how):
    return x + x + (0.5 if how == "wrong" else 0.0)
"""
SPEC = """\
name: double
problem:
  inputs: {x: {shape: [rows, 3], dtype: float32, grad: true}}
  outputs: [y]
  reference: api_code:reference
entry: api_code:double
axes: {rows: [1, 5], how: [right, wrong]}
tiers: {quick: product}
"""


@pytest.fixture
def spec_path(code_folder, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = code_folder / "double.yaml"
    path.write_text(SPEC)
    return path


def test_load_list_run_and_read_findings(spec_path):
    spec = tlmatrix.load(spec_path)
    cases = list(tlmatrix.cases(spec))
    assert cases[0].id == "how=right-rows=1"
    seen = []
    results = tlmatrix.run_specs(
        spec, backend="interpreter", on_result=lambda result: seen.append(result.case)
    )
    assert seen == [case.id for case in cases]
    assert not results.ok
    assert {result["how"] for result in (item.values for item in results.failed)} == {"wrong"}
    assert all(finding.check == "numeric" for finding in results.findings)
    assert "tlmatrix repro" in str(results)


def test_cases_are_selected_and_limited(spec_path):
    results = tlmatrix.run_specs(
        spec_path, backend="interpreter", select=lambda case: case["how"] == "right", limit=1
    )
    assert results.ok
    assert [result.case for result in results] == ["how=right-rows=1"]


def test_a_seed_changes_the_inputs_of_a_case(spec_path):
    spec = tlmatrix.load(spec_path)
    case = next(case for case in tlmatrix.cases(spec) if case["how"] == "wrong")
    one, same, other = (
        tlmatrix.run_case(spec, case, "interpreter", seed=seed) for seed in (0, 0, 1)
    )
    assert one.status is tlmatrix.Status.FAILED
    assert one.findings == same.findings
    assert one.findings[0].expected != other.findings[0].expected
    assert other.command.endswith("--seed 1 --backend interpreter")


def test_kernels_for_another_gpu_are_skipped_with_the_reason(spec_path):
    spec_path.write_text(spec_path.read_text() + "architectures: [sm_100a]\n")
    spec = tlmatrix.load(spec_path)
    gpu = CudaBackend(device=torch.device("cuda", 0), arch="sm_90")
    result = tlmatrix.run_case(spec, next(iter(tlmatrix.cases(spec))), gpu)
    assert (result.status, result.reason) == (tlmatrix.Status.SKIPPED, SkipReason.ARCHITECTURE)
    assert result.message == "its kernels are for sm_100a, and this GPU is sm_90"


def test_an_invalid_spec_raises_with_its_location(spec_path):
    spec_path.write_text(spec_path.read_text() + "more: 1\n")
    with pytest.raises(tlmatrix.SpecError) as caught:
        tlmatrix.load(spec_path)
    assert (caught.value.issues[0].line, caught.value.issues[0].column) == (9, 1)


def test_every_name_in_all_is_importable():
    for name in tlmatrix.__all__:
        assert getattr(tlmatrix, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_that"):
        tlmatrix.nothing_like_that  # noqa: B018
