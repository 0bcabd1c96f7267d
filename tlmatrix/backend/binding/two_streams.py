"""Two calls on two streams that nothing orders, under the interpreter's simulation of streams.

The inputs of each call are written on its stream, and its results are read there. So the kernels of
a call race with something if they use memory that both calls share, such as a workspace that is
kept, or if they run on a stream that does not wait for that of the caller, or the reverse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tlmatrix.backend.binding.side_stream import written_later
from tlmatrix.check.finding import FindingsError
from tlmatrix.check.sanitizers import finding_of
from tlmatrix.problem.model import InapplicableError

if TYPE_CHECKING:
    from collections.abc import Callable

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
