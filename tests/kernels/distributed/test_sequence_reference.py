"""The plain PyTorch implementation is the definition, alone and between CPU processes."""

import functools

import pytest
import torch
from gloo_ranks import run_on_gloo
from sequence_cases import Case

from tlmatrix_kernels.distributed.attention import Sharding
from tlmatrix_kernels.distributed.attention.reference import (
    gathered_attention,
    gathered_attention_varlen,
    in_sequence_order,
)

pytestmark = pytest.mark.usefixtures("preloaded")


def of_rank(case):
    """What a rank does: packed, then dense, forward and backward."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    leaves, do = case.shards(rank)
    options = {"causal": case.causal, "sharding": case.sharding.order}
    out, lse = gathered_attention_varlen(*leaves, *case.bounds, **options)
    packed = (out, lse, *torch.autograd.grad(out, leaves, do))
    (length_q,), (length_k,) = case.lengths_q, case.lengths_k
    dense = [t.detach()[None].requires_grad_() for t in leaves]
    out, lse = gathered_attention(*dense, **options, seqlen_q=length_q, seqlen_k=length_k)
    gradients = torch.autograd.grad(out, dense, do[None])
    return [*packed, out[0], lse[0], *(t[0] for t in gradients)]


def test_two_processes_match_the_unsharded_result(tmp_path):
    case = Case.of("zigzag", 2, (37,), (43,), True)
    results = run_on_gloo(2, functools.partial(of_rank, case), tmp_path)
    case.compare([result[:5] for result in results])
    case.compare([result[5:] for result in results])


@pytest.mark.parametrize(
    ("causal", "lengths"), [(True, (20, 11)), (False, (20, 11)), (True, (9, 30))]
)
def test_one_rank_needs_no_process_group(causal, lengths):
    case = Case.of("contiguous", 1, lengths[:1], lengths[1:], causal)
    result = of_rank(case)
    case.compare([result[:5]])
    case.compare([result[5:]])


def test_empty_keys_on_all_ranks():
    nothing = torch.zeros(0, 2, 32)
    bounds = torch.tensor([0], dtype=torch.int32)
    out, lse = gathered_attention_varlen(nothing, nothing, nothing, bounds, bounds)
    assert out.shape == (0, 2, 32)
    assert lse.shape == (2, 0)


@pytest.mark.parametrize("keys", [[0, 0, 0], [0]])
def test_unused_inputs_have_zero_gradients(keys):
    """Keys of no row, or no sequences: each input has a gradient of its own shape all the same."""
    bounds = torch.tensor([0, 2, 3][: len(keys)], dtype=torch.int32)
    q = torch.randn(int(bounds[-1]), 2, 32, requires_grad=True)
    k, v = (torch.zeros(0, 1, 32, requires_grad=True) for _ in "kv")
    out, _ = gathered_attention_varlen(q, k, v, bounds, torch.tensor(keys, dtype=torch.int32))
    gradients = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert [gradient.count_nonzero().item() for gradient in gradients] == [0, 0, 0]
    assert [gradient.shape for gradient in gradients] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_gathered_shards_are_put_in_order(order):
    sharding, whole = Sharding(order, 3), torch.arange(24).view(2, 12)
    shards = torch.stack([whole[:, sharding.positions([12], rank)] for rank in range(3)])
    assert torch.equal(in_sequence_order(shards, sharding), whole)
