"""Requests to ranks and their answers: plain data that crosses processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.model import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.check.finding import Finding
    from tlmatrix.distributed.counters import Counters
    from tlmatrix.problem.model import AutogradVariant


@dataclass(frozen=True)
class Call:
    """One call of the entry on one rank: a `Problem` without its reference and error bounds.

    `inputs` and `cotangents` (by output) are keys of `names`.
    """

    values: Mapping[str, Any]
    names: Mapping[str, Any]
    inputs: tuple[str, ...]
    returns: tuple[str, ...]
    cotangents: Mapping[str, str]
    gradient_of: Mapping[str, str]
    autograd: AutogradVariant | None = None

    @classmethod
    def of(cls, problem: Problem) -> Call:
        """Make the call for a rank's problem (`Sharding.of_rank`)."""
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
            problem.autograd,
        )

    def given(self) -> dict[str, torch.Tensor]:
        """The inputs, by name."""
        return {name: self.names[name] for name in self.inputs}

    def problem(self, extra: Mapping[str, Any]) -> Problem:
        """Restore the problem, with `extra` added to its names."""
        names = {**self.names, **extra}
        return Problem(
            values=self.values,
            names=names,
            inputs=self.given(),
            outputs={},
            returns=self.returns,
            cotangents={output: names[name] for output, name in self.cotangents.items()},
            gradient_of=self.gradient_of,
            autograd=self.autograd,
        )


@dataclass(frozen=True)
class Job:
    """Calls that a rank makes one after the other, without synchronization between them.

    Attributes:
        calls: the calls.
        poison: content of fresh memory between canaries: True for NaN, False for zeros; None for
            no canaries.
        turn: the number of this run of the case, which selects an interleaving.
        straggle: seed of the ranks' delays; 0 for none.
        captured: capture the first call to a CUDA graph, and replay it for each call.
        streams: make each call on a stream of its own; nothing orders these.
        counters: what the ranks' contexts count, to be advanced before the calls; the same object
            for all ranks, which share a process.
    """

    calls: tuple[Call, ...]
    poison: bool | None = None
    turn: int = 0
    straggle: int = 0
    captured: bool = False
    streams: bool = False
    counters: Counters | None = None


@dataclass(frozen=True)
class Answer:
    """The results of a rank, call by call, and the findings of its canaries."""

    results: tuple[Mapping[str, torch.Tensor], ...]
    findings: tuple[Finding, ...] = field(default=())


def to_device(job: Job, device: torch.device) -> Job:
    """Move the tensors of a job, and set its name `device`, to a device."""

    def call(each: Call) -> Call:
        names = {name: _to(value, device) for name, value in each.names.items()}
        return replace(each, names={**names, "device": device} if "device" in names else names)

    return replace(job, calls=tuple(map(call, job.calls)))


def to_host(answer: Answer) -> Answer:
    """Copy the tensors of an answer to the CPU; none of them share memory."""
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
    # Keep the strides: the memory layout may be what the case tests.
    span = 1 + sum(
        (size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)
    )
    if not value.numel() or (span == value.numel() and not value.storage_offset()):
        return value.to(device)
    flat = value.as_strided((value.storage_offset() + span,), (1,), 0).to(device)
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())
