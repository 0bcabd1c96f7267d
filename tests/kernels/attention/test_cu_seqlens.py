"""The numbers of cu_seqlens on the host are those of the tensor, whoever changed it."""

import pytest
import torch

from tlmatrix_kernels.attention import cu_seqlens


def lengths(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.fixture
def counting(monkeypatch):
    """As on a GPU, where PyTorch's count of changes says whether to copy; the copies are listed."""
    copies = []
    whole = torch.cat

    def copied(tensors):
        copies.append(len(tensors))
        return whole(tensors)

    monkeypatch.setattr(cu_seqlens, "_version", lambda tensor: tensor._version)
    monkeypatch.setattr(cu_seqlens.torch, "cat", copied)
    return copies


def test_a_tensor_is_copied_once_and_two_together(counting):
    first, second = lengths(0, 5, 9), lengths(0, 1, 2)

    for _ in range(3):
        assert cu_seqlens.host_values(first, second) == [(0, 5, 9), (0, 1, 2)]
    assert cu_seqlens.host_values(second, second) == [(0, 1, 2), (0, 1, 2)]
    assert counting == [2]


def test_what_changed_in_place_is_copied_again(counting):
    first, second = lengths(0, 5, 9), lengths(0, 1, 2)
    cu_seqlens.host_values(first, second)

    second[1] = 2

    assert cu_seqlens.host_values(first, second) == [(0, 5, 9), (0, 2, 2)]
    assert counting == [2, 1]


def test_a_new_tensor_in_the_place_of_an_old_one_is_copied(counting):
    for length in range(20):
        assert cu_seqlens.host_values(lengths(0, length)) == [(0, length)]


def test_in_place_changes_on_the_cpu_are_detected():
    tensor = lengths(0, 5)
    cu_seqlens.host_values(tensor)

    tensor.numpy()[1] = 7

    assert cu_seqlens.host_values(tensor) == [(0, 7)]


def test_inference_tensors_are_always_copied():
    with torch.inference_mode():
        tensor = lengths(0, 5)
        assert cu_seqlens.host_values(tensor) == [(0, 5)]
        tensor[1] = 6
        assert cu_seqlens.host_values(tensor) == [(0, 6)]
