"""What specs of attention cannot say: which kernels are compiled, and tiles that fit every GPU."""

import math

import pytest
import torch
from tilelang import tvm

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import (
    dense_attention,
    kernels,
    paged_attention,
    sm100_attention,
    tiles,
    varlen_attention,
)
from tlmatrix_kernels.attention.decode.operators import decode_attention
from tlmatrix_kernels.attention.decode.splits import MAX_SPLITS, choose_splits
from tlmatrix_kernels.attention.sink import PART, sink_parts, sink_total
from tlmatrix_kernels.attention.sm100 import kernels as sm100
from tlmatrix_kernels.attention.sm100.tiles import sm100_tiles
from tlmatrix_kernels.attention.validate import check_dense

STRATEGIES = ("atomic", "split", "grouped", "reordered")


def leaves(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).half().requires_grad_() for shape in shapes]


def cumulative(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


FACTORIES = {
    "forward": 1,
    "prepare": 1,
    "key_gradients": 4,  # one a strategy
    "query_gradients": 1,
    "restore": 1,
}


@pytest.fixture
def built(monkeypatch):
    """The different arguments with which each factory was called."""
    keys = {name: set() for name in FACTORIES}
    for name in FACTORIES:
        factory = getattr(kernels, name)

        def noting(*key, factory=factory, name=name):
            keys[name].add(key)
            return factory(*key)

        monkeypatch.setattr(kernels, name, noting)
    return keys


def test_one_compiled_dense_kernel_serves_every_batch_length_head_count_and_scale(built):
    with interpret():
        for batch, rows, keys, kv_heads, scale in [(1, 3, 5, 1, 0.1), (2, 9, 4, 2, 0.2)]:
            shapes = [(batch, rows, kv_heads * 2, 32), *[(batch, keys, kv_heads, 32)] * 2]
            inputs = leaves(*shapes)
            for backward in STRATEGIES:
                out, _ = dense_attention(
                    *inputs, causal=True, window=rows, scale=scale, backward=backward
                )
                torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert {name: len(keys) for name, keys in built.items()} == FACTORIES


def test_one_compiled_packed_kernel_serves_every_batch_of_lengths(built):
    with interpret():
        for lengths in ([3], [5, 0, 2], [1] * 7):
            inputs = leaves((sum(lengths), 2, 32), *[(sum(lengths), 1, 32)] * 2)
            bounds = cumulative(lengths)
            for backward in STRATEGIES:
                out, _ = varlen_attention(*inputs, bounds, bounds, causal=True, backward=backward)
                torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert {name: len(keys) for name, keys in built.items()} == FACTORIES


def tiles_for(arch, dim, dim_v, *, windowed=False):
    with tvm.target.Target({"kind": "cuda", "arch": arch}):
        return tiles.tiles_for(dim, dim_v, windowed=windowed)


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize(("arch", "shared_memory"), [("sm_80", 166912), ("sm_90a", 232448)])
def test_tiles_fit_the_shared_memory_of_a_block(arch, shared_memory, windowed):
    for dim in range(32, 257, 32):
        for dim_v in range(32, 257, 32):
            chosen, both = tiles_for(arch, dim, dim_v, windowed=windowed), dim + dim_v
            for tile in (chosen.forward, chosen.query_block):
                held = tile.queries * max(both, 2 * dim_v)
                taken = 2 * (held + max(tile.stages, 1) * tile.keys * both)
                assert tile.blocks * taken <= shared_memory
            tile = chosen.key_block
            scores = 2 * tile.keys * tile.queries
            loaded = max(tile.stages, 1) * tile.queries * both
            dq_sums = 2 * tile.queries * dim if tile.tma_reduce else 0  # float32
            assert 2 * (tile.keys * both + loaded + scores + dq_sums) <= shared_memory


@pytest.mark.parametrize("blocks", [2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2])
def test_blocks_that_share_a_multiprocessor_share_its_registers(blocks, groups):
    # setmaxnreg waits for ever for registers that the block was not launched with
    tile = tiles.Tiles(queries=64, keys=64, stages=1, threads=128 * groups, blocks=blocks)
    launched = 65536 // blocks // (tile.threads + 128) // 8 * 8
    taken = tile.threads * tile.registers + 128 * tiles.PRODUCER_REGISTERS
    assert tile.registers % 8 == 0
    assert launched * (tile.threads + 128) - 8 * tile.threads < taken
    assert taken <= launched * (tile.threads + 128)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", ["ss", "ts", "wasp"])
def test_tiles_fit_shared_and_tensor_memory_of_blackwell(variant, causal):
    for width in range(32, 257, 32):
        for width_v in range(32, 257, 32):
            chosen = sm100_tiles(variant, width, width_v, causal=causal)
            rows = chosen.queries * (width + width_v)
            staged = chosen.stages * chosen.keys * (width + width_v)
            weights = chosen.queries * chosen.keys if variant == "ss" else 0
            reductions = 2 * 4 * chosen.threads if variant != "wasp" else 0
            assert 2 * (rows + staged + weights) + reductions + 1024 <= 232448
            scores = chosen.keys * (2 if variant == "wasp" else 1)
            allocations = [scores, width_v, *([chosen.keys // 2] if variant != "ss" else [])]
            assert sum(max(32, 1 << (n - 1).bit_length()) for n in allocations) <= 512
            assert width_v % chosen.part == 0


@pytest.mark.parametrize(("seqlen_k", "chosen"), [(128, "split"), (4096, "grouped")])
def test_the_backward_strategy_follows_the_work_where_none_is_asked_for(seqlen_k, chosen):
    q = torch.empty(1, seqlen_k, 32, 64, dtype=torch.float16, device="meta")
    k = torch.empty(1, seqlen_k, 8, 64, dtype=torch.float16, device="meta")
    assert check_dense(q, k, k, True, None, None, "bshd", None).backward == chosen
    assert check_dense(q, k, k, True, None, None, "bshd", "atomic").backward == "atomic"


@pytest.mark.parametrize("rows", [1, PART, 5 * PART - 7])
def test_the_gradient_of_a_sink_sums_every_row_once(rows):
    """Rows for several blocks, of which a spec's case would take minutes."""
    generator = torch.Generator().manual_seed(rows)
    lse, delta = torch.randn(2, 3, 2, rows, generator=generator)
    sink = torch.randn(2, generator=generator)
    parts, dsink = torch.full((2, 3, -(-rows // PART)), math.nan), torch.full((2,), math.nan)
    with interpret(sanitize=True):
        sink_parts("float32")(sink, lse * math.log2(math.e), delta, parts)
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


def test_splits_fill_the_sms_once():
    assert choose_splits(1, 1, 264) == 1
    assert choose_splits(10_000, 1000, 264) == 1
    assert choose_splits(8, 2048, 264) == 32  # nearly one wave of 264 blocks
    assert 0.9 * MAX_SPLITS < choose_splits(1, 10**6, 264) <= MAX_SPLITS
    assert choose_splits(512, 64, 264) * 512 >= 264
    assert choose_splits(8, 8, 264) <= 2  # short keys are not cut to pieces


@pytest.mark.parametrize("store", ["cache", "pages"])
def test_offsets_past_two_to_the_31st_reach_their_keys(store):
    """Memory that nothing touches costs nothing: 2**31 elements of which the last are used."""
    length, dim = 40, 64
    count = 2**31 // (64 * dim) + 3
    q, keys, values = (t.detach() for t in leaves((1, 1, dim), (40, 1, dim), (40, 1, dim)))
    pools = [torch.empty(count, 64, 1, dim, dtype=torch.float16) for _ in range(2)]
    for pool, rows in zip(pools, (keys, values), strict=True):
        pool[-1, :length] = rows
    seqlens = torch.tensor([length if store == "pages" else count * 64 - 24], dtype=torch.int32)
    with interpret():
        if store == "pages":
            table = torch.tensor([[count - 1]], dtype=torch.int32)
            out, _ = paged_attention(q, *pools, table, seqlens)
        else:
            caches = [pool.view(1, -1, 1, dim) for pool in pools]
            out, _ = decode_attention(q, *caches, seqlens, window=length, splits=1)
    weights = (keys[:, 0].double() @ q[0, 0].double() * dim**-0.5).softmax(0)
    torch.testing.assert_close(
        out[0, 0].double(), weights @ values[:, 0].double(), rtol=0, atol=2e-3
    )


def test_wasp_falls_back_with_a_warning_where_it_cannot_be_built(monkeypatch):
    forward, built = sm100.forward, []

    def no_wasp(variant, *static):
        if variant == "wasp":
            raise RuntimeError("ptxas: out of luck\nand more")
        built.append(variant)
        return forward(variant, *static)

    monkeypatch.setattr(sm100, "forward", no_wasp)
    rows = torch.ones(1, 20, 1, 64).half()
    with (
        interpret(arch="sm_100a"),
        pytest.warns(RuntimeWarning, match=r"'wasp' cannot be built here.*\(RuntimeError: ptxas: "),
    ):
        assert torch.equal(sm100_attention(rows, rows, rows)[0], rows)
    assert built == ["ts"]


@pytest.mark.parametrize("variant", ["ss", "ts"])
def test_the_other_variants_do_not_fall_back(monkeypatch, variant):
    def none(variant, *_static):
        raise RuntimeError(f"no {variant}")

    monkeypatch.setattr(sm100, "forward", none)
    rows = torch.ones(1, 20, 1, 64).half()
    with pytest.raises(RuntimeError, match=f"no {variant}"):
        sm100_attention(rows, rows, rows, variant=variant)
