"""What a rank is asked to do, and what it answers: plain data that crosses processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.model import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.check.finding import Finding

__all__ = ["Answer", "Call", "Job", "moved", "on_host"]


@dataclass(frozen=True)
class Call:
    """One call of the entry on one rank: a `Problem` without what only judges need.

    `inputs` and `cotangents` (by output) are names in `names`.
    """

    values: Mapping[str, Any]
    names: Mapping[str, Any]
    inputs: tuple[str, ...]
    returns: tuple[str, ...]
    cotangents: Mapping[str, str]
    gradient_of: Mapping[str, str]

    @classmethod
    def of(cls, problem: Problem) -> Call:
        """The call that a rank's problem (`Sharding.of_rank`) is."""
        names = dict(problem.names)
        cotangents = {}
        for output, tensor in problem.cotangents.items():
            known = next((name for name, value in names.items() if value is tensor), None)
            cotangents[output] = known or f"d{output}"
            names[cotangents[output]] = tensor
        return cls(
            dict(problem.values),
            {**names, **problem.inputs},
            tuple(problem.inputs),
            problem.returns,
            cotangents,
            dict(problem.gradient_of),
        )

    def given(self) -> dict[str, torch.Tensor]:
        """The inputs, by name."""
        return {name: self.names[name] for name in self.inputs}

    def problem(self, extra: Mapping[str, Any]) -> Problem:
        """The problem again, with more names."""
        names = {**self.names, **extra}
        return Problem(
            values=self.values,
            names=names,
            inputs=self.given(),
            outputs={},
            returns=self.returns,
            cotangents={output: names[name] for output, name in self.cotangents.items()},
            gradient_of=self.gradient_of,
        )


@dataclass(frozen=True)
class Job:
    """Calls that a rank makes one after the other, with nothing between that waits.

    `poison` is what fresh memory holds between canaries (True: NaN; False: zeros; None: no
    canaries). `turn` counts the runs of a case. `straggle` seeds the delays of ranks; 0: none.
    With `captured`, the calls are replays of the first one, captured to a CUDA graph.
    """

    calls: tuple[Call, ...]
    poison: bool | None = None
    turn: int = 0
    straggle: int = 0
    captured: bool = False


@dataclass(frozen=True)
class Answer:
    """What a rank returned, call by call, and what its canaries told."""

    results: tuple[Mapping[str, torch.Tensor], ...]
    findings: tuple[Finding, ...] = field(default=())


def moved(job: Job, device: torch.device) -> Job:
    """The job with its tensors, and the name `device`, on a device."""

    def call(each: Call) -> Call:
        names = {name: _to(value, device) for name, value in each.names.items()}
        return replace(each, names={**names, "device": device} if "device" in names else names)

    return replace(job, calls=tuple(map(call, job.calls)))


def on_host(answer: Answer) -> Answer:
    """The answer with its tensors on the CPU, each with memory of its own."""
    results = tuple(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in each.items()}
        for each in answer.results
    )
    return replace(answer, results=results)


def _to(value: Any, device: torch.device) -> Any:  # noqa: ANN401 - any argument of an entry
    if not isinstance(value, torch.Tensor) or value.device.type == "meta":
        return value
    if value.device == device:
        return value
    # Strides stay: how a tensor lies in memory may be what a case is about.
    span = 1 + sum(
        (size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)
    )
    if not value.numel() or (span == value.numel() and not value.storage_offset()):
        return value.to(device)
    flat = value.as_strided((value.storage_offset() + span,), (1,), 0).to(device)
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())
