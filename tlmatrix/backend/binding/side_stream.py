"""A CUDA stream other than the default one, on which the inputs of a call are written late."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.guards import lead_of
from tlmatrix.check.memory import as_row, extent_of, fill_poison

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.model import Problem

_CYCLES = 20_000_000
"""10 ms on an H200: an entry has launched its kernels by then."""


@contextmanager
def on_side_stream(problem: Problem, device: torch.device) -> Iterator[Problem]:
    """Make a side stream current and yield the problem with tensors that are written on it.

    Before, floating-point tensors hold NaN and others zeros, so that no index is out of bounds.
    Work on another stream that does not wait for this one reads these values.
    """
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def late(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cuda":
            return tensor
        if id(tensor) not in copies:
            lead = lead_of(tensor)
            memory = torch.empty(lead + extent_of(tensor), dtype=tensor.dtype, device=device)
            if memory.is_floating_point():
                fill_poison(memory)
            else:
                as_row(memory).zero_()
            copies[id(tensor)] = tensor, memory.as_strided(tensor.shape, tensor.stride(), lead)
        return copies[id(tensor)][1]

    there = replace(problem.map_tensors(late), side_stream=False)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        # Private, but what PyTorch's own tests of streams use.
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001
        for tensor, copy in copies.values():
            as_row(copy).copy_(as_row(tensor))
        yield there


def written_later(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the same strides, which the current stream writes."""
    lead = lead_of(tensor)
    memory = torch.empty(lead + extent_of(tensor), dtype=tensor.dtype, device=tensor.device)
    as_row(memory, lead).copy_(as_row(tensor, lead))
    return memory.as_strided(tensor.shape, tensor.stride(), lead)
