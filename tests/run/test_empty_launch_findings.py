"""A spec whose kernel is launched for nothing gets the finding that a GPU would give."""

from pathlib import Path

import pytest

from spec_results import results_of
from tlmatrix.report.text import describe_result
from tlmatrix.run import Status

HERE = Path(__file__).parent
SPEC = """
name: doubled
problem:
  inputs: {x: {shape: [num_tokens, 16], dtype: float32}}
  outputs: [y]
  reference: emptied_kernels:reference
axes: {num_tokens: [TOKENS]}
"""
FACTORY = "factory: emptied_kernels:doubled\ncall: [x, y]\nreturns: [y]\n"


def run(binding, tokens, backend="interpreter"):
    text = SPEC.replace("TOKENS", str(tokens)) + binding
    (result,) = results_of(text, HERE / "doubled.yaml", runner=backend)
    return result


@pytest.mark.parametrize("binding", [FACTORY, "entry: emptied_kernels:unguarded\n"])
def test_an_empty_launch_is_a_finding(binding):
    result = run(binding, 0)
    (finding,) = result.findings
    assert (finding.check, result.status) == ("launch", Status.ERROR)
    assert finding.title == "doubling cannot be launched: grid dimension must be positive"
    assert (finding.where, finding.kernel) == ("grid=(0,1,1)", "doubling")
    assert "emptied_kernels.py:" in (finding.source or "")
    told = " ".join(describe_result(result))
    assert "where an input is empty return before the call" in " ".join(told.split())
    assert run(binding, 33).status is Status.PASSED


def test_an_empty_tma_tensor_is_a_launch_finding():
    binding = FACTORY.replace("doubled", "copied")
    (finding,) = run(binding, 0).findings
    assert finding.check == "launch"
    assert finding.title == "copying cannot be launched: a TMA descriptor of an empty tensor"
    assert finding.where == "Y of shape (0, 16)"
    assert run(binding, 33).status is Status.PASSED


def test_a_guard_before_the_call_passes():
    for tokens in (0, 1, 33):
        assert run("entry: emptied_kernels:guarded\n", tokens).findings == ()
