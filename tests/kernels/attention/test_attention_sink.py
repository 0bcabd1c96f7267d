"""A sink is one more key of value 0: every strategy, every row, and its gradient."""

import math

import attention_reference as reference
import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import dense_attention, varlen_attention
from tlmatrix_kernels.attention.sink import PART, sink_parts, sink_total

HALF = torch.float16
LENGTHS = [40, 0, 130], [70, 5, 60]  # of the last, 70 queries see no key
SINKS = [0.5, -2.0, 3.0, 8.0]


def dense_inputs(rows=130, keys=60):
    return reference.leaves((2, rows, 4, 32), (2, keys, 2, 32), (2, keys, 2, 40))


def packed_inputs():
    total_q, total_k = map(sum, LENGTHS)
    return reference.leaves((total_q, 4, 32), (total_k, 2, 32), (total_k, 2, 40))


def sinks(values=SINKS, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).requires_grad_()


def packed(q, k, v, **options):
    cu_seqlens = [reference.cumulative(lengths) for lengths in LENGTHS]
    return varlen_attention(q, k, v, *cu_seqlens, **options)


@pytest.mark.parametrize("backward", ["atomic", "reordered", "split", "grouped"])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("window", [None, 1, 33])
def test_dense_is_attention_to_one_more_key(window, dtype, backward):
    inputs, sink = dense_inputs(), sinks(dtype=dtype)
    options = {"causal": True, "window": window}
    with interpret():
        result = dense_attention(*inputs, sink=sink, backward=backward, **options)
        wide = [tensor.double() for tensor in inputs]
        want = reference.dense(*wide, sink=sink.double(), **options)
        reference.compare(result, want, (*inputs, sink), HALF)


@pytest.mark.parametrize("backward", ["atomic", "reordered", "split", "grouped"])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_is_attention_to_one_more_key(causal, backward):
    inputs, sink = packed_inputs(), sinks()
    with interpret():
        result = packed(*inputs, sink=sink, causal=causal, backward=backward)
        wide = [tensor.double() for tensor in inputs]
        want = reference.packed(*wide, *LENGTHS, sink=sink.double(), causal=causal)
        reference.compare(result, want, (*inputs, sink), HALF)


@pytest.mark.parametrize("attend", [dense_attention, packed])
def test_a_sink_of_minus_infinity_is_none(attend):
    inputs = dense_inputs() if attend is dense_attention else packed_inputs()
    sink = sinks([-math.inf] * 4)
    with interpret():
        out, lse = attend(*inputs, causal=True, window=9, backward="split")
        found, found_lse = attend(*inputs, sink=sink, causal=True, window=9, backward="split")
        want = torch.autograd.grad(out, inputs, torch.ones_like(out))
        *got, dsink = torch.autograd.grad(found, (*inputs, sink), torch.ones_like(out))
    assert torch.equal(found, out)
    assert torch.equal(found_lse, lse)
    assert all(map(torch.equal, got, want))
    assert dsink.tolist() == [0.0] * 4


@pytest.mark.parametrize("low", [-1e4, torch.finfo(torch.float32).min])
def test_a_very_low_sink_weighs_nothing_and_is_the_lse_of_a_row_without_keys(low):
    inputs = dense_inputs()
    with interpret():
        out, lse = dense_attention(*inputs, causal=True)
        found, found_lse = dense_attention(*inputs, causal=True, sink=sinks([low] * 4))
    blind = lse.isinf()
    assert blind.any()
    assert torch.equal(found, out)
    assert torch.equal(found_lse[~blind], lse[~blind])
    torch.testing.assert_close(found_lse[blind], torch.full((int(blind.sum()),), low))


def test_dominant_sink_zeroes_the_output():
    inputs, sink = dense_inputs(), sinks([1e4, 200.0, 90.0, 1e30])
    with interpret():
        out, lse = dense_attention(*inputs, sink=sink, causal=True)
        gradients = torch.autograd.grad(out, (*inputs, sink), torch.ones_like(out))
    assert not out.any()
    torch.testing.assert_close(lse, sink.detach()[:, None].expand_as(lse))
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("attend", [dense_attention, packed])
def test_without_any_key_the_lse_is_the_sink_and_its_gradient_zero(attend):
    sink = sinks()
    if attend is packed:
        q, k = reference.leaves((9, 4, 32), (0, 2, 32))
        bounds = reference.cumulative([4, 5]), reference.cumulative([0, 0])
        out, lse = varlen_attention(q, k, k, *bounds, sink=sink)
    else:
        q, k = reference.leaves((2, 9, 4, 32), (2, 0, 2, 32))
        out, lse = dense_attention(q, k, k, sink=sink)
    (dsink,) = torch.autograd.grad(out, sink, torch.ones_like(out))
    assert not out.any()
    assert torch.equal(lse, sink.detach()[:, None].expand_as(lse))
    assert dsink.tolist() == [0.0] * 4


@pytest.mark.parametrize("attend", [dense_attention, packed])
@pytest.mark.parametrize("backward", ["atomic", "reordered", "split", "grouped"])
def test_the_gradient_of_the_sinks_alone(attend, backward):
    inputs = dense_inputs() if attend is dense_attention else packed_inputs()
    sink = sinks()
    with interpret():
        out, _ = attend(*inputs, sink=sink, backward=backward)
        *_, want = torch.autograd.grad(out, (*inputs, sink), torch.ones_like(out))
        frozen = [tensor.detach() for tensor in inputs]
        out, _ = attend(*frozen, sink=sink, backward=backward)
        out.backward(torch.ones_like(out))
    assert torch.equal(sink.grad, want)


def test_strides_of_the_sinks_do_not_matter():
    inputs, spread = dense_inputs(), torch.zeros(4, 3).index_fill(1, torch.tensor([1]), 1.5)
    with interpret():
        out, lse = dense_attention(*inputs, sink=spread[:, 1])
        want, want_lse = dense_attention(*inputs, sink=torch.full((4,), 1.5))
    assert torch.equal(out, want)
    assert torch.equal(lse, want_lse)


@pytest.mark.parametrize("rows", [1, PART, PART + 1, 5 * PART - 7])
def test_the_sum_over_rows_reaches_every_row_once(rows):
    generator = torch.Generator().manual_seed(rows)
    lse, delta = torch.randn(2, 3, 2, rows, generator=generator)
    sink = torch.randn(2, generator=generator)
    parts = torch.full((2, 3, -(-rows // PART)), math.nan)
    dsink = torch.full((2,), math.nan)
    log2_e = math.log2(math.e)
    with interpret(sanitize=True):
        sink_parts("float32")(sink, lse * log2_e, delta, parts)
        sink_total("float32")(parts.flatten(1), dsink)
    terms = -torch.exp(sink.double()[:, None] - lse.double()) * delta.double()
    allowed = 1e-6 * terms.abs().sum((0, 2)).max().item()
    torch.testing.assert_close(dsink.double(), terms.sum((0, 2)), rtol=0, atol=allowed)


def test_more_parts_than_threads_are_all_summed():
    parts = torch.randn(3, 700, generator=torch.Generator().manual_seed(0))
    dsink = torch.full((3,), math.nan)
    with interpret(sanitize=True):
        sink_total("float32")(parts, dsink)
    torch.testing.assert_close(dsink, parts.sum(1), rtol=1e-4, atol=1e-4)


REFUSALS = [
    ([1.0, 1.0, 1.0, 1.0], "sink must be a torch.Tensor or None, got list"),
    (torch.zeros(3), "sink must have the shape [heads], [4], got [3]"),
    (torch.zeros(1, 4), "sink must have the shape [heads], [4], got [1, 4]"),
    (
        torch.zeros(4, dtype=torch.bfloat16),
        "sink must be float32 or have the dtype of q, torch.float16, got torch.bfloat16",
    ),
    (torch.zeros(4, device="meta"), "sink must be on the device of q, cpu, got meta"),
]


@pytest.mark.parametrize("attend", [dense_attention, packed])
@pytest.mark.parametrize(("sink", "words"), REFUSALS)
def test_refuses_with_words(attend, sink, words):
    inputs = dense_inputs() if attend is dense_attention else packed_inputs()
    with pytest.raises(ValueError, match="sink must") as refusal:
        attend(*inputs, sink=sink)
    assert str(refusal.value) == words
