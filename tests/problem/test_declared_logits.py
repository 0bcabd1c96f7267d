"""Calls with masked logits, and with logits far below 0, where the reference is a softmax."""

import pytest

from spec_results import findings_of

CODE = """
import torch


def tiles(x, size=16):
    return x.float().split(size, 1)


def softmax_from(x, least):
    m = torch.full((len(x), 1), least)
    l = torch.zeros(len(x), 1)
    for tile in tiles(x):
        larger = torch.maximum(m, tile.amax(1, keepdim=True))
        l = l * (m - larger).exp() + (tile - larger).exp().sum(1, keepdim=True)
        m = larger
    return ((x.float() - m).exp() / l).to(x.dtype)


def softmax(x):
    return x.softmax(1)


def right(x):
    return softmax_from(x, -1e30)


def from_minus_infinity(x):
    return softmax_from(x, float("-inf"))


def from_a_sentinel(x):
    return softmax_from(x, -5e4)


def capped(x):
    return (30 * (x / 30).tanh()).logsumexp(1)


def capped_by_tiles(x, padded=float("-inf")):
    y = torch.nn.functional.pad(30 * (x.float() / 30).tanh(), (0, 24), value=padded)
    return y.logsumexp(1).to(x.dtype)


def capped_with_padding(x):
    return capped_by_tiles(x, -30.0)


def largest(x):
    return x.sort(dim=1, descending=True, stable=True).indices[:, :3], x.softmax(1)


def last_of_equal(x):
    return 39 - x.flip(1).sort(dim=1, descending=True, stable=True).indices[:, :3], x.softmax(1)


def attention(q, k, v):
    return ((q @ k.mT) / q.shape[1] ** 0.5).softmax(-1) @ v


def attended_from(q, k, v, least):
    s = (q.float() @ k.float().mT) / q.shape[1] ** 0.5
    p = (s - s.amax(1, keepdim=True).clamp(min=least)).exp()
    return (p.to(v.dtype) @ v / p.sum(1, keepdim=True)).to(v.dtype)


def attended(q, k, v):
    return attended_from(q, k, v, float("-inf"))


def attended_from_zero(q, k, v):
    return attended_from(q, k, v, 0.0)


def fused(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)

"""
ROWS = """
name: logits
problem:
  inputs:
    x: {{shape: [rows, 40], dtype: {dtype}{more}}}
  outputs: [{outputs}]
  reference: declared_logits_code:{reference}
entry: declared_logits_code:{entry}
returns: [{outputs}]
axes: {{rows: [3, 4, 5, 6], values: [normal]}}
checks: [numeric, relations]
"""


@pytest.fixture(scope="module")
def found(code_folder):
    def findings(entry, reference, dtype="float32", more="", outputs="y"):
        names = {"entry": entry, "reference": reference, "outputs": outputs}
        text = ROWS.format(dtype=dtype, more=more, **names)
        return findings_of(text, code_folder / "logits.yaml")

    return findings


def relations(findings):
    return {each.title.partition(":")[0] for each in findings}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_right_entries_have_no_findings(found, dtype):
    assert found("right", "softmax", dtype) == []
    assert found("capped_by_tiles", "capped", dtype) == []


def test_a_maximum_that_begins_at_minus_infinity_is_found_where_a_tile_is_masked(found):
    findings = found("from_minus_infinity", "softmax")
    assert relations(findings) == {"masked_logits"}
    assert "`fill: normal` says so" in findings[0].detail
    assert found("from_minus_infinity", "softmax", more=", fill: normal") == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_maximum_that_begins_at_a_finite_number_is_found(found, dtype):
    assert relations(found("from_a_sentinel", "softmax", dtype)) == {"low_logits"}


def test_padding_that_counts_where_logits_are_capped_is_found(found):
    assert relations(found("capped_with_padding", "capped")) == {"capped_logits"}


def test_of_equal_logits_any_may_be_selected(found):
    assert found("last_of_equal", "largest", outputs="where, y") == []


FACTORS = """
name: factors
problem:
  inputs:
    q: {{shape: [rows, 64], dtype: {dtype}, grad: {grad}}}
    k: {{shape: [40, 64], dtype: {dtype}{more}, grad: {grad}}}
    v: {{shape: [40, 24], dtype: {dtype}, grad: {grad}}}
  outputs: [y]
  reference: declared_logits_code:{reference}
entry: declared_logits_code:{entry}
axes: {{rows: [3, 4, 5, 6], values: [normal]}}
checks: [numeric, gradients, relations]
"""


@pytest.fixture(scope="module")
def factors(code_folder):
    def findings(entry, reference="attention", dtype="float32", more="", grad="false"):
        names = {"entry": entry, "reference": reference, "more": more, "grad": grad}
        return findings_of(FACTORS.format(dtype=dtype, **names), code_folder / "factors.yaml")

    return findings


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("reference", ["attention", "fused"])
def test_right_entries_have_no_findings_with_low_products(factors, dtype, reference):
    assert factors("attended", reference, dtype) == []
    assert factors("attention", reference, dtype, grad="true") == []


@pytest.mark.parametrize("reference", ["attention", "fused"])
def test_a_maximum_of_products_that_begins_at_zero_is_found(factors, reference):
    findings = factors("attended_from_zero", reference)
    assert relations(findings) == {"low_products"}
    assert "k is about -3" in findings[0].detail
    assert factors("attended_from_zero", reference, more=", fill: normal") == []
