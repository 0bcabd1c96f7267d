"""Copies on the CPU in one transfer."""

import pytest
import torch

from tlmatrix.problem.storage import with_storage
from tlmatrix.problem.tensors import on_cpu
from tlmatrix.spec.model.fields import STORAGES


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


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.int32, torch.float64])
def test_copies_of_every_storage_and_of_empty_and_single_elements(storage, dtype):
    shapes = [(0,), (1,), (0, 3), (3, 0), (1, 1), (1, 4), (4, 1), (2, 1, 3), (0, 1, 3), (2, 3)]
    given = {str(shape): torch.ones(shape).to(dtype) for shape in shapes}
    given["sliced to nothing"] = torch.ones(4, 6).to(dtype)[::2, :0]
    given["empty with strides"] = torch.ones(4).to(dtype).as_strided((0, 2), (3, 5))
    given["one with a stride"] = torch.ones(4).to(dtype).as_strided((1,), (3,))
    tensors = list(with_storage(storage, given, given).values())
    for tensor, copy in zip(tensors, on_cpu(tensors), strict=True):
        assert copy.dtype == dtype
        assert torch.equal(copy.double(), tensor.double())
