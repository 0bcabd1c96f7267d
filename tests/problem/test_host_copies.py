"""Copies on the CPU in one transfer."""

import torch

from tlmatrix.problem.host_copies import on_cpu


def test_copies_equal_the_tensors_whatever_their_dtypes_shapes_and_strides():
    tensors = [
        torch.arange(3, dtype=torch.uint8),
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor(1.5, dtype=torch.float64),
        torch.arange(5, dtype=torch.bfloat16)[::2],
        torch.empty(0, 4),
        torch.ones(2, 2, dtype=torch.float16).requires_grad_(),
        torch.ones(3)[:, None].expand(3, 2),
        torch.tensor([True, False]),
    ]
    copies = on_cpu(tensors)
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(copy, tensor)
        assert copy.dtype == tensor.dtype
        assert not copy.requires_grad
    copies[1].fill_(9.0)
    assert tensors[1][0, 0] == 0.0


def test_no_tensors_are_no_copies():
    assert on_cpu([]) == []
