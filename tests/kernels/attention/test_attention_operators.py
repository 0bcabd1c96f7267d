"""The operators: what they refuse and in which words, what they save, compile and leave alone."""

import re

import attention_reference as reference
import pytest
import torch
from tilelang import tvm
from torch.utils import deterministic

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import dense, dense_attention, packed, tiles, varlen_attention
from tlmatrix_kernels.attention.validate import check_dense

HALF = torch.float16


def dense_arguments(**changes):
    arguments = {
        "q": torch.ones(2, 6, 4, 32, dtype=HALF),
        "k": torch.ones(2, 8, 2, 32, dtype=HALF),
        "v": torch.ones(2, 8, 2, 40, dtype=HALF),
    }
    return arguments | changes


def packed_arguments(**changes):
    arguments = {
        "q": torch.ones(6, 4, 32, dtype=HALF),
        "k": torch.ones(8, 2, 32, dtype=HALF),
        "v": torch.ones(8, 2, 40, dtype=HALF),
        "cu_seqlens_q": torch.tensor([0, 2, 6], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 5, 8], dtype=torch.int32),
    }
    return arguments | changes


def half(*shape):
    return torch.ones(shape, dtype=HALF)


def bounds(*places, dtype=torch.int32):
    return torch.tensor(places, dtype=dtype)


SHARED_REFUSALS = [
    ({"window": 4}, "window needs causal=True, got window=4 with causal=False"),
    ({"window": 0, "causal": True}, "window must be at least 1 and below 2**31, got 0"),
    ({"window": 2.5, "causal": True}, "window must be an int or None, got 2.5"),
    ({"causal": "yes"}, "causal must be True or False, got 'yes'"),
    ({"scale": 0.0}, "scale must be positive and finite, from 1e-20 to 1e+20, got 0.0"),
    ({"scale": float("nan")}, "scale must be positive and finite, from 1e-20 to 1e+20, got nan"),
    ({"scale": "1"}, "scale must be a number or None, got '1'"),
    (
        {"backward": "fast"},
        "backward must be one of atomic, split, grouped, reordered or None, got 'fast'",
    ),
]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *SHARED_REFUSALS,
        ({"q": [1.0]}, "q must be a torch.Tensor, got list"),
        (
            {"k": half(8, 2, 32)},
            "k must have 4 dimensions [batch, seqlen, heads, dim], got shape [8, 2, 32]",
        ),
        (
            {"q": torch.ones(2, 6, 4, 32)},
            "q must be float16 or bfloat16, got torch.float32",
        ),
        (
            {"v": torch.ones(2, 8, 2, 40, dtype=torch.bfloat16)},
            "v must have the dtype of q, torch.float16, got torch.bfloat16",
        ),
        (
            {"k": torch.ones(2, 8, 2, 32, dtype=HALF, device="meta")},
            "k must be on the device of q, cpu, got meta",
        ),
        ({"k": half(3, 8, 2, 32)}, "k must have the batch of q, 2, got 3"),
        ({"v": half(2, 9, 2, 40)}, "v must have the length of k, 8, got 9"),
        ({"v": half(2, 8, 1, 40)}, "v must have as many heads as k, 2, got 1"),
        (
            {"q": half(2, 6, 3, 32)},
            (
                "the heads of q must be a multiple of the heads of k and v, "
                "got 3 query heads and 2 kv heads"
            ),
        ),
        ({"q": half(2, 6, 0, 32)}, "q must have at least 1 head, got 0"),
        ({"k": half(2, 8, 2, 48)}, "k must have the head_dim of q, 32, got 48"),
        (
            {"q": half(2, 6, 4, 264), "k": half(2, 8, 2, 264)},
            "head_dim must be a multiple of 8 from 8 to 256, got 264",
        ),
        (
            {"v": half(2, 8, 2, 36)},
            "head_dim_v must be a multiple of 8 from 8 to 256, got 36",
        ),
        ({"layout": "sbhd"}, "layout must be one of bshd, bhsd, got 'sbhd'"),
    ],
)
def test_dense_refuses_with_words(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        dense_attention(**dense_arguments(**changes))
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *SHARED_REFUSALS,
        (
            {"q": half(1, 6, 4, 32)},
            "q must have 3 dimensions [total, heads, dim], got shape [1, 6, 4, 32]",
        ),
        ({"v": half(7, 2, 40)}, "v must have the rows of k, 8, got 7"),
        (
            {"cu_seqlens_q": [0, 2, 6]},
            "cu_seqlens_q must be a torch.Tensor, got list",
        ),
        (
            {"cu_seqlens_q": bounds(0, 2, 6, dtype=torch.int64)},
            "cu_seqlens_q must be int32, got torch.int64",
        ),
        (
            {"cu_seqlens_k": bounds([0, 8])},
            "cu_seqlens_k must have the shape [batch + 1], got [1, 2]",
        ),
        (
            {"cu_seqlens_k": torch.empty(0, dtype=torch.int32)},
            "cu_seqlens_k must have the shape [batch + 1], got [0]",
        ),
        (
            {"cu_seqlens_k": bounds(0, 8)},
            "cu_seqlens_k must have the length of cu_seqlens_q, 3 (batch + 1), got 2",
        ),
        ({"cu_seqlens_q": bounds(1, 2, 6)}, "cu_seqlens_q must begin with 0, got 1"),
        (
            {"cu_seqlens_q": bounds(0, 7, 6)},
            "cu_seqlens_q must not decrease, got 7 then 6 at index 2",
        ),
        (
            {"cu_seqlens_k": bounds(0, 5, 9)},
            "cu_seqlens_k must end with the rows of k and v, 8, got 9",
        ),
        (
            {"cu_seqlens_q": bounds(0, 2, 5)},
            "cu_seqlens_q must end with the rows of q, 6, got 5",
        ),
        (
            {"max_seqlen_q": 3},
            "max_seqlen_q must be at least the longest sequence, 4, got 3",
        ),
        ({"max_seqlen_k": 4.0}, "max_seqlen_k must be an int or None, got 4.0"),
    ],
)
def test_packed_refuses_with_words(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        varlen_attention(**packed_arguments(**changes))
    assert str(refusal.value) == words


def test_the_plain_arguments_of_these_tests_are_accepted():
    with interpret():
        out, _ = dense_attention(**dense_arguments())
        packed_out, _ = varlen_attention(**packed_arguments())
    assert out.shape == (2, 6, 4, 40)
    assert packed_out.shape == (6, 4, 40)


class Compiled:
    """Stands in for a factory and notes what it was asked to compile."""

    def __init__(self, factory):
        self.factory, self.keys = factory, set()

    def __call__(self, *key):
        self.keys.add(key)
        return self.factory(*key)


FACTORIES = {
    "forward": 1,
    "prepare": 1,
    "atomic_gradients": 1,
    "key_gradients": 2,  # split and grouped
    "query_gradients": 1,
    "reordered_gradients": 1,
    "restore": 1,
}


def watch(monkeypatch, module):
    watched = {name: Compiled(getattr(module, name)) for name in FACTORIES}
    for name, compiled in watched.items():
        monkeypatch.setattr(module, name, compiled)
    return watched


def test_one_compiled_dense_kernel_serves_every_batch_length_head_count_and_scale(monkeypatch):
    watched = watch(monkeypatch, dense)
    with interpret():
        for batch, rows, keys, kv_heads, scale in [(1, 3, 5, 1, 0.1), (2, 9, 4, 2, 0.2)]:
            inputs = reference.leaves(
                (batch, rows, kv_heads * 2, 32),
                (batch, keys, kv_heads, 32),
                (batch, keys, kv_heads, 32),
            )
            for backward in ("atomic", "split", "grouped", "reordered"):
                out, _ = dense_attention(
                    *inputs, causal=True, window=rows, scale=scale, backward=backward
                )
                torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert {name: len(compiled.keys) for name, compiled in watched.items()} == FACTORIES


def test_one_compiled_packed_kernel_serves_every_batch_of_lengths(monkeypatch):
    watched = watch(monkeypatch, packed)
    with interpret():
        for lengths in ([3], [5, 0, 2], [1] * 7):
            total = sum(lengths)
            inputs = reference.leaves((total, 2, 32), (total, 1, 32), (total, 1, 32))
            cu = reference.cumulative(lengths)
            for backward in ("atomic", "split", "grouped", "reordered"):
                out, _ = varlen_attention(*inputs, cu, cu, causal=True, backward=backward)
                torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert {name: len(compiled.keys) for name, compiled in watched.items()} == FACTORIES


def attend(kind, inputs, **options):
    if kind == "dense":
        return dense_attention(*inputs, **options)
    flat = [tensor.flatten(0, 1) for tensor in inputs]
    cu = [reference.cumulative([tensor.shape[1]] * tensor.shape[0]) for tensor in inputs[:2]]
    out, lse = varlen_attention(*flat, *cu, **options)
    return out.unflatten(0, inputs[0].shape[:2]), lse.unflatten(1, inputs[0].shape[:2])


SHAPES = [(2, 50, 2, 32), (2, 70, 1, 32), (2, 70, 1, 40)]


@pytest.mark.parametrize("kind", ["dense", "packed"])
@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
def test_strides_of_inputs_and_of_the_output_gradient_do_not_matter(kind, backward):
    inputs = reference.leaves(*SHAPES)
    strided = [t.detach().transpose(0, 2).contiguous().transpose(0, 2) for t in inputs]
    shifted = []
    for tensor in inputs:  # two bytes off the alignment that the copy engine wants
        room = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
        room[1:] = tensor.detach().flatten()
        shifted.append(room[1:].view(tensor.shape))
    results = []
    with interpret():
        for variant in (inputs, strided, shifted):
            leaves = [tensor.detach().requires_grad_() for tensor in variant]
            out, lse = attend(kind, leaves, backward=backward)
            do = torch.ones((), dtype=out.dtype).expand(out.shape)
            results.append([out, lse, *torch.autograd.grad(out, leaves, do)])
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("kind", ["dense", "packed"])
@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
@pytest.mark.parametrize("wanted", ["q", "k", "v", "qv"])
def test_only_requested_gradients_are_computed(kind, backward, wanted):
    inputs = reference.leaves(*SHAPES)
    for name, tensor in zip("qkv", inputs, strict=True):
        tensor.requires_grad_(name in wanted)
    everything = [tensor.detach().requires_grad_() for tensor in inputs]
    with interpret():
        out, _ = attend(kind, inputs, backward=backward)
        out.backward(torch.ones_like(out))
        full, _ = attend(kind, everything, backward=backward)
        full.backward(torch.ones_like(full))
    for name, tensor, every in zip("qkv", inputs, everything, strict=True):
        if name in wanted:
            assert torch.equal(tensor.grad, every.grad)
        else:
            assert tensor.grad is None


@pytest.mark.parametrize("kind", ["dense", "packed"])
def test_lse_carries_no_gradient_and_inputs_are_left_alone(kind):
    inputs = reference.leaves(*SHAPES)
    before = [tensor.detach().clone() for tensor in inputs]
    with interpret():
        out, lse = attend(kind, inputs, causal=True)
        out.sum().backward()
    assert out.requires_grad
    assert not lse.requires_grad
    for tensor, copy in zip(inputs, before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.fixture
def poisoned_memory(monkeypatch):
    """torch.empty gives NaN, as memory that nobody has written may."""
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("kind", ["dense", "packed"])
@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
def test_every_element_is_written(kind, backward):
    # Queries without a key and keys without a query: both are written by nobody's loop.
    assert torch.empty(1).isnan().all()
    for shapes in (SHAPES, [(2, 200, 2, 32), (2, 20, 1, 32), (2, 20, 1, 40)]):
        inputs = reference.leaves(*shapes)
        with interpret():
            out, lse = attend(kind, inputs, causal=True, window=3, backward=backward)
            gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
        assert not lse.isnan().any()
        for tensor in (out, *gradients):
            assert tensor.isfinite().all()


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("dim_v", range(8, 257, 8))
@pytest.mark.parametrize(("arch", "shared_memory"), [("sm_80", 166912), ("sm_90a", 232448)])
def test_tiles_fit_the_shared_memory_of_a_block(arch, shared_memory, dim_v, windowed):
    for dim in range(8, 257, 8):
        with tvm.target.Target({"kind": "cuda", "arch": arch}):
            chosen = tiles.tiles_for(dim, dim_v, windowed=windowed)
        wide, wide_v = tiles.padded(dim), tiles.padded(dim_v)
        both = wide + wide_v
        for tile in (chosen.forward, chosen.query_block):
            held = tile.queries * max(both, 2 * wide_v)
            assert 2 * (held + max(tile.stages, 1) * tile.keys * both) <= shared_memory
        tile = chosen.key_block
        scores = 2 * tile.keys * tile.queries
        loaded = max(tile.stages, 1) * tile.queries * both
        dq_sums = 2 * tile.queries * wide if tile.tma_reduce else 0  # float32
        assert 2 * (tile.keys * both + loaded + scores + dq_sums) <= shared_memory


@pytest.mark.parametrize("kind", ["dense", "packed"])
@pytest.mark.parametrize("backward", ["atomic", "split", "grouped", "reordered"])
def test_tiles_of_ampere_compute_the_same(kind, backward):
    inputs = reference.leaves(*SHAPES)
    found = {}
    for arch in ("sm_80", "sm_90a"):
        with interpret(arch=arch):
            out, _ = attend(kind, inputs, causal=True, window=40, backward=backward)
            gradients = torch.autograd.grad(out.float().sum(), inputs)
        found[arch] = (out, *gradients)
    for ampere, hopper in zip(*found.values(), strict=True):
        torch.testing.assert_close(ampere, hopper, rtol=2e-2, atol=2e-2)
    assert tiles_in_force("sm_80") != tiles_in_force("sm_90a")


def tiles_in_force(arch):
    with tvm.target.Target({"kind": "cuda", "arch": arch}):
        return tiles.tiles_for(64, 64, windowed=False)


@pytest.mark.parametrize(("seqlen_k", "chosen"), [(128, "split"), (4096, "grouped")])
def test_the_backward_strategy_follows_the_work_where_none_is_asked_for(seqlen_k, chosen):
    q = torch.empty(1, seqlen_k, 32, 64, dtype=torch.float16, device="meta")
    k = torch.empty(1, seqlen_k, 8, 64, dtype=torch.float16, device="meta")
    call = check_dense(q, k, k, True, None, None, "bshd", None)
    assert call.backward == chosen
    assert check_dense(q, k, k, True, None, None, "bshd", "atomic").backward == "atomic"
