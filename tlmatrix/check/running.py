"""How checks run the entry: alone in this process, or on several ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tlmatrix.check.memory import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.check.sanitizers import Watch
    from tlmatrix.problem.model import Problem, Tensors

__all__ = ["SeveralRanks", "run_guarded"]


class SeveralRanks(ABC):
    """What runs an entry on several ranks, each with memory of its own."""

    @abstractmethod
    def __call__(self, problem: Problem) -> Tensors:
        """The whole results of one call."""

    @abstractmethod
    def guarded(
        self, problem: Problem, *, poison: bool, watch: Watch | None = None
    ) -> tuple[Tensors, list[Finding]]:
        """The results of a call with canaries around every buffer, and what they told.

        Fresh memory holds NaN with `poison`, else zeros; `watch` hears what sanitizers find.
        """

    @abstractmethod
    def in_a_row(self, problems: Sequence[Problem], *, watch: Watch | None = None) -> list[Tensors]:
        """The results of calls one after the other on one context, none waited for in between."""

    @abstractmethod
    def captured(self, problems: Sequence[Problem], *, watch: Watch | None = None) -> list[Tensors]:
        """The results of replays of one call, captured to a CUDA graph with the first problem."""


def run_guarded(
    execute: Callable[[Problem], Tensors],
    problem: Problem,
    *,
    poison: bool,
    watch: Watch | None = None,
) -> tuple[Tensors, list[Finding]]:
    """Results of a call between canaries, and what they told; see `SeveralRanks.guarded`."""
    if isinstance(execute, SeveralRanks):
        return execute.guarded(problem, poison=poison, watch=watch)
    with guarded(problem, poison=poison) as (inside, guards):
        if watch is None:
            results = execute(inside)
        else:
            with watch.watching(inside):
                results = execute(inside)
    return results, guards.findings(results)
