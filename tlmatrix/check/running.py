"""Runs of an entry for checks, in this process, on a device or on several ranks, and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tlmatrix.check.guards import guarded, lead_of
from tlmatrix.check.memory import as_row, extent_of
from tlmatrix.problem.tensors import on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.check.sanitizers import SanitizerSession
    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import Problem, Tensors


class Results(dict[str, torch.Tensor]):
    """Outputs and gradients by name.

    Attributes:
        absent: the reason for each missing gradient, by name.
        parts: [parts, ...] terms of those results that are sums over ranks, by name.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        absent: Mapping[str, str] | None = None,
        parts: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.absent = dict(absent or {})
        self.parts = dict(parts or {})

    def inconsistencies(self, _bounds: ReferenceBounds, *, exact: bool) -> list[Finding]:
        """Findings between several copies of one result, of which one process has none.

        Copies agree in every bit if `exact`, otherwise within the sum of their error bounds.
        """
        del exact
        return []


def history_result(call: int, name: str) -> str:
    """The name of a result of one of the calls of a history."""
    return f"{call}:{name}"


def results_of_call(results: Mapping[str, torch.Tensor], call: int) -> dict[str, torch.Tensor]:
    """The results of one of the calls of a history, by their own names."""
    begin = history_result(call, "")
    return {
        name.removeprefix(begin): each for name, each in results.items() if name.startswith(begin)
    }


class OnDevice:
    """Runs an entry on a device, and copies tensors of problems that are on the CPU to it.

    Every tensor of a problem keeps its copy, which a later call refills: to the entry, a tensor
    that the caller refills stays the same one. Results come back to the CPU; if a later call
    overwrites the memory of an earlier result, that result changes there too.
    """

    def __init__(self, run: Callable[[Problem], Tensors], device: torch.device) -> None:
        self._run, self._device = run, device
        self._copies: Any = WeakIdKeyDictionary()  # from tensors of problems to their copies
        self._returned: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Results on the device, each with its copy on the CPU."""

    def __call__(self, problem: Problem) -> Tensors:
        """The results of one call, on the device of the problem's tensors."""
        if self.holds(problem):
            return self._run(problem)
        return self.to_host(self._run(self.to_device(problem)))

    def holds(self, problem: Problem) -> bool:
        """Whether the problem's tensors are on the device of the entry."""
        return all(each.device.type == self._device.type for each in problem.inputs.values())

    def to_device(self, problem: Problem) -> Problem:
        """The problem with copies of its tensors, of the same sizes, strides and alignment."""
        return problem.map_tensors(self._copied)

    def to_host(self, results: Tensors) -> Tensors:
        """The results on the CPU."""
        copies = dict(zip(results, on_cpu(list(results.values())), strict=True))
        memory = {tensor.untyped_storage().data_ptr() for tensor in results.values()}
        for earlier, copy in self._returned:
            if earlier.untyped_storage().data_ptr() in memory:
                copy.copy_(earlier)
        self._returned += [(results[name], copy) for name, copy in copies.items()]
        return Results(copies, results.absent) if isinstance(results, Results) else copies

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        lead = lead_of(tensor)
        copy: torch.Tensor | None = self._copies.get(tensor)
        if copy is None:
            memory = torch.empty(lead + extent_of(tensor), dtype=tensor.dtype, device=self._device)
            copy = memory.as_strided(tensor.shape, tensor.stride(), lead)
            self._copies[tensor] = copy
        # Without a wait for the GPU: the memory is not pinned, so it is read before this returns.
        as_row(copy, lead).copy_(as_row(tensor, lead), non_blocking=True)
        return copy


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
        self,
        problems: Sequence[Problem],
        *,
        sanitizers: SanitizerSession | None = None,
        streams: bool = False,
    ) -> list[Tensors]:
        """The results of consecutive calls on one context, without a wait between them.

        With `streams`, each is on a stream of its own.
        """

    @abstractmethod
    def captured(
        self, problems: Sequence[Problem], *, sanitizers: SanitizerSession | None = None
    ) -> list[Tensors]:
        """The results of replays of one call, captured to a CUDA graph with the first problem."""

    @abstractmethod
    def advanced(
        self,
        problems: Sequence[Problem],
        *,
        far: bool,
        sanitizers: SanitizerSession | None = None,
    ) -> list[Tensors]:
        """The results of consecutive calls after very many, or some, that are not made.

        Raises:
            InapplicableError: what the context counts does not grow by a constant.
        """


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
    if isinstance(execute, OnDevice) and not execute.holds(problem):
        results, found = run_guarded(
            execute, execute.to_device(problem), poison=poison, sanitizers=sanitizers
        )
        return execute.to_host(results), found
    with guarded(problem, poison=poison) as (inside, guards):
        if sanitizers is None:
            results = execute(inside)
        else:
            with sanitizers.enabled(inside):
                results = execute(inside)
    return results, guards.findings(results)
