"""The tests that people write by hand, of every operator: one aligned shape, forward and backward.

Each compares what an operator returns, and the gradients, with a float32 reference in PyTorch by
`assert_close(rtol=1e-2, atol=1e-2)` (see `plain`); lengths are multiples of every tile, inputs
are standard normal. They are what the planted bugs are measured against a second time, and no
strawman: every strategy and variant has a test of its own, causal and not, and windows, sinks and
transposed operands have theirs. Operators of several ranks run on two simulated ones, and nobody
looks at what the simulation reports: only values count, as on GPUs.
"""

import itertools
from collections.abc import Callable

import torch
from plain import Pairs, PlainTest

__all__ = ["plain_tests"]

ATTENTION = "tlmatrix_kernels.attention"
GEMM = "tlmatrix_kernels.gemm"
DISTRIBUTED = "tlmatrix_kernels.distributed"
SEQLEN = 384  # a multiple of 64, of 128 and of 192, which are all tiles there are
BATCH, HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 64
STRATEGIES = ("atomic", "split", "grouped", "reordered")
WORLD = 2
ROWS = 256  # of every rank
CHUNKS = 2 * WORLD * SEQLEN  # a sequence whose chunks, two of each rank, are multiples of all tiles


def _normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _attention(q, k, v, *, causal=False, window=None, sink=None):
    """Attention of [batch, seqlen, heads, dim] in float32."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    query = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    key = torch.arange(k.shape[2])[None, :]
    if causal:
        scores = scores.masked_fill(key > query, float("-inf"))
    if window is not None:
        scores = scores.masked_fill(key <= query - window, float("-inf"))
    if sink is not None:
        column = sink.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=3)
    weights = scores.softmax(dim=3)[..., : k.shape[2]]
    return (weights @ v).transpose(1, 2)


def _with_gradients(out, lse, expected, inputs: dict[str, torch.Tensor]) -> Pairs:
    """Out and the gradients of the inputs, beside the reference's; lse is looked at by nobody."""
    do = _normal(*out.shape, dtype=out.dtype)
    leaves = tuple(inputs.values())
    got = torch.autograd.grad(out, leaves, do)
    wanted = torch.autograd.grad(expected, leaves, do.float())
    pairs = {"out": (out.detach(), expected.detach())}
    if lse is not None:
        pairs["lse"] = (lse, None)
    for name, mine, other in zip(inputs, got, wanted, strict=True):
        pairs[f"d{name}"] = (mine, other)
    return pairs


def _inputs(batch: int, heads: int = HEADS) -> dict[str, torch.Tensor]:
    shapes = {"q": heads, "k": KV_HEADS, "v": KV_HEADS}
    return {
        name: _normal(batch, SEQLEN, count, HEAD_DIM).requires_grad_()
        for name, count in shapes.items()
    }


def _dense(*, sinks=False, layout="bshd", **options) -> Pairs:
    from tlmatrix_kernels.attention import dense_attention

    inputs = _inputs(BATCH)
    q, k, v = inputs.values()
    if sinks:
        inputs["sink"] = torch.randn(HEADS).requires_grad_()
    sink = inputs.get("sink")
    turned = [each.transpose(1, 2) if layout == "bhsd" else each for each in (q, k, v)]
    out, lse = dense_attention(*turned, sink=sink, layout=layout, **options)
    out = out.transpose(1, 2) if layout == "bhsd" else out
    wanted = {name: options[name] for name in ("causal", "window") if name in options}
    return _with_gradients(out, lse, _attention(q, k, v, sink=sink, **wanted), inputs)


def _varlen(*, sinks=False, **options) -> Pairs:
    from tlmatrix_kernels.attention import varlen_attention

    inputs = _inputs(BATCH)
    q, k, v = inputs.values()
    if sinks:
        inputs["sink"] = torch.randn(HEADS).requires_grad_()
    sink = inputs.get("sink")
    bounds = torch.arange(BATCH + 1, dtype=torch.int32) * SEQLEN
    packed = (each.flatten(0, 1) for each in (q, k, v))
    out, lse = varlen_attention(*packed, bounds, bounds, SEQLEN, SEQLEN, sink=sink, **options)
    wanted = {name: options[name] for name in ("causal", "window") if name in options}
    expected = _attention(q, k, v, sink=sink, **wanted)
    return _with_gradients(out.unflatten(0, (BATCH, SEQLEN)), lse, expected, inputs)


def _padded(*, causal: bool) -> Pairs:
    from tlmatrix_kernels.attention import padded_attention

    inputs = _inputs(BATCH)
    mask = torch.ones(BATCH, SEQLEN, dtype=torch.bool)
    out, lse = padded_attention(*inputs.values(), mask, mask, causal=causal, backward="split")
    return _with_gradients(out, lse, _attention(*inputs.values(), causal=causal), inputs)


def _sm100(*, variant="wasp", causal=False, backward=False) -> Pairs:
    from tlmatrix_kernels.attention import sm100_attention

    inputs = _inputs(1)
    expected = _attention(*inputs.values(), causal=causal)
    if backward:
        out, lse = sm100_attention(*inputs.values(), causal=causal, variant=variant)
        return _with_gradients(out, lse, expected, inputs)
    with torch.no_grad():
        out, lse = sm100_attention(*inputs.values(), causal=causal, variant=variant)
    return {"out": (out, expected.detach()), "lse": (lse, None)}


def _decode(*, page_size=None, sinks=False, **options) -> Pairs:
    from tlmatrix_kernels.attention import decode_attention, paged_attention

    batch, length, heads = 4, 512, 8
    q = _normal(batch, heads, HEAD_DIM)
    k, v = (_normal(batch, length, KV_HEADS, HEAD_DIM) for _ in "kv")
    seqlens = torch.full((batch,), length, dtype=torch.int32)
    sink = torch.randn(heads) if sinks else None
    if page_size is None:
        out, lse = decode_attention(q, k, v, seqlens, sink=sink, **options)
    else:
        count = batch * length // page_size
        order = torch.randperm(count)
        pages = [torch.empty(count, page_size, KV_HEADS, HEAD_DIM, dtype=q.dtype) for _ in "kv"]
        for page, tensor in zip(pages, (k, v), strict=True):
            page[order] = tensor.reshape(count, page_size, KV_HEADS, HEAD_DIM)
        table = order.view(batch, -1).int()
        out, lse = paged_attention(q, *pages, table, seqlens, sink=sink, **options)
    expected = _attention(q[:, None], k, v, sink=sink, window=options.get("window"))
    return {"out": (out, expected[:, 0]), "lse": (lse, None)}


def _matrices(transpose_a: bool, transpose_b: bool) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = _normal(256, 256), _normal(256, 256)
    return (a.T.contiguous() if transpose_a else a), (b.T.contiguous() if transpose_b else b)


def _turned(tensor: torch.Tensor, transposed: bool) -> torch.Tensor:
    return (tensor.T if transposed else tensor).float()


def _gemm(*, split=False, accumulate=False, transpose_a=False, transpose_b=False, **options):
    from tlmatrix_kernels.gemm import gemm, gemm_split_k

    a, b = _matrices(transpose_a, transpose_b)
    c = _normal(256, 256) if accumulate else None
    out = (gemm_split_k if split else gemm)(
        a, b, c, transpose_a=transpose_a, transpose_b=transpose_b, accumulate=accumulate, **options
    )
    expected = _turned(a, transpose_a) @ _turned(b, transpose_b)
    return {"out": (out, expected + (0 if c is None else c))}


def _mixed(*, a_dtype: torch.dtype, b_dtype: torch.dtype, scaled=False, transpose_b=True) -> Pairs:
    from tlmatrix_kernels.gemm import gemm_mixed

    def operand(dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.int8:
            return torch.randint(-8, 8, (256, 256)).to(dtype)
        # Small, or the bits of a sum of float8 that Hopper cuts off are more than a hundredth.
        return (_normal(256, 256) / 4).to(dtype)

    a, b = operand(a_dtype), operand(b_dtype)
    scale = torch.rand(256) if scaled else None
    out = gemm_mixed(a, b, scale=scale, transpose_b=transpose_b)
    expected = a.float() @ _turned(b, transpose_b)
    return {"out": (out, expected if scale is None else expected * scale)}


def _rms_norm() -> Pairs:
    from tlmatrix_kernels.norm import rms_norm

    x, w = _normal(64, 1024).requires_grad_(), _normal(1024).requires_grad_()
    wide = x.float()
    expected = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-6) * w.float()
    return _with_gradients(rms_norm(x, w), None, expected, {"x": x, "w": w})


def _atomic_add(*, order: str) -> Pairs:
    from tlmatrix_kernels.atomics import atomic_add_layout

    x = torch.randn(4, 64, 64)
    total, memory = atomic_add_layout(x, order=order)
    return {"total": (total, x.sum(0)), "memory": (memory, None)}


def _atomic_cells(*, operation: str) -> Pairs:
    from tlmatrix_kernels.atomics import atomic_cells

    x, start = torch.randn(128), torch.zeros(64)
    cells, _ = atomic_cells(x, start, operation=operation)
    pairs = x.view(2, 64)
    wanted = {"add": torch.full((64,), 2.0), "max": pairs.amax(0).clamp(min=0)}
    return {"cells": (cells, wanted[operation])}


def _on_ranks(program: Callable[[int], dict[str, torch.Tensor]], expected: Pairs) -> Pairs:
    """What each rank makes beside its share of what all of them should: (whole, None) by name."""
    from tlmatrix import simulate

    results = simulate(program, world=WORLD).results
    return {
        f"{name} {rank}": (got, expected[name][0].chunk(WORLD)[rank])
        for rank, result in enumerate(results)
        for name, got in result.items()
    }


def _all_gather() -> Pairs:
    from tlmatrix_kernels.distributed import all_gather, create_context

    x = _normal(WORLD * ROWS, 64)

    def program(rank: int) -> dict[str, torch.Tensor]:
        return {"out": all_gather(x.chunk(WORLD)[rank], context=create_context())}

    return _on_ranks(program, {"out": (x.repeat(WORLD, 1), None)})


def _reduce_scatter() -> Pairs:
    from tlmatrix_kernels.distributed import create_context, reduce_scatter

    x = _normal(WORLD, WORLD * ROWS, 64)

    def program(rank: int) -> dict[str, torch.Tensor]:
        return {"out": reduce_scatter(x[rank], context=create_context())}

    return _on_ranks(program, {"out": (x.float().sum(0), None)})


def _reduce_scatter_two_level() -> Pairs:
    from tlmatrix_kernels.distributed import create_two_level_context, reduce_scatter_two_level

    x = _normal(WORLD, WORLD * ROWS, 64)

    def program(rank: int) -> dict[str, torch.Tensor]:
        context = create_two_level_context(WORLD)
        return {"out": reduce_scatter_two_level(x[rank], context=context)}

    return _on_ranks(program, {"out": (x.float().sum(0), None)})


def _all_gather_gemm(*, transpose_b=False, **options) -> Pairs:
    from tlmatrix_kernels.distributed import all_gather_gemm, create_context

    a, b = _normal(WORLD * ROWS, 128), _normal(WORLD, 128, 128)

    def program(rank: int) -> dict[str, torch.Tensor]:
        shard = a.chunk(WORLD)[rank]
        context = create_context()
        out = all_gather_gemm(shard, b[rank], context=context, transpose_b=transpose_b, **options)
        return {"out": out}

    products = [a.float() @ _turned(each, transpose_b) for each in b]
    return _on_ranks(program, {"out": (torch.cat(products), None)})


def _gemm_reduce_scatter(*, with_bias=False, transpose_b=False, **options) -> Pairs:
    from tlmatrix_kernels.distributed import create_context, gemm_reduce_scatter

    # Small, or the products that each rank rounds to 16 bits are more than a hundredth off.
    a, b = _normal(WORLD, WORLD * ROWS, 128) / 8, _normal(WORLD, 128, 128)
    bias = torch.randn(128) if with_bias else None

    def program(rank: int) -> dict[str, torch.Tensor]:
        context = create_context()
        out = gemm_reduce_scatter(
            a[rank], b[rank], bias, context=context, transpose_b=transpose_b, **options
        )
        return {"out": out}

    products = [a[rank].float() @ _turned(b[rank], transpose_b) for rank in range(WORLD)]
    whole = sum(products) + (0 if bias is None else bias)
    return _on_ranks(program, {"out": (whole, None)})


def _gemm_reduce_scatter_two_level(*, transpose_b=False) -> Pairs:
    from tlmatrix_kernels.distributed import create_two_level_context, gemm_reduce_scatter_two_level

    a, b = _normal(WORLD, WORLD * ROWS, 128) / 8, _normal(WORLD, 128, 128)

    def program(rank: int) -> dict[str, torch.Tensor]:
        context = create_two_level_context(WORLD)
        out = gemm_reduce_scatter_two_level(
            a[rank], b[rank], context=context, transpose_b=transpose_b
        )
        return {"out": out}

    products = [a[rank].float() @ _turned(b[rank], transpose_b) for rank in range(WORLD)]
    return _on_ranks(program, {"out": (sum(products), None)})


def _sequence_attention(*, packed=False, causal=False) -> Pairs:
    from tlmatrix_kernels.distributed import create_context
    from tlmatrix_kernels.distributed.attention import (
        Sharding,
        sequence_attention,
        sequence_attention_varlen,
    )

    q, k, v, do = (_normal(1, CHUNKS, heads, HEAD_DIM) for heads in (2, 1, 1, 2))
    own = [Sharding("zigzag", WORLD).positions((CHUNKS,), rank) for rank in range(WORLD)]
    bounds = torch.tensor([0, CHUNKS], dtype=torch.int32)

    def program(rank: int) -> dict[str, torch.Tensor]:
        context = create_context()
        shards = [each[:, own[rank]].requires_grad_() for each in (q, k, v)]
        if packed:
            flat = (each[0] for each in shards)
            out, _ = sequence_attention_varlen(
                *flat, bounds, bounds, context=context, causal=causal
            )
            out = out[None]
        else:
            out, _ = sequence_attention(*shards, context=context, causal=causal)
        gradients = torch.autograd.grad(out, shards, do[:, own[rank]])
        names = ("out", "dq", "dk", "dv")
        found = zip(names, (out.detach(), *gradients), strict=True)
        return {name: tensor[0] for name, tensor in found}

    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    out = _attention(*leaves, causal=causal)
    whole = (out.detach(), *torch.autograd.grad(out, leaves, do.float()))
    places = torch.cat([torch.as_tensor(each) for each in own])
    names = ("out", "dq", "dk", "dv")
    expected = zip(names, whole, strict=True)
    return _on_ranks(program, {name: (each[0, places], None) for name, each in expected})


def plain_tests() -> list[PlainTest]:
    """All of them."""
    tests = []

    def add(entry: str, run, arch: str = "sm_90a", **options) -> None:
        name = entry.rpartition(":")[2]
        tests.append(PlainTest(name, entry, run, options, arch))

    for backward, causal in itertools.product(STRATEGIES, (False, True)):
        add(f"{ATTENTION}:dense_attention", _dense, backward=backward, causal=causal)
        add(f"{ATTENTION}:varlen_attention", _varlen, backward=backward, causal=causal)
    for entry, run in (("dense_attention", _dense), ("varlen_attention", _varlen)):
        add(f"{ATTENTION}:{entry}", run, causal=True, window=128)
        add(f"{ATTENTION}:{entry}", run, causal=True, sinks=True)
        add(f"{ATTENTION}:{entry}", run, causal=True, sinks=True, window=128)
    add(f"{ATTENTION}:dense_attention", _dense, layout="bhsd", causal=True)
    for causal in (False, True):
        add(f"{ATTENTION}:padded_attention", _padded, causal=causal)
        for variant in ("ss", "ts", "wasp"):
            sm100 = {"variant": variant, "causal": causal}
            add(f"{ATTENTION}:sm100_attention", _sm100, "sm_100a", **sm100)
        add(f"{ATTENTION}:sm100_attention", _sm100, "sm_100a", causal=causal, backward=True)
    for page_size in (None, 16, 64):
        paged = {} if page_size is None else {"page_size": page_size}
        entry = f"{ATTENTION}:{'paged_attention' if paged else 'decode_attention'}"
        add(entry, _decode, **paged)
        add(entry, _decode, splits=4, **paged)
        add(entry, _decode, sinks=True, window=128, **paged)
    for transposed in ((False, False), (False, True), (True, False)):
        turned = dict(zip(("transpose_a", "transpose_b"), transposed, strict=True))
        add(f"{GEMM}:gemm", _gemm, **turned)
        for variant, arch in (
            ("tcgen05", "sm_100a"), ("tcgen05_ws", "sm_100a"), ("wgmma_ws", "sm_90a"),
        ):  # fmt: skip
            add(f"{GEMM}:gemm", _gemm, arch, variant=variant, **turned)
        for reduction in ("workspace", "atomic"):
            split = {"split": True, "splits": 4, "reduction": reduction}
            add(f"{GEMM}:gemm_split_k", _gemm, **split, **turned)
    add(f"{GEMM}:gemm", _gemm, accumulate=True)
    add(f"{GEMM}:gemm_split_k", _gemm, split=True, splits=4, accumulate=True)
    eight = torch.float8_e4m3fn
    for a_dtype, b_dtype in (
        (torch.float16, torch.int8), (torch.float16, eight), (eight, eight),
        (torch.int8, torch.int8),
    ):  # fmt: skip
        for transpose_b in (False, True):
            mixed = {"a_dtype": a_dtype, "b_dtype": b_dtype, "transpose_b": transpose_b}
            add(f"{GEMM}:gemm_mixed", _mixed, **mixed)
    add(f"{GEMM}:gemm_mixed", _mixed, a_dtype=torch.float16, b_dtype=torch.int8, scaled=True)
    add("tlmatrix_kernels.norm:rms_norm", _rms_norm)
    for order in ("rows", "quads"):
        add("tlmatrix_kernels.atomics:atomic_add_layout", _atomic_add, order=order)
    for operation in ("add", "max"):
        add("tlmatrix_kernels.atomics:atomic_cells", _atomic_cells, operation=operation)
    add(f"{DISTRIBUTED}:all_gather", _all_gather)
    add(f"{DISTRIBUTED}:reduce_scatter", _reduce_scatter)
    add(f"{DISTRIBUTED}:reduce_scatter_two_level", _reduce_scatter_two_level)
    for overlap, transpose_b in itertools.product((False, True), repeat=2):
        ways = {"overlap": overlap, "transpose_b": transpose_b}
        add(f"{DISTRIBUTED}:all_gather_gemm", _all_gather_gemm, **ways)
        add(f"{DISTRIBUTED}:gemm_reduce_scatter", _gemm_reduce_scatter, **ways)
    add(f"{DISTRIBUTED}:gemm_reduce_scatter", _gemm_reduce_scatter, overlap=True, with_bias=True)
    for transpose_b in (False, True):
        two_level = f"{DISTRIBUTED}:gemm_reduce_scatter_two_level"
        add(two_level, _gemm_reduce_scatter_two_level, transpose_b=transpose_b)
    for causal in (False, True):
        sequence = f"{DISTRIBUTED}.attention:sequence_attention"
        add(sequence, _sequence_attention, causal=causal)
        add(f"{sequence}_varlen", _sequence_attention, packed=True, causal=causal)
    return tests
