"""Calls in which numbers that a reference compares are equal."""

import pytest

from spec_results import findings_of

CODE = """
import torch


def above(x, limit):
    return (x * (x >= limit)).sum(1)


def above_without_the_end(x, limit):
    return (x * (x > limit)).sum(1)


def larger(x, limit):
    return torch.where(x > limit, x, limit)


def larger_or_equal(x, limit):
    return torch.where(x >= limit, x, limit)


def scaled(x, limit):
    return (x * (x / 3 >= limit / 3)).sum(1)


def counts(x, limit):
    bins = ((x - x.amin(1, keepdim=True)) * 4).floor().long()
    return torch.stack([torch.bincount(row, minlength=64)[:64] for row in bins]).int()


def one_too_many(x, limit):
    return counts(x, limit) + 1
"""
ROWS = """
name: equal
problem:
  inputs:
    x: {{shape: [rows, 40], dtype: {dtype}{more}}}
    limit: {{shape: [1, 40], dtype: {dtype}}}
  outputs: {{y: {{dtype: {output}}}}}
  reference: declared_equal_inputs_code:{reference}
entry: declared_equal_inputs_code:{entry}
axes: {{rows: [3, 4, 5, 6], values: [normal]}}
checks: [numeric, gradients, relations]
"""


@pytest.fixture(scope="module")
def found(code_folder):
    def findings(entry, reference="above", dtype="float32", more="", output=None):
        names = {"entry": entry, "reference": reference, "output": output or dtype}
        text = ROWS.format(dtype=dtype, more=more, **names)
        return findings_of(text, code_folder / "equal.yaml")

    return findings


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_comparison_without_its_end_is_found(found, dtype):
    assert found("above", dtype=dtype) == []
    findings = found("above_without_the_end", dtype=dtype)
    assert {each.title.partition(":")[0] for each in findings} == {"equal_inputs"}
    assert "a part of x are numbers of limit" in findings[0].detail


def test_the_gradient_of_either_of_equal_numbers_is_right(found):
    more = ", grad: true"
    assert found("larger_or_equal", "larger", more=more) == []


def test_an_input_with_a_distribution_of_its_own_keeps_it(found):
    more = ", fill: normal"
    findings = found("above_without_the_end", more=more)
    assert all("a part of limit are numbers of x" in each.detail for each in findings)


def test_what_is_computed_before_it_is_compared_need_not_be_equal(found):
    assert found("above_without_the_end", "scaled") == []


def test_a_reference_that_refuses_perturbed_numbers_judges(found):
    assert found("counts", "counts", output="int32") == []
    findings = found("one_too_many", "counts", output="int32")
    assert "numeric" in {each.check for each in findings}
