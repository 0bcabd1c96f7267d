"""Runs entries on several ranks: simulated in one process, or with one process for each rank.

It serves specs with an axis `world`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tlmatrix.backend import Binding
    from tlmatrix.check.running import SeveralRanks
    from tlmatrix.distributed.executors import RankExecutor
    from tlmatrix.problem import Problem

__all__ = ["Executors", "trace"]


@dataclass
class Executors:
    """The executors that the cases of a process share: one for each backend.

    Attributes:
        roots: folders, besides the spec's own, from which entries are imported.
        seconds: time limit of a call, after which ranks count as hung.
    """

    roots: tuple[Path, ...] = ()
    seconds: float = 120.0
    _executors: dict[str, RankExecutor] = field(default_factory=dict)
    _attempts: dict[Path, int] = field(default_factory=dict)
    """How many cases of each spec may still be called as after very many calls."""

    def entry(
        self,
        binding: Binding,
        turns: Callable[[], int],
        measured: Callable[[], AbstractContextManager[None]],
    ) -> SeveralRanks:
        """The function that runs the code under test on all ranks of a problem.

        `turns` numbers the calls: ranks are delayed differently in each. `measured` gives a context
        that is entered for each call.
        """
        from tlmatrix.distributed.entry import EntryOnRanks
        from tlmatrix.distributed.executors import executor_for

        backend = binding.backend
        if backend.name not in self._executors:
            self._executors[backend.name] = executor_for(backend, self.roots, self.seconds)
        executor = self._executors[backend.name]
        return EntryOnRanks(binding, executor, turns, measured, self._attempts)

    def end_case(self) -> None:
        """Free what belongs to the case that ran."""
        for executor in self._executors.values():
            executor.end()

    def close(self) -> None:
        """End the processes that were started."""
        for executor in self._executors.values():
            executor.close()
        self._executors = {}


def trace(binding: Binding, problem: Problem) -> None:
    """Call the entry on simulated ranks with a backend that records launches and runs no kernel.

    Raises:
        EntryError: the entry raised; `where` names the ranks.
        BindingError: arguments or results do not match the spec.
        FindingsError: the ranks deadlock.
    """
    from tlmatrix.distributed.entry import trace_on_ranks

    trace_on_ranks(binding, problem)
