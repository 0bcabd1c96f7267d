"""Loads optional parts of tlmatrix for the specs that need them.

Central packages import no optional one; an import contract in `pyproject.toml` holds it. `bench`
and `explain` have a command each, `distributed` is loaded here, and so is the problem family of a
spec for `matrix`, which is below it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import TypeAlias

    import torch

    # Classes of these names, of packages that import this module.
    Binding: TypeAlias = Any
    Case: TypeAlias = Any
    Family: TypeAlias = Any
    Issue: TypeAlias = Any
    Problem: TypeAlias = Any
    SeveralRanks: TypeAlias = Any
    Spec: TypeAlias = Any


class Executors(Protocol):
    """Runs entries on several ranks, as `tlmatrix.distributed.Executors` does."""

    def entry(
        self,
        binding: Binding,
        turns: Callable[[], int],
        measured: Callable[[], AbstractContextManager[None]],
    ) -> SeveralRanks:
        """The function that runs the code under test on all ranks of a problem."""

    def end_case(self) -> None:
        """Free what belongs to the case that ran."""

    def close(self) -> None:
        """End the processes that were started."""


class Distributed(Protocol):
    """The functions of `tlmatrix.distributed` that central packages call."""

    def Executors(  # noqa: N802 - a class
        self, roots: tuple[Path, ...] = (), seconds: float = 120.0
    ) -> Executors:
        """The executors that the cases of a process share."""

    def lint(self, spec: Spec, family: Family) -> Iterator[Issue]:
        """Issues of a spec's `shards`, found without building a problem."""

    def shard(self, spec: Spec, problem: Problem) -> Problem:
        """Shard a problem: its results name the rank that owns each element."""

    def rank_indices(
        self, spec: Spec, problem: Problem, tensor: str, dim: str
    ) -> tuple[torch.Tensor, ...]:
        """For each rank its indices along a dimension of a tensor; empty if that is not sharded."""

    def trace(self, binding: Binding, problem: Problem) -> None:
        """Call the entry on simulated ranks; the backend records launches and runs no kernel."""


def compile_key(spec: Spec) -> Callable[[Mapping[str, Any]], str]:
    """The function from axis values to the compile key that the problem family of a spec gives.

    Raises:
        SpecError: the family cannot be loaded.
    """
    family = importlib.import_module("tlmatrix.problem").family_for(spec)
    return lambda values: str(family.compile_key(spec, values))


def distributed() -> Distributed:
    """Load `tlmatrix.distributed`, for specs with an axis `world`."""
    return cast("Distributed", importlib.import_module("tlmatrix.distributed"))
