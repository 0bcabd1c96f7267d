"""Entries on a device of their own: copies of tensors, and results that come back."""

from types import SimpleNamespace

import pytest
import torch

from tlmatrix.check.running import OnDevice, run_guarded
from tlmatrix.problem.model import Problem

CPU = torch.device("cpu")


def problem_of(**inputs):
    return Problem({}, {**inputs, "n": 3}, inputs, {}, ())


class Elsewhere(OnDevice):
    """Takes the tensors of the first problem for those of another device, though all are here."""

    hosts: tuple[torch.Tensor, ...] = ()

    def holds(self, problem):
        self.hosts = self.hosts or tuple(problem.inputs.values())
        return not any(each is host for each in problem.inputs.values() for host in self.hosts)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4),
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(24.0)[5:17:2],
        torch.arange(3.0)[:, None].expand(3, 4),
        torch.arange(9, dtype=torch.bfloat16)[1:].view(2, 4),
        torch.empty(0, 4),
    ],
    ids=["contiguous", "transposed", "sliced", "expanded", "offset", "empty"],
)
def test_copies_have_the_layout_and_alignment_of_the_tensor(tensor):
    copy = Elsewhere(lambda _: {}, CPU).to_device(problem_of(x=tensor)).inputs["x"]
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.storage_offset() == tensor.storage_offset()
    assert copy is not tensor
    if tensor.numel():
        assert copy.data_ptr() != tensor.data_ptr()


def test_an_empty_part_whose_offset_is_past_the_end_of_its_storage():
    """A sequence without keys of a batch that is split."""
    tensor = torch.empty(0).as_strided((0, 1, 8), (8, 8, 1), 40)
    copy = Elsewhere(lambda _: {}, CPU).to_device(problem_of(x=tensor)).inputs["x"]
    assert copy.shape == tensor.shape
    assert copy.stride() == tensor.stride()


def test_inputs_and_names_share_one_copy():
    x = torch.ones(3)
    placed = Elsewhere(lambda _: {}, CPU).to_device(problem_of(x=x))
    assert placed.names["x"] is placed.inputs["x"]
    assert placed.names["n"] == 3


def test_a_refilled_tensor_is_the_same_tensor_to_the_entry():
    seen = []

    def run(problem):
        seen.append(problem.inputs["x"])
        return {"y": problem.inputs["x"] * 2}

    entry, x = Elsewhere(run, CPU), torch.ones(3)
    first = entry(problem_of(x=x))
    x.fill_(5.0)
    second = entry(problem_of(x=x))
    assert seen[0] is seen[1]
    assert first["y"].tolist() == [2.0] * 3
    assert second["y"].tolist() == [10.0] * 3


def test_a_result_that_a_later_call_overwrites_changes():
    memory = torch.zeros(3)

    def run(problem):
        return {"y": memory.copy_(problem.inputs["x"])}

    entry, x = Elsewhere(run, CPU), torch.ones(3)
    first = entry(problem_of(x=x))
    x.fill_(5.0)
    second = entry(problem_of(x=x))
    assert first["y"].tolist() == second["y"].tolist() == [5.0] * 3


def test_guards_watch_the_copies():
    def run(problem):
        problem.inputs["x"].add_(1)
        return {"y": problem.inputs["x"] * 2}

    x = torch.ones(3)
    results, found = run_guarded(Elsewhere(run, CPU), problem_of(x=x), poison=True)
    assert [each.pattern for each in found] == ["input changed"]
    assert results["y"].tolist() == [4.0] * 3
    assert x.tolist() == [1.0] * 3


def test_a_problem_on_the_device_is_not_copied():
    x = torch.ones(3)
    entry = OnDevice(lambda problem: SimpleNamespace(x=problem.inputs["x"]), CPU)
    assert entry(problem_of(x=x)).x is x
