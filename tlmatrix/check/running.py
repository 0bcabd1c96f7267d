"""Runs of an entry for checks: in this process, or on several ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tlmatrix.check.guards import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.check.sanitizers import SanitizerSession
    from tlmatrix.problem.model import Problem, Tensors

__all__ = ["SeveralRanks", "run_guarded"]


class SeveralRanks(ABC):
    """Runs an entry on several ranks, each with its own memory."""

    @abstractmethod
    def __call__(self, problem: Problem) -> Tensors:
        """The whole results of one call."""

    @abstractmethod
    def guarded(
        self, problem: Problem, *, poison: bool, sanitizers: SanitizerSession | None = None
    ) -> tuple[Tensors, list[Finding]]:
        """The results of a call with canaries around every buffer, and the guards' findings.

        Fresh memory holds NaN with `poison`, otherwise zeros; `sanitizers` collects reports.
        """

    @abstractmethod
    def in_a_row(
        self, problems: Sequence[Problem], *, sanitizers: SanitizerSession | None = None
    ) -> list[Tensors]:
        """The results of consecutive calls on one context, without a wait between them."""

    @abstractmethod
    def captured(
        self, problems: Sequence[Problem], *, sanitizers: SanitizerSession | None = None
    ) -> list[Tensors]:
        """The results of replays of one call, captured to a CUDA graph with the first problem."""


def run_guarded(
    execute: Callable[[Problem], Tensors],
    problem: Problem,
    *,
    poison: bool,
    sanitizers: SanitizerSession | None = None,
) -> tuple[Tensors, list[Finding]]:
    """The results of a guarded call, and the guards' findings; see `SeveralRanks.guarded`."""
    if isinstance(execute, SeveralRanks):
        return execute.guarded(problem, poison=poison, sanitizers=sanitizers)
    with guarded(problem, poison=poison) as (inside, guards):
        if sanitizers is None:
            results = execute(inside)
        else:
            with sanitizers.enabled(inside):
                results = execute(inside)
    return results, guards.findings(results)
