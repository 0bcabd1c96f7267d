"""Checks that are made once for equal metadata."""

import pytest
import torch

from tlmatrix_kernels import metadata
from tlmatrix_kernels.metadata import once_per_metadata


@pytest.fixture
def counted():
    calls = []

    @once_per_metadata
    def check(*arguments):
        calls.append(arguments)
        if arguments[-1] == "bad":
            raise ValueError("bad")
        return len(calls)

    return check, calls


def test_a_check_is_made_once_for_tensors_of_equal_metadata(counted):
    check, calls = counted
    assert check(torch.zeros(2, 3), 1) == check(torch.ones(2, 3), 1) == 1
    assert len(calls) == 1


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(3, 2), 1),
        (torch.zeros(3, 2).T, 1),
        (torch.zeros(2, 3).half(), 1),
        (torch.zeros(2, 3, device="meta"), 1),
        (torch.zeros(7)[1:].view(2, 3), 1),
        (torch.zeros(2, 3), 2),
        (torch.zeros(2, 3), True),
        (torch.zeros(2, 3), 1.0),
        (None, 1),
    ],
    ids=["shape", "strides", "dtype", "device", "alignment", "value", "bool", "float", "none"],
)
def test_other_metadata_is_checked_again(counted, other):
    check, calls = counted
    check(torch.zeros(2, 3), 1)
    check(*other)
    assert len(calls) == 2


def test_an_error_is_raised_by_each_call(counted):
    check, calls = counted
    for _ in range(2):
        with pytest.raises(ValueError, match="bad") as caught:
            check(torch.zeros(2), "bad")
        assert caught.value.__context__ is None  # a traceback of the check alone
    assert len(calls) == 2


def test_an_argument_that_cannot_be_a_key_is_checked_each_time(counted):
    check, _ = counted
    assert [check([1]), check([1])] == [1, 2]


def test_the_latest_results_are_kept(counted, monkeypatch):
    check, _ = counted
    monkeypatch.setattr(metadata, "MOST", 2)
    assert [check(1), check(2), check(3), check(3), check(1)] == [1, 2, 3, 3, 4]
