"""Calls on other values of a declared problem, and what keeps its state between them."""

import pytest

from spec_results import findings_of

CODE = """
import torch

KEPT = {}


def linear(x, w):
    return x @ w.T


def in_parts(x, w, dtype=torch.float32):
    parts = (a.float() @ b.float().T for a, b in zip(x.split(64, 1), w.split(64, 1)))
    return sum(part.to(dtype).float() for part in parts).to(x.dtype)


def in_parts_of_16_bits(x, w):
    return in_parts(x, w, x.dtype)


def without_the_last_of_many(x, w):
    return x[:, :255] @ w[:, :255].T


def refusing_many(x, w):
    if x.shape[1] > 64:
        raise ValueError("k must be at most 64")
    return x @ w.T


class WeightKept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        kept, _ = KEPT.setdefault(id(w), (w.clone(), w))
        return dy @ kept, dy.T @ x


def scaled(x, w=None):
    return x if w is None else x * w


def scaled_by_halves_without(x, w=None):
    return x * (0.5 if w is None else w)


def scaled_by_what_is_given(x, w):
    return x * w


def scaled_unless_without(x, w=None):
    if w is None:
        raise ValueError("w is needed")
    return x * w


class Scale(torch.nn.Module):
    def forward(self, x, w=None):
        return x * (0.5 if w is None else w)


def without_a_graph(x, w):
    return x @ w.T if len(x) else x.new_empty(0, len(w))


def product(x, w, out_dtype):
    return (x.double() @ w.double().T).to(out_dtype)


def product_in_float32(x, w, out_dtype):
    return (x.float() @ w.float().T).to(out_dtype)


def product_without_the_last(x, w, out_dtype):
    return product_in_float32(x[:, :-1], w[:, :-1], out_dtype)


def in_small_parts_of_16_bits(x, w):
    y = torch.zeros(len(x), len(w), dtype=x.dtype)
    for a, b in zip(x.split(16, 1), w.split(16, 1)):
        y = (y.float() + a.float() @ b.float().T).to(x.dtype)
    return y


def convolution(x, w):
    return torch.nn.functional.conv2d(x, w)


def convolution_in_float32(x, w):
    return convolution(x.float(), w.float()).to(x.dtype)


def by_channels_in_16_bits(x, w):
    y = 0.0
    for channel in range(x.shape[1]):
        part = (each[:, channel : channel + 1].float() for each in (x, w))
        y = (y + convolution(*part)).to(x.dtype).float()
    return y.to(x.dtype)


def by_columns_in_16_bits(x, w):
    y, cols = 0.0, x.shape[3] - 2
    for column in range(3):
        for channel in range(x.shape[1]):
            part = w[:, channel : channel + 1, :, column : column + 1].float()
            shifted = x[:, channel : channel + 1, :, column : column + cols].float()
            y = (y + convolution(shifted, part)).to(x.dtype).float()
    return y.to(x.dtype)


def sums(x, lengths, dtype=torch.float64):
    made = []
    for part in x.split(lengths):
        total = torch.zeros(x.shape[1], dtype=dtype)
        for row in part:
            total = (total.to(torch.promote_types(dtype, torch.float32)) + row).to(dtype)
        made.append(total)
    return torch.stack(made)


def sums_in_float32(x, lengths):
    return sums(x, lengths, torch.float32).to(x.dtype)


def sums_in_16_bits(x, lengths):
    return sums(x, lengths, x.dtype)


class Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        ctx.save_for_backward(x)
        ctx.lengths = lengths
        return largest_of_each(x, lengths)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        if not len(x):
            return x.clone(), None
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(largest_of_each(leaf, ctx.lengths), leaf, dy)[0], None


def largest_of_each(x, lengths):
    return torch.stack(
        [part.max(0).values if len(part) else x.new_zeros(x.shape[1]) for part in x.split(lengths)]
    )


def norm_of_squares_in_16_bits(x):
    square = (x * x).float().mean(1, keepdim=True)
    return (x.float() * (square + 1e-5).rsqrt()).to(x.dtype)


def plain_norm(x):
    return x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()


def plain_norm_in_float32(x):
    return plain_norm(x.float()).to(x.dtype)


def twice(x):
    return 2 * x


def twice_through_float16(x):
    return (2 * x.half()).to(x.dtype)


def twice_within_limits(x):
    return 2 * x.clamp(-1000, 1000)


def largest(x):
    return x.max(1).values


def largest_but_the_last(x):
    return x[:, :-1].max(1).values


def place_of_the_least(x):
    return x.argmin(1)


def place_of_the_least_but_the_first(x):
    return 1 + x[:, 1:].argmin(1)


def by_the_largest(x):
    return x / x.abs().amax(1, keepdim=True).clamp(min=1e-6)


def by_the_largest_which_may_be_zero(x):
    return x / x.abs().amax(1, keepdim=True)


def norm(x):
    x = x.double()
    return (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()


def norm_in_float32(x):
    centered = x.float() - x.float().mean(1, keepdim=True)
    return (centered * (centered.square().mean(1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype)


def norm_from_squares(x):
    y = x.float()
    mean = y.sum(1, keepdim=True) / y.shape[1]
    square = y.new_zeros(len(y), 1)
    for column in y.split(1, 1):
        square += column * column
    var = (square / y.shape[1] - mean * mean).clamp(min=0)
    return ((y - mean) * (var + 1e-5).rsqrt()).to(x.dtype)


def softmax(x):
    return x.double().softmax(1)


def softmax_in_float32(x):
    return x.float().softmax(1).to(x.dtype)


def logsumexp(x):
    return x.logsumexp(1)


def logsumexp_in_float32(x):
    return x.float().logsumexp(1).to(x.dtype)


def logsumexp_without_maximum(x):
    return x.float().exp().sum(1).log().to(x.dtype)


def beside_large(x):
    return torch.cat([x[:1].double() * 0 + 2.0**60, x.double()])


def beside_large_in_float32(x):
    return beside_large(x).to(x.dtype)
"""
LINEAR = """
name: linear
problem:
  inputs:
    x: {{shape: [rows, k], dtype: float16, grad: true}}
    w: {{shape: [n, k], dtype: float16, grad: true}}
  outputs: {{y: {{shape: [rows, n]}}}}
  reference: declared_relations_code:linear
entry: declared_relations_code:{entry}
returns: [y]
axes: {{rows: [{rows}], k: [256, 40], n: [5, 6]}}
checks: [{checks}]
"""
SCALED = """
name: scaled
problem:
  inputs:
    x: {{shape: [rows, n], dtype: float16, grad: true}}
    w: {{shape: [n], dtype: float16, grad: true}}
  outputs: [y]
  reference: declared_relations_code:scaled
entry: declared_relations_code:{entry}
{call}
returns: [y]
axes: {{rows: [1, 2, 3, 4, 5, 6], n: [7]}}
checks: [numeric, gradients, relations]
"""
FLOAT8 = """
name: product
problem:
  inputs:
    x: {{shape: [rows, k], dtype: float8_e4m3fn}}
    w: {{shape: [n, k], dtype: float8_e4m3fn}}
  outputs: {{y: {{shape: [rows, n], dtype: $out_dtype}}}}
  reference: declared_relations_code:product
entry: declared_relations_code:{entry}
returns: [y]
axes: {{rows: [5], k: [40, 33], n: [5, 7], out_dtype: [float32, float8_e4m3fn]}}
"""
CONVOLUTION = """
name: convolution
problem:
  inputs:
    x: {{shape: [n, c, rows, cols], dtype: float16}}
    w: {{shape: [filters, c, height, width], dtype: float16}}
  outputs: [y]
  reference: declared_relations_code:convolution
entry: declared_relations_code:{entry}
returns: [y]
axes: {{n: [1, 2], c: [13, 20], rows: [8], cols: [9], filters: [4, 5], height: [3], width: [3]}}
checks: [numeric, relations]
"""
SEQUENCES = """
name: sums
problem:
  inputs:
    x: {{shape: [sum(lengths), dim], dtype: float16}}
  outputs: {{y: {{shape: [len(lengths), dim]}}}}
  reference: declared_relations_code:{reference}
entry: declared_relations_code:{entry}
call: [x, lengths]
returns: [y]
axes: {{dim: [8, 9], lengths: [[40, 0, 33], [5, 64]]}}
checks: [numeric, relations]
"""
ROWS = """
name: rows
problem:
  inputs:
    x: {{shape: [rows, 40], dtype: {dtype}}}
  outputs: [y]
  reference: declared_relations_code:{reference}
entry: declared_relations_code:{entry}
returns: [y]
axes: {{rows: [3, 4, 5, 6, 7, 8]}}
checks: [numeric, relations]
"""


@pytest.fixture(scope="module")
def found(code_folder):
    def findings(text, **names):
        return findings_of(text.format(**names), code_folder / "relations.yaml")

    return findings


def test_parts_of_a_sum_in_16_bits_are_found(found):
    names = {"rows": 3, "checks": "numeric, relations"}
    assert found(LINEAR, entry="linear", **names) == []
    assert found(LINEAR, entry="in_parts", **names) == []
    findings = found(LINEAR, entry="in_parts_of_16_bits", **names)
    assert findings
    assert all(finding.title.startswith("cancelling_parts: y: ") for finding in findings)
    assert "along k have opposite signs" in findings[0].detail


def test_accumulators_in_16_bits_are_found_though_the_shape_of_the_result_is_not_declared(found):
    text = LINEAR.replace("{{y: {{shape: [rows, n]}}}}", "[y]").replace("256", "64")
    names = {"rows": 3, "checks": "numeric, relations"}
    assert found(text, entry="linear", **names) == []
    findings = found(text, entry="in_small_parts_of_16_bits", **names)
    assert findings
    assert all(finding.title.startswith("cancelling_parts: y: ") for finding in findings)


@pytest.mark.parametrize("entry", ["by_channels_in_16_bits", "by_columns_in_16_bits"])
def test_accumulators_in_16_bits_are_found_over_taps_and_channels_of_which_each_are_few(
    found, entry
):
    assert found(CONVOLUTION, entry="convolution_in_float32") == []
    findings = [each for each in found(CONVOLUTION, entry=entry) if each.check == "relations"]
    assert findings
    assert all(finding.title.startswith("cancelling_parts: y: ") for finding in findings)
    assert any("w along c * height * width have opposite signs" in f.detail for f in findings)


def test_accumulators_in_16_bits_are_found_of_sums_of_each_sequence(found):
    assert found(SEQUENCES, reference="sums", entry="sums_in_float32") == []
    findings = found(SEQUENCES, reference="sums", entry="sums_in_16_bits")
    assert findings
    assert all(finding.title.startswith("cancelling_parts: y: ") for finding in findings)


def test_inputs_without_elements_have_no_gradient_if_the_reference_returns_constants(found):
    text = SEQUENCES.replace("numeric, relations", "numeric, gradients, isolation, relations")
    text = text.replace("float16}}", "float16, grad: true}}")
    text = text.replace("[[40, 0, 33], [5, 64]]", "[[0], [0, 3], [0, 0, 2]]")
    assert found(text, reference="largest_of_each", entry="Largest.apply") == []


@pytest.mark.parametrize(
    ("name", "dtype", "wrong"),
    [
        ("plain_norm", "float16", "norm_of_squares_in_16_bits"),
        ("twice", "bfloat16", "twice_through_float16"),
        ("twice", "float32", "twice_within_limits"),
    ],
)
def test_what_overflows_or_is_limited_on_the_way_is_found(found, name, dtype, wrong):
    names = {"reference": name, "dtype": dtype}
    right = name if name == "twice" else f"{name}_in_float32"
    assert found(ROWS, entry=right, **names) == []
    findings = found(ROWS, entry=wrong, **names)
    assert any(finding.title.startswith("scaled_input: y: ") for finding in findings), findings
    assert "x times 2**" in findings[-1].detail


def test_float8_passes_every_check_and_wrong_float8_is_a_finding(found):
    """PyTorch neither negates nor compares nor indexes it."""
    assert found(FLOAT8, entry="product_in_float32") == []
    findings = found(FLOAT8, entry="product_without_the_last")
    assert {finding.check for finding in findings} == {"numeric"}


@pytest.mark.parametrize("entry", ["without_the_last_of_many", "refusing_many"])
def test_a_size_that_fails_anyway_is_for_its_own_case_to_report(found, entry):
    """Parts cancel in the largest size that the spec has, also from a case with a smaller one."""
    findings = found(LINEAR, entry=entry, rows=3, checks="numeric, relations")
    assert findings
    assert not [each.title for each in findings if "cancelling_parts" in each.title]


def test_what_is_kept_of_a_weight_by_its_identity_is_found(found):
    names = {"rows": 3, "checks": "gradients, repeat"}
    assert found(LINEAR, entry="linear", **names) == []
    findings = found(LINEAR, entry="WeightKept.apply", **names)
    assert {finding.check for finding in findings} == {"repeat"}
    assert {finding.tensor for finding in findings} == {"dx"}


def test_an_empty_batch_has_a_graph(found):
    names = {"rows": 0, "checks": "numeric, gradients"}
    assert found(LINEAR, entry="linear", **names) == []
    findings = found(LINEAR, entry="without_a_graph", **names)
    assert findings
    assert all("the output y does not require grad" in each.title for each in findings)
    assert all("checks: {without: [gradients]}" in each.hint for each in findings)


@pytest.mark.parametrize(
    ("name", "wrong", "least"),
    [
        ("largest", "largest_but_the_last", 2),
        ("place_of_the_least", "place_of_the_least_but_the_first", 1),
    ],
)
def test_a_largest_or_least_number_at_the_end_of_a_row_is_found(found, name, wrong, least):
    text = ROWS.replace("relations]", "repeat]")
    names = {"reference": name, "dtype": "float16"}
    assert found(text, entry=name, **names) == []
    findings = [each for each in found(text, entry=wrong, **names) if each.check == "repeat"]
    assert len(findings) >= least  # of 6 cases


def test_second_calls_have_special_values_where_the_first_ones_are_normal(found):
    text = ROWS.replace("relations]", "repeat]").replace("8]}}", "8], values: [normal]}}")
    names = {"reference": "by_the_largest", "dtype": "float32"}
    assert found(text, entry="by_the_largest", **names) == []
    findings = found(text, entry="by_the_largest_which_may_be_zero", **names)
    assert findings
    assert all(each.check == "repeat" and "zero_rows" in each.call for each in findings)


@pytest.mark.parametrize("name", ["norm", "softmax", "beside_large"])
def test_values_far_from_zero_change_nothing_that_the_reference_keeps(found, name):
    for dtype in ("float16", "bfloat16"):
        if (name, dtype) != ("beside_large", "float16"):
            assert found(ROWS, entry=f"{name}_in_float32", reference=name, dtype=dtype) == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_logarithm_of_exponentials_that_overflow_is_found(found, dtype):
    """The result moves by the constant that is added to the input."""
    names = {"reference": "logsumexp", "dtype": dtype}
    assert found(ROWS, entry="logsumexp_in_float32", **names) == []
    every = found(ROWS, entry="logsumexp_without_maximum", **names)
    findings = [each for each in every if each.title.startswith("far_from_zero: y: ")]
    assert findings
    assert "added to all of x moves results by it" in findings[0].detail


def test_a_variance_that_is_a_difference_of_large_numbers_is_found(found):
    findings = found(ROWS, entry="norm_from_squares", reference="norm", dtype="float16")
    assert findings
    assert all(finding.title.startswith("far_from_zero: y: ") for finding in findings)


@pytest.mark.parametrize("call", ["", "call: {{x: x, w: w}}"])
def test_an_input_that_may_be_left_out_is_left_out(found, call):
    call = call.format()
    assert found(SCALED, entry="scaled", call=call) == []
    findings = found(SCALED, entry="scaled_by_halves_without", call=call)
    assert {finding.title.partition(":")[0] for finding in findings} == {"without_input"}
    assert {finding.tensor for finding in findings} == {"y", "dx"}
    assert {finding.call for finding in findings} == {"without w"}


@pytest.mark.parametrize("entry", ["scaled_by_what_is_given", "scaled_unless_without", "Scale"])
def test_an_input_that_an_entry_needs_is_given(found, entry):
    assert found(SCALED, entry=entry, call="call: {x: x, w: w}") == []
