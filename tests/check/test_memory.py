"""Bits of tensors, and inputs of consecutive calls in the same memory: refilled, or new ones."""

from dataclasses import replace

import pytest
import torch

from tlmatrix.check.memory import SameMemory, same_bits
from tlmatrix.problem.model import Problem


def problem(*values, renewed=False, dtype=torch.int32):
    lengths = torch.tensor(values, dtype=dtype)
    return Problem(
        values={}, names={"lengths": lengths, "rows": 2}, inputs={"lengths": lengths},
        outputs={}, returns=(), renewed=renewed,
    )  # fmt: skip


def test_a_refilled_tensor_is_the_same_one_with_a_new_version():
    memory = SameMemory()
    first = memory.place(problem(1, 2)).inputs["lengths"]
    version = first._version
    again = memory.place(problem(3, 4))
    assert again.inputs["lengths"] is first is again.names["lengths"]
    assert first.tolist() == [3, 4]
    assert first._version > version


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.bfloat16, torch.float32])
def test_a_renewed_tensor_is_another_at_the_same_address(dtype):
    memory = SameMemory()
    first = memory.place(problem(1, 2, dtype=dtype)).inputs["lengths"]
    address, version = first.data_ptr(), first._version
    del first
    again = memory.place(problem(0, 4, renewed=True, dtype=dtype)).inputs["lengths"]
    assert (again.data_ptr(), again._version) == (address, version)
    assert again.tolist() == torch.tensor([0, 4]).to(dtype).tolist()


@pytest.mark.parametrize("keep", [lambda tensor: tensor, lambda tensor: tensor[1:].detach()])
def test_memory_in_use_is_kept(keep):
    memory = SameMemory()
    kept = keep(memory.place(problem(1, 2)).inputs["lengths"])
    values = kept.tolist()
    again = memory.place(problem(3, 4, renewed=True)).inputs["lengths"]
    assert again.tolist() == [3, 4]
    assert kept.tolist() == values


def test_tensors_of_another_shape_have_memory_of_their_own():
    memory = SameMemory()
    first = memory.place(problem(1, 2)).inputs["lengths"]
    other = memory.place(replace(problem(1, 2, 3), renewed=True)).inputs["lengths"]
    assert first.tolist() == [1, 2]
    assert other.tolist() == [1, 2, 3]


def test_empty_tensors_are_equal_for_any_strides():
    empty = torch.zeros(1, dtype=torch.float16).expand(0)
    assert empty.stride() == (0,)
    assert same_bits(empty, torch.zeros(0, dtype=torch.float16))
    assert not same_bits(empty, torch.zeros(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_same_bits_for_any_strides_and_offsets(dtype):
    values = torch.randn(9, 5).to(dtype)
    values[0, 0] = torch.nan
    for part in (values, values.T, values.flatten()[1:], values[:0], values[0, 0]):
        assert same_bits(part, part.clone())
    assert not same_bits(values[1:], values[:-1])
    assert not same_bits(torch.zeros(3, dtype=dtype), -torch.zeros(3, dtype=dtype))
