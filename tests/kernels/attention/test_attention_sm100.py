"""Attention on Blackwell is right under every schedule of its roles, and refuses what it must."""

import pytest
import torch
from attention_reference import dense as reference

from tlmatrix.interpreter import SCHEDULES, interpret, scheduled
from tlmatrix_kernels.attention import sm100_attention
from tlmatrix_kernels.attention.sm100 import kernels
from tlmatrix_kernels.attention.sm100.tiles import sm100_tiles

VARIANTS = ("ss", "ts", "wasp")


def inputs(seqlen_q, seqlen_k, heads=2, kv_heads=1, head_dim=64, head_dim_v=64, layout="bshd"):
    generator = torch.Generator().manual_seed(seqlen_q * 1000 + seqlen_k)

    def rows(seqlen, heads, dim):
        tensor = torch.randn(1, seqlen, heads, dim, generator=generator).half()
        return tensor if layout == "bshd" else tensor.transpose(1, 2).contiguous()

    return (
        rows(seqlen_q, heads, head_dim),
        rows(seqlen_k, kv_heads, head_dim),
        rows(seqlen_k, kv_heads, head_dim_v),
    )


def agrees(got, tensors, **options):
    out, lse = reference(*(tensor.double() for tensor in tensors), **options)
    torch.testing.assert_close(got[0].double(), out, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(got[1].double(), lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "options"),
    [
        (130, 700, {"causal": False}),
        (300, 300, {"causal": True}),
        (300, 170, {"causal": True}),  # the first queries see no key
        (64, 600, {"causal": True, "window": 140}),
    ],
)
def test_right_under_every_schedule_and_nothing_races(variant, seqlen_q, seqlen_k, options):
    tensors = inputs(seqlen_q, seqlen_k, head_dim_v=96)
    with interpret(arch="sm_100a"):
        for seed, schedule in enumerate(2 * SCHEDULES):
            with scheduled(schedule, seed=seed):
                agrees(sm100_attention(*tensors, variant=variant, **options), tensors, **options)


@pytest.mark.parametrize("dims", [(32, 32), (40, 160), (192, 192), (256, 256)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_head_dims_up_to_256(variant, dims):
    tensors = inputs(129, 300, head_dim=dims[0], head_dim_v=dims[1], layout="bhsd")
    with interpret(arch="sm_100a"), scheduled("random", seed=1):
        got = sm100_attention(*tensors, variant=variant, layout="bhsd")
    agrees(got, tensors, layout="bhsd")


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "options"),
    [(300, 140, {"causal": True}), (64, 200, {"causal": True, "window": 100}), (130, 130, {})],
)
def test_gradients_are_right_under_every_schedule(seqlen_q, seqlen_k, options):
    tensors = inputs(seqlen_q, seqlen_k, heads=4, kv_heads=2, head_dim=64, head_dim_v=32)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    wide = [tensor.double().requires_grad_() for tensor in tensors]
    do = torch.randn(*tensors[0].shape[:3], 32, generator=torch.Generator().manual_seed(1)).half()
    out, _ = reference(*wide, **options)
    exact = torch.autograd.grad(out, wide, do.double())
    with interpret(arch="sm_100a"):
        for seed, schedule in enumerate(SCHEDULES):
            with scheduled(schedule, seed=seed):
                out, _ = sm100_attention(*leaves, **options)
                found = torch.autograd.grad(out, leaves, do)
            for got, want in zip(found, exact, strict=True):
                torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=1e-2)


def test_gradients_of_wide_heads_are_refused_and_their_forward_pass_is_not():
    q, k, v = inputs(20, 30, head_dim=160)
    with pytest.raises(ValueError, match=r"head_dim must be at most 128 .* gradients, got 160"):
        sm100_attention(q.requires_grad_(), k, v)
    with interpret(arch="sm_100a"), torch.no_grad():
        agrees(sm100_attention(q, k, v), (q, k, v))


def test_backward_without_keys_is_zero():
    q, k, v = (tensor.requires_grad_() for tensor in inputs(5, 0))
    out, _ = sm100_attention(q, k, v)
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(0, 5), (5, 0)])
def test_empty_queries_or_keys(seqlen_q, seqlen_k):
    q, k, v = inputs(seqlen_q, seqlen_k)
    out, lse = sm100_attention(q, k, v)
    assert out.shape == q.shape
    assert not out.any()
    assert (lse == float("-inf")).all()


def test_an_unknown_variant_is_refused_by_name():
    with pytest.raises(ValueError, match="variant must be one of ss, ts, wasp, got 'sw'"):
        sm100_attention(*inputs(8, 8), variant="sw")


def test_variants_are_distinct_kernels():
    static = ("bshd", "float16", 2, 64, 64, True, False)
    with interpret(arch="sm_100a"):
        sources = {kernels.forward(variant, *static).source for variant in VARIANTS}
    assert len(sources) == len(VARIANTS)


def test_wasp_falls_back_with_a_warning_where_it_cannot_be_built(monkeypatch):
    built = []

    def no_wasp(variant, *static):
        if variant == "wasp":
            raise RuntimeError("ptxas: out of luck\nand more")
        built.append(variant)
        return forward(variant, *static)

    forward = kernels.forward
    monkeypatch.setattr(kernels, "forward", no_wasp)
    tensors = inputs(20, 30)
    with (
        interpret(arch="sm_100a"),
        pytest.warns(RuntimeWarning, match=r"'wasp' cannot be built here.*\(RuntimeError: ptxas: "),
    ):
        agrees(sm100_attention(*tensors), tensors)
    assert built == ["ts"]
    with pytest.raises(RuntimeError, match="out of luck"):
        no_wasp("wasp")


def test_the_other_variants_do_not_fall_back(monkeypatch):
    def none(variant, *_static):
        raise RuntimeError(f"no {variant}")

    monkeypatch.setattr(kernels, "forward", none)
    for variant in ("ss", "ts"):
        with pytest.raises(RuntimeError, match=f"no {variant}"):
            sm100_attention(*inputs(20, 30), variant=variant)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiles_fit_shared_and_tensor_memory_at_every_head_dim(variant, causal):
    for head_dim in range(8, 257, 8):
        for head_dim_v in range(8, 257, 8):
            tiles = sm100_tiles(variant, head_dim, head_dim_v, causal=causal)
            width, width_v = (-(-dim // 32) * 32 for dim in (head_dim, head_dim_v))
            rows = tiles.queries * (width + width_v)
            staged = tiles.stages * tiles.keys * (width + width_v)
            weights = tiles.queries * tiles.keys if variant == "ss" else 0
            reductions = 2 * 4 * tiles.threads if variant != "wasp" else 0
            assert 2 * (rows + staged + weights) + reductions + 1024 <= 232448
            scores = tiles.keys * (2 if variant == "wasp" else 1)
            allocations = [scores, width_v, *([tiles.keys // 2] if variant != "ss" else [])]
            assert sum(max(32, 1 << (n - 1).bit_length()) for n in allocations) <= 512
            assert width_v % tiles.part == 0
