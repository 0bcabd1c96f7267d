"""Calls without options that have the values of their defaults."""

import sys

import pytest

from outside_project import command_line
from spec_results import results_of
from tlmatrix.run import Status
from tlmatrix.run.plan import plan
from tlmatrix.spec import SpecError, parse_spec

SPEC = """
name: scaled
problem:
  inputs: {{x: {{shape: [rows, 8], dtype: float32}}}}
  outputs: {{y: {{shape: [rows, 8], dtype: $dtype}}}}
  reference: {{function: defaults_code:reference, call: [x, scale]}}
entry: defaults_code:{entry}
axes: {{rows: [4, 3], scale: [1.0, 3.0], dtype: [float32, float16]}}
constraints: ["{require}"]
checks: [numeric, determinism, relations]
{more}
"""
CODE = """
import torch


def reference(x, scale):
    return x * scale


def right(x, scale=1.0, dtype=None):
    return (x * scale).to(dtype or (torch.float16 if len(x) == 3 else torch.float32))


def wrong_dtype(x, scale=1.0, dtype=None):
    return (x * scale).to(dtype or torch.float32)


def wrong_scale(x, dtype, scale=None):
    return (x * (2.0 if scale is None else scale)).to(dtype)


def refuses(x, dtype, scale=None):
    if scale is None:
        raise ValueError("scale must be given")
    return (x * scale).to(dtype)


class Module(torch.nn.Module):
    def __init__(self, scale=None):
        super().__init__()
        self.scale = 2.0 if scale is None else scale

    def forward(self, x, dtype):
        return (x * self.scale).to(dtype)


calls = [0]


def unstable(x, dtype, scale=None):
    calls[0] += 1
    return (x * scale + calls[0]).to(dtype)
"""
OF_SCALE = 'defaults: {scale: "1.0"}'
OF_DTYPE = "defaults: {dtype: \"'float16' if rows == 3 else 'float32'\"}"


@pytest.fixture
def results(code_folder, monkeypatch):
    def results(entry, more, require="rows > 0"):
        monkeypatch.delitem(sys.modules, "defaults_code", raising=False)
        text = SPEC.format(entry=entry, more=more, require=require)
        return results_of(text, code_folder / "scaled.yaml", tier="full")

    return results


@pytest.mark.parametrize("more", ["", OF_DTYPE])
def test_right_defaults_have_no_findings(results, more):
    assert {each.status for each in results("right", more)} == {Status.PASSED}


@pytest.mark.parametrize("entry", ["wrong_scale", "refuses", "Module"])
def test_a_default_that_stands_for_another_value(results, entry):
    found = results(entry, OF_SCALE)
    wrong = {each.values["scale"] for each in found if each.status is Status.FAILED}
    assert 1.0 in wrong
    titles = [finding.title for each in found for finding in each.findings]
    assert any(title.startswith("without scale: ") for title in titles)
    assert {each.status for each in results(entry, "")} == {Status.PASSED}


def test_a_dtype_by_default(results):
    found = results("wrong_dtype", OF_DTYPE)
    failed = [each for each in found if each.status is Status.FAILED]
    assert failed
    assert {each.values["rows"] for each in failed} == {3}


def test_a_value_that_no_case_has_beside_the_others(results):
    """float16 goes with a scale of 3 alone, and the default of 3 rows is float16."""
    found = results("wrong_dtype", OF_DTYPE, "dtype == 'float32' or rows == 4 or scale == 3.0")
    assert [each for each in found if each.findings]
    (finding, *_) = [each for result in found for each in result.findings if each.call]
    assert finding.check in ("relations", "determinism")


def test_equal_calls_that_differ_are_named_so(results):
    found = [finding for each in results("unstable", OF_SCALE) for finding in each.findings]
    assert found
    assert not any("without scale" in finding.title for finding in found)


def test_unknown_names_are_errors(code_folder):
    text = SPEC.format(entry="right", more="defaults: {dtype: dtyp}", require="rows > 0")
    with pytest.raises(SpecError, match=r"defaults: the problem has no 'dtyp'.*'dtype'"):
        plan(parse_spec(text, code_folder / "scaled.yaml"))


def test_check_names_a_default_that_no_case_uses(code_folder):
    path = code_folder / "scaled.yaml"
    words = "no case uses the default of dtype of defaults_code:right, none: list it in the axis"
    for more, expected in (("", True), (OF_DTYPE, False)):
        path.write_text(SPEC.format(entry="right", more=more, require="rows > 0"))
        assert (words in command_line("check", str(path)).out) == expected
