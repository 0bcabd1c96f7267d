"""Jobs of ranks, and `RankRunner`, which runs the calls of one rank.

It creates the rank's context once, and guards its buffers with canaries. Jobs and answers are plain
data, which crosses processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.binding import execute
from tlmatrix.backend.errors import BindingError, EntryError, wrapping_entry_errors
from tlmatrix.backend.signature import parameters_of
from tlmatrix.check.guards import Guards, guarded
from tlmatrix.distributed.counters import EDGE_CALLS, FIRST, OBSERVED, NotLinearError
from tlmatrix.problem.model import InapplicableError
from tlmatrix.spec.importing import load
from tlmatrix.tracebacks import unwinds
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import torch

    from tlmatrix.backend.binding import Binding
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.running import Results
    from tlmatrix.distributed.counters import Counters
    from tlmatrix.problem.model import Problem

_WARMUP = 2
"""Calls before a capture, which fill both halves of double-buffered contexts."""


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
        counters: what the ranks' contexts count, to be advanced before each two calls, as often as
            there is an edge to reach; the same object for all ranks, which share a process.
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
    """The results of a rank, call by call, and the findings of its canaries.

    `absent` are the missing gradients of each call, with the reasons (`Results.absent`).
    """

    results: tuple[Mapping[str, torch.Tensor], ...]
    findings: tuple[Finding, ...] = field(default=())
    absent: tuple[Mapping[str, str], ...] = field(default=())


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


@dataclass
class RankRunner:
    """Runs the calls of one case on one rank; `group` is torch.distributed's group of all ranks."""

    binding: Binding
    rank: int
    world: int
    group: Any
    _context: list[Any] = field(default_factory=list)
    """The context in a list of one; empty before it is created."""

    def run(self, job: Job) -> Answer:
        """Make the calls of a job.

        Raises:
            EntryError: the entry, or the function that creates its context, raised.
            BindingError: arguments or results do not match the spec.
        """
        import torch

        if job.captured:
            return self._replay(job)
        if job.counters is not None:
            self._observe(job, job.counters)
        held: dict[str, torch.Tensor] = {}
        results, findings, absent = [], [], []
        single = len(job.calls) == 1
        streams = self._streams(job)
        for number, (call, stream) in enumerate(zip(job.calls, streams, strict=True)):
            if job.counters is not None and number % EDGE_CALLS == 0:
                self._advance(job.counters)
                if job.counters.ended:
                    break
            problem = self.problem(call)
            with stream:
                if not single and not job.streams:
                    problem = _reuse_memory(problem, held)
                found, guarded_findings = self._call(problem, job, wait=single)
                absent.append(found.absent)
                results.append(
                    found
                    if single
                    # The next call may overwrite them. Simulated, `clone` would wait.
                    else {name: torch.empty_like(each).copy_(each) for name, each in found.items()}
                )
            findings += guarded_findings
        if not single:
            with wrapping_entry_errors():
                self.binding.backend.synchronize()
        return Answer(tuple(results), tuple(findings), tuple(absent))

    def _streams(self, job: Job) -> Iterator[AbstractContextManager[object]]:
        """For each call the current stream or, with `job.streams`, one of its own.

        These wait for the work so far, which made the arguments, and not for each other. An entry
        that does not ask for its stream leaves their order to the caller: it gets the current one.
        """
        import torch

        if not job.streams:
            yield from (nullcontext() for _ in job.calls)
            return
        from tlmatrix.interpreter.sync.context import current_rank

        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        rank = current_rank()
        rank.asks_stream = False
        yield nullcontext()
        for _ in job.calls[1:]:
            if not rank.asks_stream:
                yield nullcontext()
                continue
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_event(event)
            yield torch.cuda.stream(stream)

    def _observe(self, job: Job, counters: Counters) -> None:
        """Make some equal calls, and read what the contexts count after each."""
        import torch.distributed as dist

        problem = self.problem(job.calls[0])
        counters.contexts[self.rank] = problem.names.get("context")
        for number in range(FIRST + OBSERVED):
            self._call(problem, job, wait=True)
            dist.barrier()
            if self.rank == 0 and number >= FIRST:
                counters.read()
            dist.barrier()

    def _advance(self, counters: Counters) -> None:
        """Advance what the contexts count, after all work of all ranks.

        Raises:
            InapplicableError: it does not grow by a constant.
        """
        import torch.distributed as dist

        from tlmatrix.interpreter.sync.context import current_rank

        with wrapping_entry_errors():
            self.binding.backend.synchronize()
        dist.barrier()
        if self.rank == 0:
            try:
                counters.advance(current_rank().world.flags)
            except NotLinearError:
                counters.contexts.clear()
        dist.barrier()
        if not counters.contexts:
            raise InapplicableError(())

    def problem(self, call: Problem) -> Problem:
        """The problem of a call, with the rank, its group, and the spec's `context` in its names.

        The first call of the case creates the context.
        """
        ranks = {"rank": self.rank, "world": self.world, "group": self.group}
        problem = replace(call, names={**call.names, **ranks})
        spec = self.binding.spec
        if spec.context is None:
            return problem
        if not self._context:
            make = load(spec, ("context",), spec.context)
            if not callable(make):
                raise self._binding_error(f"{spec.context!r} is not callable")
            arguments = self._arguments(make, problem.names)
            with wrapping_entry_errors():
                self._context.append(make(**arguments))
        return replace(problem, names={**problem.names, "context": self._context[0]})

    def _replay(self, job: Job) -> Answer:
        """Capture the first call to a CUDA graph, and replay it with the data of each call.

        Eager calls before the capture compile kernels and size buffers. One more before the last
        replay, and one with other data after it, check that eager calls and a graph can share a
        context: the one after it has the same half of double-buffered memory as the graph.
        """
        import torch

        held: dict[str, torch.Tensor] = {}
        problem = _reuse_memory(self.problem(job.calls[0]), held)

        def call() -> dict[str, torch.Tensor]:
            return execute(self.binding, problem, run_index=job.turn, wait=False)

        for _ in range(_WARMUP):
            call()
        try:
            self.binding.backend.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = call()
            results = []
            for number, each in enumerate(job.calls, 1):
                _reuse_memory(self.problem(each), held)
                if number == len(job.calls):
                    call()
                graph.replay()
                results.append({name: tensor.clone() for name, tensor in captured.items()})
            _reuse_memory(self.problem(job.calls[0]), held)
            call()
            self.binding.backend.synchronize()
        except (EntryError, BindingError):
            raise
        except BaseException as error:
            if unwinds(error):
                raise
            raise EntryError(error) from error
        return Answer(tuple(results))

    def _call(self, problem: Problem, job: Job, *, wait: bool) -> tuple[Results, list[Finding]]:
        with ExitStack() as stack:
            guards: Guards | None = None
            if job.poison is not None:
                problem, guards = stack.enter_context(guarded(problem, poison=job.poison))
            results = execute(self.binding, problem, run_index=job.turn, wait=wait)
        return results, guards.findings(results) if guards is not None else []

    def _arguments(self, make: Any, names: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        arguments = {}
        for name, parameter in (parameters_of(make) or {}).items():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if name in names:
                arguments[name] = names[name]
            elif parameter.default is parameter.empty:
                hint = suggestion(name, sorted(names), "Known names")
                raise self._binding_error(f"no value for its parameter {name!r}{hint}")
        return arguments

    def _binding_error(self, message: str) -> BindingError:
        spec = self.binding.spec
        return BindingError([spec.issue(("context",), f"context: {spec.context!r}: {message}")])


def _refill(old: torch.Tensor, new: torch.Tensor) -> None:
    """Copy data into a tensor of the same strides, once into elements that are one in memory."""
    for dim, stride in enumerate(old.stride()):
        if stride == 0 and old.shape[dim] > 1:
            old, new = old.narrow(dim, 0, 1), new.narrow(dim, 0, 1)
    old.copy_(new)


def _metadata(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _reuse_memory(problem: Problem, held: dict[str, torch.Tensor]) -> Problem:
    """Copy the problem's data into tensors of earlier calls, equal in all but their values.

    The copy runs on the current stream, so a kernel of an earlier call that still reads on another
    stream sees the new data, and its results are wrong.
    """
    reused: dict[int, torch.Tensor] = {}
    tensors = {**problem.inputs}
    tensors |= {f"d{output}": tensor for output, tensor in problem.cotangents.items()}
    for name, tensor in tensors.items():
        old = held.get(name)
        if old is not None and _metadata(old) == _metadata(tensor):
            _refill(old, tensor)
            reused[id(tensor)] = old
        else:
            held[name] = tensor

    def substitute(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: reused.get(id(value), value) for name, value in values.items()}

    return replace(
        problem,
        names=substitute(problem.names),
        inputs=substitute(problem.inputs),
        cotangents=substitute(problem.cotangents),
    )
