"""Calls on one context get later data in the memory of earlier tensors."""

import torch

from tlmatrix.distributed.rank_runner import _reuse_memory
from tlmatrix.problem.model import Problem


def problem(x):
    return Problem(values={}, names={"x": x}, inputs={"x": x}, outputs={}, returns=())


def test_an_expanded_tensor_is_refilled():
    held = {}
    first = _reuse_memory(problem(torch.zeros(1, 3).expand(4, 3)), held)
    data = torch.arange(3.0).expand(4, 3)
    second = _reuse_memory(problem(data), held)
    assert second.inputs["x"].data_ptr() == first.inputs["x"].data_ptr()
    assert torch.equal(second.inputs["x"], data)
