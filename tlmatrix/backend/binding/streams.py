"""Calls on streams other than the default one, and two calls on streams that nothing orders.

Under the interpreter's simulation of streams the inputs of each of two calls are written on its
stream, and its results are read there. So the kernels of a call race with something if they use
memory that both calls share, such as a workspace that is kept, or if they run on a stream that does
not wait for that of the caller, or the reverse. On a GPU one call runs on a side stream.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.finding import FindingsError
from tlmatrix.check.guards import lead_of
from tlmatrix.check.memory import as_row, extent_of, fill_poison
from tlmatrix.check.sanitizers import finding_of
from tlmatrix.problem.model import InapplicableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tlmatrix.problem.model import Problem, Tensors


_CALLS = 2


def check_two_streams(call: Callable[[Problem], Tensors], problem: Problem, seed: int) -> None:
    """Make two calls of the problem, each on a stream of its own, on one simulated rank.

    Args:
        call: makes a call on the current stream.
        problem: its arguments.
        seed: selects the interleaving.

    Raises:
        FindingsError: operations of two streams access the same memory, and nothing orders them.
        InapplicableError: the results are empty.
    """
    from tlmatrix.interpreter import interpret, simulate

    def program(_rank: int) -> int:
        count = 0
        streams = [torch.cuda.Stream() for _ in range(_CALLS)]  # type: ignore[no-untyped-call]
        for stream in streams:
            with torch.cuda.stream(stream):
                results = call(problem.map_tensors(written_later))
                for tensor in results.values():
                    torch.empty_like(tensor).copy_(tensor)
                    count += tensor.numel()
        torch.cuda.synchronize()
        return count

    try:
        with interpret(sanitize={"races"}, on_report="keep"):
            found = simulate(program, 1, seed=seed)
    except Exception:  # noqa: BLE001 - what a call raises is a finding of other checks
        return
    if found.reports:
        raise FindingsError([finding_of(report) for report in found.reports])
    if not found.results[0]:
        raise InapplicableError(())


# One side stream, on which inputs are written late ---------------------------------------------


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
