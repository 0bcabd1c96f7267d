"""One rank at work: makes its context once, calls the entry, keeps canaries around its buffers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.binding import execute
from tlmatrix.backend.errors import BindingError, EntryError
from tlmatrix.backend.ranks.job import Answer
from tlmatrix.backend.signature import parameters_of
from tlmatrix.check.memory import Guards, guarded
from tlmatrix.spec.importing import load
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tlmatrix.backend.binding import Binding
    from tlmatrix.backend.ranks.job import Call, Job
    from tlmatrix.check.finding import Finding
    from tlmatrix.problem.model import Problem

__all__ = ["Member"]

_WARM = 2
"""Calls before a capture: what a context has twice is there then."""


@dataclass
class Member:
    """A rank of a group, for the calls of one case.

    `group` is what torch.distributed calls the group of all ranks.
    """

    binding: Binding
    rank: int
    world: int
    group: Any
    _context: list[Any] = field(default_factory=list)
    """The context in a list of one, once there is one."""

    def run(self, job: Job) -> Answer:
        """Make the calls of a job.

        Raises:
            EntryError: the entry raised, or what makes its context did.
            BindingError: arguments or results do not fit what the spec says.
        """
        if job.captured:
            return self._replayed(job)
        held: dict[str, torch.Tensor] = {}
        results, findings = [], []
        alone = len(job.calls) == 1
        for call in job.calls:
            problem = self._problem(call)
            if not alone:
                problem = _in_one_memory(problem, held)
            found, told = self._called(problem, job, wait=alone)
            if not alone:
                # Whatever the next call writes to, these are this one's.
                found = {name: tensor.clone() for name, tensor in found.items()}
            results.append(found)
            findings += told
        if not alone:
            try:
                self.binding.backend.synchronize()
            except Exception as error:
                raise EntryError(error) from error
        return Answer(tuple(results), tuple(findings))

    def _problem(self, call: Call) -> Problem:
        names = {"rank": self.rank, "world": self.world, "group": self.group}
        return self.with_context(call.problem(names))

    def _replayed(self, job: Job) -> Answer:
        """Capture the first call to a CUDA graph, and replay it with the data of each.

        Calls come before it, in which kernels are compiled and buffers get their size, and one
        more before the last replay: who shares a context with a graph must not be in its way.
        """
        import torch

        held: dict[str, torch.Tensor] = {}
        problem = _in_one_memory(self._problem(job.calls[0]), held)

        def call() -> dict[str, torch.Tensor]:
            return execute(self.binding, problem, turn=job.turn, wait=False)

        for _ in range(_WARM):
            call()
        try:
            self.binding.backend.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = call()
            results = []
            for number, each in enumerate(job.calls, 1):
                _in_one_memory(self._problem(each), held)
                if number == len(job.calls):
                    call()
                graph.replay()
                results.append({name: tensor.clone() for name, tensor in captured.items()})
            self.binding.backend.synchronize()
        except (EntryError, BindingError):
            raise
        except Exception as error:
            raise EntryError(error) from error
        return Answer(tuple(results))

    def _called(
        self, problem: Problem, job: Job, *, wait: bool
    ) -> tuple[dict[str, torch.Tensor], list[Finding]]:
        with ExitStack() as stack:
            guards: Guards | None = None
            if job.poison is not None:
                problem, guards = stack.enter_context(guarded(problem, poison=job.poison))
            results = execute(self.binding, problem, turn=job.turn, wait=wait)
        return results, guards.findings(results) if guards is not None else []

    def with_context(self, problem: Problem) -> Problem:
        """The problem with the spec's `context`, made at the first call of the case."""
        spec = self.binding.spec
        if spec.context is None:
            return problem
        if not self._context:
            make = load(spec, ("context",), spec.context)
            if not callable(make):
                raise self._misfit(f"{spec.context!r} is not callable")
            arguments = self._arguments(make, problem.names)
            try:
                self._context.append(make(**arguments))
            except Exception as error:
                raise EntryError(error) from error
        return replace(problem, names={**problem.names, "context": self._context[0]})

    def _arguments(self, make: Any, names: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        arguments = {}
        for name, parameter in (parameters_of(make) or {}).items():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if name in names:
                arguments[name] = names[name]
            elif parameter.default is parameter.empty:
                hint = suggestion(name, sorted(names), "Known names")
                raise self._misfit(f"no value for its parameter {name!r}{hint}")
        return arguments

    def _misfit(self, message: str) -> BindingError:
        spec = self.binding.spec
        return BindingError([spec.issue(("context",), f"context: {spec.context!r}: {message}")])


def _in_one_memory(problem: Problem, held: dict[str, torch.Tensor]) -> Problem:
    """The problem in the tensors of the calls before it, refilled, where they are alike.

    Refilled on the current stream: what still reads them elsewhere reads the next call's data.
    """
    places: dict[int, torch.Tensor] = {}
    tensors = {**problem.inputs}
    tensors |= {f"d{output}": tensor for output, tensor in problem.cotangents.items()}
    for name, tensor in tensors.items():
        kept = held.get(name)
        alike = kept is not None and kept.shape == tensor.shape and kept.dtype == tensor.dtype
        if kept is not None and alike and kept.stride() == tensor.stride():
            kept.copy_(tensor)
            places[id(tensor)] = kept
        else:
            held[name] = tensor

    def place(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: places.get(id(value), value) for name, value in values.items()}

    return replace(
        problem,
        names=place(problem.names),
        inputs=place(problem.inputs),
        cotangents=place(problem.cotangents),
    )
