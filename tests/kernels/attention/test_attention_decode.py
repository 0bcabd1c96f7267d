"""Decoding is the definition for every batch of lengths, and reads nothing but its own keys."""

import pytest
import torch

from tlmatrix.interpreter import interpret
from tlmatrix_kernels.attention import decode_attention, paged_attention
from tlmatrix_kernels.attention.decode.splits import MAX_SPLITS, choose_splits

NAN = float("nan")
NO_PAGE = 2**31 - 1


def definition(q, k, v, lengths, window=None, sink=None):
    """Out and lse in float64, one sequence and one head at a time."""
    batch, heads, dim = q.shape
    groups = heads // k.shape[2]
    out = torch.zeros(batch, heads, v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads), -torch.inf, dtype=torch.float64)
    for b, length in enumerate(lengths):
        begin = max(length - window, 0) if window else 0
        for h in range(heads):
            keys = k[b, begin:length, h // groups].double()
            values = v[b, begin:length, h // groups].double()
            scores = keys @ q[b, h].double() * dim**-0.5
            logits = scores if sink is None else torch.cat([scores, sink[h : h + 1].double()])
            if len(logits):
                lse[b, h] = logits.logsumexp(0)
                out[b, h] = (scores - lse[b, h]).exp() @ values
    return out, lse


def cached(lengths, kv_heads=2, groups=3, dim=32, dim_v=32, dtype=torch.float16, room=9):
    """q, and a cache whose rows past the lengths are NaN."""
    torch.manual_seed(1)
    most = max(lengths) + room
    q = torch.randn(len(lengths), kv_heads * groups, dim).to(dtype)
    k = torch.randn(len(lengths), most, kv_heads, dim).to(dtype)
    v = torch.randn(len(lengths), most, kv_heads, dim_v).to(dtype)
    for b, length in enumerate(lengths):
        k[b, length:] = v[b, length:] = NAN
    return q, k, v


def in_pages(k, v, lengths, page_size, window=None):
    """The cache in shuffled pages; what is not owned is NaN, or no page.

    With a window, pages that hold no visible key have been given back.
    """
    first = [(max(n - window, 0) if window else 0) // page_size for n in lengths]
    last = [-(-n // page_size) for n in lengths]
    order = torch.randperm(sum(last) + 2).tolist()
    pools = [torch.full((len(order), page_size, *t.shape[2:]), NAN, dtype=t.dtype) for t in (k, v)]
    table = torch.full((len(lengths), max(last) + 1), NO_PAGE, dtype=torch.int32)
    table[:, -1] = -1
    for b, length in enumerate(lengths):
        for entry in range(first[b], last[b]):
            table[b, entry] = page = order.pop()
            begin, end = entry * page_size, min((entry + 1) * page_size, length)
            for pool, rows in zip(pools, (k, v), strict=True):
                pool[page, : end - begin] = rows[b, begin:end]
    return *pools, table


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def compare(found, want, dtype=torch.float16):
    tolerance = 2e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(found[0].double(), want[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found[1].double(), want[1], rtol=1e-5, atol=1e-5)


CASES = [
    pytest.param([70, 1, 0, 64], {}, id="around-a-tile"),
    pytest.param([200, 3], {"kv_heads": 1, "groups": 7, "dim": 40, "dim_v": 72}, id="odd-dims"),
    pytest.param([90], {"kv_heads": 1, "groups": 66}, id="more-heads-than-rows"),
    pytest.param([130, 20], {"dim": 192, "dim_v": 128, "dtype": torch.bfloat16}, id="mla-like"),
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("lengths", "shape"), CASES)
def test_a_cache_and_its_pages_give_the_definition(lengths, shape, arch):
    q, k, v = cached(lengths, **shape)
    want = definition(q, k, v, lengths)
    with interpret(arch=arch):
        one = decode_attention(q, k, v, int32(lengths), splits=1)
        some = decode_attention(q, k, v, int32(lengths), splits=3)
        paged = paged_attention(q, *in_pages(k, v, lengths, 16), int32(lengths), splits=3)
    for found in (one, some, paged):
        compare(found, want, q.dtype)
    assert torch.equal(some[0], paged[0])
    assert torch.equal(some[1], paged[1])


@pytest.mark.parametrize("page_size", [16, 32, 64, 128, 256, 1024])
@pytest.mark.parametrize("window", [None, 1, 65])
def test_every_page_size_and_pages_behind_the_window(page_size, window):
    lengths = [150, 0, 33, 257]
    q, k, v = cached(lengths)
    with interpret():
        found = paged_attention(
            q, *in_pages(k, v, lengths, page_size, window), int32(lengths), window=window, splits=2
        )
    compare(found, definition(q, k, v, lengths, window))


@pytest.mark.parametrize("page_size", [16, 128])
def test_no_page_is_read_that_holds_no_key(page_size):
    """No access is even guarded away: neither table entries nor pages are taken on trust."""
    lengths = [150, 64, 1, 257]
    q, k, v = cached(lengths, kv_heads=1, groups=64, dim=64, dim_v=64)
    pools = in_pages(k, v, lengths, page_size)
    with interpret(sanitize={"bounds", "guarded"}) as run:
        paged_attention(q, *pools, int32(lengths), splits=2)
    assert run.reports == []


@pytest.mark.parametrize("splits", [1, 4])
def test_a_sink_is_one_more_key_without_a_value(splits):
    lengths = [5, 0, 140]
    q, k, v = cached(lengths)
    sink = torch.randn(6)
    with interpret():
        found = decode_attention(q, k, v, int32(lengths), sink=sink, splits=splits)
    compare(found, definition(q, k, v, lengths, sink=sink))
    assert torch.equal(found[1][1], sink)


def test_equal_splits_are_bitwise_equal_in_another_batch():
    lengths = [300, 20, 129]
    q, k, v = cached(lengths)
    with interpret():
        out, lse = decode_attention(q, k, v, int32(lengths), splits=3)
        alone = decode_attention(q[2:], k[2:], v[2:], int32(lengths[2:]), splits=3)
    assert torch.equal(out[2:], alone[0])
    assert torch.equal(lse[2:], alone[1])


@pytest.mark.parametrize("sink", [None, torch.tensor([0.5, -1.0])])
def test_cache_of_zero_length_has_no_keys(sink):
    q = torch.randn(3, 2, 32).half()
    empty = torch.empty(3, 0, 1, 32).half()
    out, lse = decode_attention(q, empty, empty, int32([0, 0, 0]), sink=sink)
    assert torch.equal(out, torch.zeros(3, 2, 32).half())
    assert torch.equal(lse, torch.full((3, 2), -torch.inf) if sink is None else sink.expand(3, 2))
    out, lse = decode_attention(q[:0], empty[:0], empty[:0], int32([]))
    assert out.shape == (0, 2, 32)


def test_a_cache_must_be_contiguous_for_it_is_never_copied():
    q, k, v = cached([5])
    with pytest.raises(ValueError, match="k_cache must be contiguous, got strides"):
        decode_attention(q, k.transpose(1, 2).contiguous().transpose(1, 2), v, int32([5]))
    pages = torch.zeros(4, 16, 2, 33, dtype=torch.float16).flatten()[1:]
    shifted = pages[: 3 * 16 * 2 * 32].view(3, 16, 2, 32)
    with pytest.raises(ValueError, match="k_pages must begin at a multiple of 16 bytes"):
        paged_attention(q, shifted, shifted, int32([[0]]), int32([5]))


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
    q, k, v = cached([length], kv_heads=1, groups=1, dim=dim, dim_v=dim, room=24)
    pools = [torch.empty(count, 64, 1, dim, dtype=torch.float16) for _ in range(2)]
    for pool, rows in zip(pools, (k, v), strict=True):
        pool[-1] = rows[0]
    with interpret():
        if store == "pages":
            found = paged_attention(q, *pools, int32([[count - 1]]), int32([length]))
        else:
            long = [pool.view(1, -1, 1, dim) for pool in pools]
            found = decode_attention(q, *long, int32([count * 64 - 24]), window=length, splits=1)
    compare(found, definition(q, k, v, [length]))
