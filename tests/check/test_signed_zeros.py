"""-0.0 equals 0.0 in every comparison of results, unless a spec asks for bits."""

import pytest

from spec_results import findings_of

CODE = """
import itertools
import torch

calls = itertools.count()


def kept(x):
    return torch.where(x > 0, x, 0.0)


def alternating(x):
    return torch.where(x > 0, x, -0.0 if next(calls) % 2 else 0.0)


def negative(x):
    return torch.where(x > 0, x, -0.0)


def shifted(x):
    return torch.where(x > 0, x, 0.0) + (next(calls) % 2) * 2.0**-149

"""
TEXT = """
name: zeros
problem:
  inputs:
    x: {{shape: [rows, 8], dtype: float32, fill: zero_rows}}
  outputs: [y]
  reference: signed_zeros_code:kept
entry: signed_zeros_code:{entry}
returns: [y]
axes: {{rows: [4, 7]}}
{more}
"""


@pytest.fixture(scope="module")
def found(code_folder):
    def findings(entry, more=""):
        text = TEXT.format(entry=entry, more=more)
        return findings_of(text, code_folder / "zeros.yaml")

    return findings


RELATION = "relations: [{{permute: rows, exact: {exact}}}]"
AGREEMENT = "agree: [{{entry: 'signed_zeros_code:negative', exact: {exact}}}]"


@pytest.mark.parametrize("more", ["", "determinism: bitwise"])
def test_equal_calls_and_repeated_calls_may_differ_in_the_signs_of_zeros(found, more):
    assert found("alternating", more) == []


def test_a_difference_of_the_least_subnormal_is_none_of_signs(found):
    assert {finding.check for finding in found("shifted")} == {"determinism"}


@pytest.mark.parametrize(
    ("entry", "more", "check"),
    [("alternating", RELATION, "relations"), ("kept", AGREEMENT, "agreement")],
)
def test_signs_of_zeros_count_only_if_a_spec_asks_for_bits(found, entry, more, check):
    assert found(entry, more.format(exact="true")) == []
    findings = found(entry, more.format(exact="bits"))
    assert {finding.check for finding in findings} == {check}
    assert all("signs of zeros" in finding.detail for finding in findings)


def test_numbers_that_differ_are_no_matter_of_bits(found):
    findings = found("shifted", "checks: [relations]\n" + RELATION.format(exact="bits"))
    assert findings
    assert all("signs of zeros" not in finding.detail for finding in findings)
