"""The calls up to the one that is explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tlmatrix.check.relations import consecutive_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.problem import Problem, Tensors


@dataclass(frozen=True)
class Calls:
    """Makes the calls of a finding again, in the same order and memory.

    Attributes:
        run: calls the code under test.
        first: the problem of the case.
        others: the later calls; the last of all calls is explained.
        kind: the check of the finding.
    """

    run: Callable[[Problem], Tensors]
    first: Problem
    others: Sequence[Problem]
    kind: str

    def made(self, last: Problem | None = None) -> tuple[Problem, Tensors]:
        """The problem of the last call as the entry got it, and its results.

        `last` replaces that problem.
        """
        calls = [self.first, *self.others]
        if last is not None:
            calls[-1] = replace(
                last, autograd=calls[-1].autograd, side_stream=calls[-1].side_stream
            )
        problem = calls[0]
        results = self.run(problem)
        for problem in consecutive_calls(self.kind, calls[1:]):
            results = self.run(problem)
        return problem, results
