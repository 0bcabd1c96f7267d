"""Requests to ranks and their answers: plain data that crosses processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tlmatrix.check.finding import Finding
    from tlmatrix.distributed.counters import Counters
    from tlmatrix.problem.model import Problem


@dataclass(frozen=True)
class Job:
    """Calls that a rank makes one after the other, without synchronization between them.

    Attributes:
        calls: the rank's problem of each call (`Sharding.of_rank`).
        poison: content of fresh memory between canaries: True for NaN, False for zeros; None for
            no canaries.
        turn: the number of this run of the case, which selects an interleaving.
        straggle: seed of the ranks' delays; 0 for none.
        captured: capture the first call to a CUDA graph, and replay it for each call.
        streams: make each call on a stream of its own; nothing orders these.
        counters: what the ranks' contexts count, to be advanced before the calls; the same object
            for all ranks, which share a process.
    """

    calls: tuple[Problem, ...]
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
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        # A tensor that the problem has twice stays one tensor.
        if id(tensor) not in moved:
            moved[id(tensor)] = _to(tensor, device)
        return moved[id(tensor)]

    def call(problem: Problem) -> Problem:
        problem = problem.map_tensors(move)
        named = {"device": device} if "device" in problem.names else {}
        return replace(problem, names={**problem.names, **named})

    return replace(job, calls=tuple(map(call, job.calls)))


def to_host(answer: Answer) -> Answer:
    """Copy the tensors of an answer to the CPU; none of them share memory."""
    results = tuple(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in each.items()}
        for each in answer.results
    )
    return replace(answer, results=results)


def _to(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    if value.device.type == "meta" or value.device == device:
        return value
    # Keep the strides: the memory layout may be what the case tests.
    span = 1 + sum(
        (size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)
    )
    if not value.numel() or (span == value.numel() and not value.storage_offset()):
        return value.to(device)
    flat = value.as_strided((value.storage_offset() + span,), (1,), 0).to(device)
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())
