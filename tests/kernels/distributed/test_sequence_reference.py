"""What the spec of the plain PyTorch implementation cannot say: empty batches."""

import pytest
import torch

from tlmatrix_kernels.distributed.attention.reference import gathered_attention_varlen


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
