"""What specs of sequence-parallel attention cannot say: refusals, launches, keys in slices."""

import pytest
import torch
from sequence_cases import Case

from tlmatrix.interpreter import simulate
from tlmatrix_kernels.distributed import pull
from tlmatrix_kernels.distributed.attention import (
    exchange,
    operators,
    sequence_attention,
    sequence_attention_varlen,
)
from tlmatrix_kernels.distributed.attention.schedule import Schedule
from tlmatrix_kernels.distributed.context import Context, create_context


def attend(case, steps):
    """What a rank does: forward and backward."""
    context = create_context()
    leaves = [tensor.requires_grad_() for tensor in case.shards(context.rank)]
    out, _ = sequence_attention_varlen(
        *leaves, *case.bounds, context=context, causal=True, steps=steps
    )
    torch.autograd.grad(out, leaves, torch.ones_like(out))


def test_two_steps_are_two_launches_where_that_is_chosen(monkeypatch):
    case = Case.of("zigzag", 2, (48,), (48,), True)

    def never(_fetch):
        raise AssertionError("a launch waits for keys")

    monkeypatch.setattr(exchange.Fetch, "pull_in_slices", never)
    choice = Schedule(2, one_launch=False)
    monkeypatch.setattr(operators, "choose_schedule", lambda *_: choice)
    assert not simulate(lambda _: attend(case, None), world=2).reports
    with pytest.raises(AssertionError, match="a launch waits"):
        simulate(lambda _: attend(case, 2), world=2)


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
    q, k, v = case.shards(0)
    with pytest.raises(ValueError, match=words):
        sequence_attention_varlen(q, k, v, *case.bounds, context=first_of_two, **options)


def test_lengths_are_not_captured_to_a_graph():
    """Not even those that the host has read before: a replay would keep them."""
    case = Case.of("zigzag", 2, (40, 8), (36, 4), False)

    def program(rank):
        context = create_context()
        q, k, v = case.shards(rank)
        sequence_attention_varlen(q, k, v, *case.bounds, context=context)
        torch.cuda.synchronize()
        words = "cannot be captured to a CUDA graph.* use sequence_attention if all lengths"
        with pytest.raises(RuntimeError, match=words), torch.cuda.graph(torch.cuda.CUDAGraph()):
            sequence_attention_varlen(q, k, v, *case.bounds, context=context)
        return sequence_attention_varlen(q, k, v, *case.bounds, context=context)[0].shape

    assert simulate(program, world=2).results == [case.shards(r)[0].shape for r in range(2)]


def test_shards_have_the_rows_of_their_rank(first_of_two):
    case = Case.of("zigzag", 2, (40, 7), (36, 5), False)
    q, k, v = case.shards(0)
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
        q, k, v = case.shards(rank)
        out, _ = sequence_attention_varlen(
            q, k, v, *case.bounds, context=context, causal=True, sharding="contiguous", steps=2
        )
        k.fill_(7)  # enqueued: rank 0 pulls nothing, but rank 1 pulls these from it
        return out

    for seed in range(4):
        found = simulate(program, world=2, seed=seed, stragglers=True)
        assert found.reports == ()
        for rank, out in enumerate(found.results):
            case.check(rank, out)


def in_slices(case, monkeypatch, *, early=0):
    """Two calls in one launch each on simulated ranks, whose keys come in many slices."""
    monkeypatch.setattr(exchange, "MIN_SLICE_BYTES", 1)
    monkeypatch.setattr(
        exchange, "write_flag", lambda flags, at, value: pull.write_flag(flags, at, value + early)
    )

    def program(rank):
        context = create_context()
        q, k, v = case.shards(rank)
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
        for out in calls:
            case.check(rank, out)


def test_signal_before_the_slice_is_written_is_a_race(monkeypatch):
    case = Case.of("zigzag", 2, (900,), (900,), False)
    found = in_slices(case, monkeypatch, early=1)
    assert "races" in {report.sanitizer for report in found.reports}
