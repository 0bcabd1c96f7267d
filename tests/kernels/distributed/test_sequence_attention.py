"""Sequence-parallel attention is attention: whoever owns which rows, and in whatever steps."""

import pytest
import torch
from eager_ranks import run_eagerly
from sequence_cases import Case

from tlmatrix.interpreter import interpret, simulate
from tlmatrix_kernels.distributed import pull
from tlmatrix_kernels.distributed.attention import (
    exchange,
    operators,
    sequence_attention,
    sequence_attention_varlen,
)
from tlmatrix_kernels.distributed.attention.schedule import Schedule
from tlmatrix_kernels.distributed.context import Context, create_context

# order, world, steps, causal, lengths_q, lengths_k
CASES = [
    pytest.param("zigzag", 2, 2, True, (100, 300), (100, 300), id="zigzag-causal"),
    pytest.param("zigzag", 4, 2, True, (5, 0, 33, 1), (5, 0, 33, 1), id="shorter-than-chunks"),
    pytest.param("zigzag", 3, 3, False, (7, 40), (29, 13), id="own-lengths"),
    pytest.param("zigzag", 2, 2, True, (130, 9), (260, 0), id="causal-own-lengths"),
    pytest.param("zigzag", 3, 1, True, (64,), (64,), id="one-step"),
    pytest.param("contiguous", 2, 2, True, (70, 30), (70, 30), id="contiguous-causal"),
    pytest.param("contiguous", 4, 4, True, (41,), (97,), id="a-step-each"),
    pytest.param("contiguous", 3, 2, False, (33,), (20,), id="contiguous"),
    pytest.param("contiguous", 3, None, False, (0, 5), (7, 0), id="nothing-to-see"),
    pytest.param("zigzag", 1, None, True, (30, 20), (30, 25), id="alone"),
    pytest.param("zigzag", 8, None, True, (150,), (150,), id="eight"),
]


def program(case, steps, calls=1, **options):
    """What a rank does: forward and backward, `calls` times on one context."""

    def of_rank(context):
        found = []
        for _ in range(calls):
            leaves, do = case.shards(context.rank)
            out, lse = sequence_attention_varlen(
                *leaves, *case.bounds, context=context, causal=case.causal,
                sharding=case.sharding.order, steps=steps, **options,
            )  # fmt: skip
            gradients = torch.autograd.grad(out, leaves, do)
            found.append((out.detach(), lse, *gradients))
        return found

    return of_rank


@pytest.mark.parametrize(("order", "world", "steps", "causal", "lengths_q", "lengths_k"), CASES)
def test_packed_is_the_definition(order, world, steps, causal, lengths_q, lengths_k):
    case = Case.of(order, world, lengths_q, lengths_k, causal)
    results = run_eagerly(world, program(case, steps))
    case.compare([calls[0] for calls in results])


def test_two_steps_are_two_launches_where_that_is_chosen(monkeypatch):
    case = Case.of("zigzag", 2, (48,), (48,), True)

    def never(_fetch):
        raise AssertionError("a launch waits for keys")

    monkeypatch.setattr(exchange.Fetch, "pull_in_slices", never)
    choice = Schedule(2, one_launch=False)
    monkeypatch.setattr(operators, "choose_schedule", lambda *_: choice)
    assert not simulate(lambda _: program(case, None)(create_context()), world=2).reports
    with pytest.raises(AssertionError, match="a launch waits"):
        simulate(lambda _: program(case, 2)(create_context()), world=2)


def test_groups_of_heads_and_a_value_dimension_of_its_own():
    case = Case.of("zigzag", 2, (48,), (48,), True, heads=(6, 2), dims=(40, 64))
    case.compare([calls[0] for calls in run_eagerly(2, program(case, 2))])


def test_dense_is_packed_with_equal_lengths():
    case = Case.of("zigzag", 2, (36, 36), (44, 44), True)

    def of_rank(context):
        leaves, do = case.shards(context.rank)
        dense = [t.unflatten(0, (2, -1)) for t in leaves]
        out, lse = sequence_attention(*dense, context=context, causal=True)
        gradients = torch.autograd.grad(out, leaves, do.unflatten(0, (2, -1)))
        return out.detach().flatten(0, 1), lse.transpose(0, 1).flatten(1), *gradients

    case.compare(run_eagerly(2, of_rank))


def test_dense_shards_of_different_sizes_need_the_length():
    case = Case.of("contiguous", 3, (20,), (11,), False)

    def of_rank(context):
        leaves, do = case.shards(context.rank)
        out, lse = sequence_attention(
            *(t[None] for t in leaves), context=context, sharding="contiguous",
            seqlen_q=20, seqlen_k=11,
        )  # fmt: skip
        gradients = torch.autograd.grad(out, leaves, do[None])
        return out.detach()[0], lse[0], *gradients

    case.compare(run_eagerly(3, of_rank))


def test_a_context_serves_call_after_call_with_the_same_bits():
    case = Case.of("zigzag", 2, (40, 9), (40, 9), True)
    for calls in run_eagerly(2, program(case, 2, calls=3)):
        for later in calls[1:]:
            assert all(map(torch.equal, calls[0], later))


def test_one_rank_needs_no_group_and_no_streams():
    case = Case.of("zigzag", 1, (40,), (40,), True)
    with interpret():
        case.compare([program(case, None)(create_context())[0]])


def test_only_requested_results_are_computed():
    case = Case.of("zigzag", 2, (24,), (24,), True)

    def of_rank(context):
        (q, k, v), do = case.shards(context.rank)
        k, v = k.detach(), v.detach()
        out, _ = sequence_attention_varlen(q, k, v, *case.bounds, context=context, causal=True)
        (dq,) = torch.autograd.grad(out, q, do)
        return dq

    for rank, dq in enumerate(run_eagerly(2, of_rank)):
        want = case.want[2][case.positions(rank)[0]]
        torch.testing.assert_close(dq, want, rtol=0.02, atol=0.02)


REFUSED = [
    ({"sharding": "striped"}, "sharding must be one of contiguous, zigzag, got 'striped'"),
    ({"steps": 3}, "steps must be from 1 to the number of ranks, 2, got 3"),
    ({"steps": True}, "steps must be an int or None"),
    (
        {"max_seqlen_q": 38},
        "max_seqlen_q must be at least the longest of the .* 40 rows .* got 38$",
    ),
    ({"max_seqlen_q": 20}, "got 20; a rank has up to 20 of them"),
    (
        {"max_seqlen_k": 30},
        "max_seqlen_k must be at least the longest of the .* 36 rows .* got 30$",
    ),
    ({"max_seqlen_k": 18}, "over 2 ranks, got 18; a rank has up to 18 of them"),
    ({"max_seqlen_k": 40.0}, "max_seqlen_k must be an int or None"),
    ({"causal": 1}, "causal must be True or False"),
]


@pytest.fixture
def first_of_two():
    """A context of rank 0 of 2 for calls that are refused before ranks communicate."""
    return Context(None, 0, 2, torch.device("cpu"))


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_bad_options_are_refused(options, words, first_of_two):
    case = Case.of("zigzag", 2, (40, 8), (36, 4), False)
    (q, k, v), _ = case.shards(0)
    with pytest.raises(ValueError, match=words):
        sequence_attention_varlen(q, k, v, *case.bounds, context=first_of_two, **options)


def test_lengths_are_not_captured_to_a_graph():
    """Not even those that the host has read before: a replay would keep them."""
    case = Case.of("zigzag", 2, (40, 8), (36, 4), False)

    def program(rank):
        context = create_context()
        q, k, v = (t.detach() for t in case.shards(rank)[0])
        sequence_attention_varlen(q, k, v, *case.bounds, context=context)
        torch.cuda.synchronize()
        words = "cannot be captured to a CUDA graph.* use sequence_attention if all lengths"
        with pytest.raises(RuntimeError, match=words), torch.cuda.graph(torch.cuda.CUDAGraph()):
            sequence_attention_varlen(q, k, v, *case.bounds, context=context)
        return sequence_attention_varlen(q, k, v, *case.bounds, context=context)[0].shape

    assert simulate(program, world=2).results == [case.shards(r)[0][0].shape for r in range(2)]


def test_max_seqlen_may_be_given():
    case = Case.of("zigzag", 2, (40, 8), (36, 4), False)
    options = {"max_seqlen_q": 40, "max_seqlen_k": 61}
    case.compare([calls[0] for calls in run_eagerly(2, program(case, None, **options))])


def test_shards_have_the_rows_of_their_rank(first_of_two):
    case = Case.of("zigzag", 2, (40, 7), (36, 5), False)
    (q, k, v), _ = case.shards(0)
    context = first_of_two
    words = "q must have the rows of rank 0 of 2 in zigzag order, 23 of cu_seqlens_q, got 22"
    with pytest.raises(ValueError, match=words):
        sequence_attention_varlen(q[1:], k, v, *case.bounds, context=context)
    with pytest.raises(ValueError, match="k must have the rows of rank 0 of 2"):
        sequence_attention_varlen(q, k[1:], v[1:], *case.bounds, context=context)
    with pytest.raises(ValueError, match="cu_seqlens_k must begin with 0"):
        sequence_attention_varlen(q, k, v, case.bounds[0], case.bounds[1] + 1, context=context)
    with pytest.raises(ValueError, match="q must have an even number of rows in zigzag order"):
        sequence_attention(q[None], k[None], v[None], context=context)
    with pytest.raises(ValueError, match=r"q must have the rows of rank 0 .* seqlen_q 40"):
        sequence_attention(q[None], k[None], v[None], context=context, seqlen_q=40, seqlen_k=41)
    with pytest.raises(ValueError, match="seqlen_k must be an int of at least 0"):
        sequence_attention(q[None], k[None], v[None], context=context, seqlen_q=40, seqlen_k=-1)


def test_keys_may_be_overwritten_after_a_call():
    case = Case.of("contiguous", 2, (40,), (40,), True)

    def program(rank):
        context = create_context()
        q, k, v = (t.detach() for t in case.shards(rank)[0])
        out, _ = sequence_attention_varlen(
            q, k, v, *case.bounds, context=context, causal=True, sharding="contiguous", steps=2
        )
        k.fill_(7)  # enqueued: rank 0 pulls nothing, but rank 1 pulls these from it
        return out

    for seed in range(4):
        found = simulate(program, world=2, seed=seed, stragglers=True)
        assert found.reports == ()
        for rank, out in enumerate(found.results):
            want = case.want[0][case.positions(rank)[0]]
            torch.testing.assert_close(out.double(), want, rtol=0.02, atol=0.005)


def in_slices(case, monkeypatch, *, early=0):
    """Two calls in one launch each on simulated ranks, whose keys come in many slices."""
    monkeypatch.setattr(exchange, "MIN_SLICE_BYTES", 1)
    monkeypatch.setattr(
        exchange, "write_flag", lambda flags, at, value: pull.write_flag(flags, at, value + early)
    )

    def program(rank):
        context = create_context()
        q, k, v = (t.detach() for t in case.shards(rank)[0])
        return [
            sequence_attention_varlen(
                q, k, v, *case.bounds, context=context, causal=case.causal, steps=2
            )[0]
            for _ in range(2)
        ]

    return simulate(program, world=case.sharding.world, seed=5, stragglers=True, sms=2)


@pytest.mark.parametrize("causal", [True, False])
def test_kernel_waits_for_each_incoming_key_slice(causal, monkeypatch):
    case = Case.of("zigzag", 4, (610, 3), (610, 3), causal)
    found = in_slices(case, monkeypatch)
    assert found.reports == ()
    for rank, calls in enumerate(found.results):
        want = case.want[0][case.positions(rank)[0]]
        for out in calls:
            torch.testing.assert_close(out.double(), want, rtol=0.02, atol=0.005)


def test_signal_before_the_slice_is_written_is_a_race(monkeypatch):
    case = Case.of("zigzag", 2, (900,), (900,), False)
    found = in_slices(case, monkeypatch, early=1)
    assert "races" in {report.sanitizer for report in found.reports}
