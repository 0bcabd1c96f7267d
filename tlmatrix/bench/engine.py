"""Times the bench cases of a spec: checks every implementation, then samples them interleaved.

Nothing is printed or written here; each case is yielded as soon as it is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
import torch.distributed as dist

from tlmatrix.backend import ArchitectureError
from tlmatrix.backend.axes import refuse_unknown_axes
from tlmatrix.backend.binding import bind
from tlmatrix.backend.errors import DevicesError, EntryError
from tlmatrix.bench.baselines import torch_run
from tlmatrix.bench.candidates import (
    ENTRY,
    NotApplicableError,
    Timed,
    entry_run,
    find_mismatch,
    summarize_error,
    time_passes,
    try_variants,
    variants_of,
)
from tlmatrix.bench.results import CaseTimes, Implementation, PassTimes, State
from tlmatrix.bench.timing import Clock, Samples, Schedule, Timing, cuda_clock
from tlmatrix.check.finding import FindingsError
from tlmatrix.distributed.entry import gathered
from tlmatrix.distributed.executors import ProcessExecutor, executor_for
from tlmatrix.distributed.rank_runner import Job, RankRunner, to_device
from tlmatrix.problem import family_for
from tlmatrix.problem.sharding import Sharding
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import DeclaredProblem, has_ranks

if TYPE_CHECKING:
    from tlmatrix.backend import Backend
    from tlmatrix.bench.candidates import Candidate, Named, Run, Variant
    from tlmatrix.bench.roofs import Roof
    from tlmatrix.bench.timing import Call
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec


# Several ranks: a process each, in lockstep; the slowest rank counts ------------------------------
#
# `RankTimer` runs in the command's process. The process of each rank
# (`tlmatrix.distributed.process`) calls `time_on_rank`.

_SECONDS = 900.0
"""Time limit of a case in seconds, including compilation."""
_ONE_GPU_ONLY = "runs on one GPU; give a function that every rank calls, package.module:name"


@dataclass(frozen=True)
class RankTimes:
    """What one rank has of a case: states and results by implementation, samples by pass."""

    implementations: Mapping[str, Implementation] = field(default_factory=dict)
    results: Mapping[str, Named] = field(default_factory=dict)
    samples: Mapping[str, Mapping[str, Samples]] = field(default_factory=dict)


class RankTimer:
    """Times cases on ranks of a backend: GPUs with NCCL, or CPU processes with gloo."""

    def __init__(
        self,
        spec: Spec,
        backend: Backend,
        clocks: Callable[[], Mapping[str, Any]],
        roots: tuple[Path, ...],
    ) -> None:
        self._spec, self._clocks, self._roots = spec, clocks, roots
        self._executor = executor_for(backend, roots, _SECONDS)

    def close(self) -> None:
        """End the processes."""
        self._executor.close()

    def timed(self, problem: Problem, variants: Sequence[Variant], schedule: Schedule) -> Timed:
        """Time a case; the time of a call is that of the slowest rank."""
        before = dict(self._clocks())

        def untimed(state: State, reason: str) -> Timed:
            return Timed([Implementation(ENTRY, state, reason)], before=before)

        if not isinstance(self._executor, ProcessExecutor):
            return untimed(State.NOT_APPLICABLE, "simulated ranks cannot be timed")
        sharding = Sharding.of(self._spec, problem)
        host = torch.device("cpu")
        jobs = [
            to_device(Job((sharding.of_rank(problem, rank),)), host)
            for rank in range(sharding.world)
        ]
        arguments = [(self._spec, job, list(variants), schedule, self._roots) for job in jobs]
        try:
            times: list[RankTimes] = self._executor.work(time_on_rank, arguments)
        except DevicesError as error:
            return untimed(State.NOT_APPLICABLE, str(error))
        except FindingsError as error:
            return untimed(State.FAILED, error.findings[0].title)
        except EntryError as error:
            words = f"{error.where} raises {type(error.error).__name__}: {error.error}"
            return untimed(State.FAILED, words)
        finally:
            self._executor.end()
        expected = problem.lowp()
        implementations = [
            _judged(variant, problem, sharding, expected, times) for variant in variants
        ]
        correct = {each.name for each in implementations if each.state is State.TIMED}
        samples = {
            name: {
                variant: _slowest([each.samples[name][variant] for each in times])
                for variant in found
                if variant in correct
            }
            for name, found in times[0].samples.items()
            if correct & found.keys()
        }
        return Timed(implementations, samples, before)


def _slowest(samples: Sequence[Samples]) -> Samples:
    """The time of the slowest rank in each round."""
    rounds = zip(*(each.device for each in samples), strict=True)
    return Samples([max(times) for times in rounds], max(each.host for each in samples))


def _judged(
    variant: Variant,
    problem: Problem,
    sharding: Sharding,
    expected: Named,
    times: Sequence[RankTimes],
) -> Implementation:
    """The state of an implementation, from those on all ranks and from its whole results."""
    of_ranks = [each.implementations[variant.name] for each in times]
    reasons = {each.reason for each in of_ranks}
    for state in (State.FAILED, State.NOT_APPLICABLE):
        for rank, each in enumerate(of_ranks):
            if each.state is state:
                where = "" if len(reasons) == 1 else f"rank {rank}: "
                return Implementation(each.name, state, where + each.reason, each.config)
    try:
        whole = gathered(problem, sharding, [each.results[variant.name] for each in times])
    except FindingsError as error:
        return Implementation(variant.name, State.WRONG, error.findings[0].title, variant.config)
    device = next(iter(problem.inputs.values())).device
    results = {name: tensor.to(device) for name, tensor in whole.items()}
    mismatch = find_mismatch(problem, expected, results)
    state = State.WRONG if mismatch else State.TIMED
    return Implementation(variant.name, state, mismatch or "", variant.config)


# In the process of a rank --------------------------------------------------------------------


def time_on_rank(
    backend: Backend,
    rank: int,
    world: int,
    spec: Spec,
    job: Job,
    variants: Sequence[Variant],
    schedule: Schedule,
    roots: tuple[Path, ...],
) -> RankTimes:
    """Try every implementation of a case, then time those that work on all ranks.

    Ranks synchronize before each call and run the same number of rounds.
    """
    group = dist.group.WORLD
    runner = RankRunner(bind(spec, backend, roots=roots), rank, world, group)
    (call,) = to_device(job, backend.device).calls
    problem = runner.problem(call)
    results: dict[str, Named] = {}

    def make(variant: Variant) -> Run:
        if variant.target is not None and ":" not in variant.target:
            raise NotApplicableError(_ONE_GPU_ONLY)
        return entry_run(
            spec, problem, backend, roots=roots, target=variant.target, config=variant.config
        )

    def keep(name: str, found: Candidate) -> None:
        results[name] = {
            output: tensor.detach().cpu().contiguous() for output, tensor in found.results.items()
        }

    ready: dict[str, Candidate] = {}
    implementations: dict[str, Implementation] = {}
    with backend.active():
        for found, implementation in try_variants(variants, make, problem, backend, keep):
            implementations[implementation.name] = implementation
            if _minimum(found is not None) and found is not None:
                ready[implementation.name] = found
        samples = dict(time_passes(ready, _clock(backend), schedule, agree=_maximum))
    return RankTimes(implementations, results, samples)


def _minimum(value: float) -> float:
    """The minimum over all ranks; also a barrier."""
    mine = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MIN)
    return float(mine)


def _maximum(value: float) -> float:
    """The maximum over all ranks."""
    return -_minimum(-value)


def _clock(backend: Backend) -> Clock:
    """A clock for calls that all ranks start together."""
    if backend.name != "cuda":
        return _synchronized(_host_clock)
    one = torch.ones(1, device=backend.device)

    def begin() -> None:
        dist.all_reduce(one, op=dist.ReduceOp.MAX)

    return _synchronized(cuda_clock(backend.device, begin))


def _synchronized(clock: Clock) -> Clock:
    def timed(call: Call, lead: float) -> Timing:
        _minimum(0)
        return clock(call, lead)

    return timed


def _host_clock(call: Call, _lead: float) -> Timing:
    begin = time.perf_counter()
    call()
    spent = (time.perf_counter() - begin) * 1e3
    return Timing(spent, spent)


# The cases of a spec ------------------------------------------------------------------------------


_Pair: TypeAlias = "tuple[Case, Mapping[str, Any]]"


@dataclass(frozen=True)
class Machine:
    """The backend, its clock and its hardware.

    Attributes:
        backend: where kernels run.
        clock: times calls.
        hardware: written to the file; `gpu` is the GPU's name.
        roof: the peak rates of the GPU, None if unknown.
        clocks: called before and after each case to read clock rates and temperature.
        precompile: compiles cases and their configurations in parallel before timing.
    """

    backend: Backend
    clock: Clock
    hardware: Mapping[str, Any] = field(default_factory=dict)
    roof: Roof | None = None
    clocks: Callable[[], Mapping[str, Any]] = dict
    precompile: Callable[[Spec, Sequence[_Pair], Sequence[Path]], None] | None = None


class Timer(Protocol):
    """Times the implementations of a case."""

    def timed(self, problem: Problem, variants: Sequence[Variant], schedule: Schedule) -> Timed:
        """Try each implementation, and time those that work."""

    def close(self) -> None:
        """Free what the cases shared."""


def bench(
    spec: Spec,
    cases: Sequence[Case],
    machine: Machine,
    *,
    path: str = "",
    baselines: Sequence[str] | None = None,
    sweep: bool = False,
    schedule: Schedule | None = None,
    roots: tuple[Path, ...] = (),
) -> Iterator[CaseTimes]:
    """Time cases one after the other.

    `baselines` replace those of the spec. With `sweep` every combination of `configs` is timed
    too, under the name `name=value,name=value`.

    Raises:
        SpecError: the spec is invalid, or names code that does not exist.
    """
    make_importable(spec.path, roots)
    family = family_for(spec)
    issues = list(family.lint(spec))
    if issues:
        raise SpecError(issues)
    backend, reason = machine.backend, ""
    # The values of a matrix product affect its power consumption and so the clock rate.
    known = isinstance(spec.problem, DeclaredProblem) or "values" in getattr(family, "axes", ())
    distribution = {"values": "normal"} if known else {}
    try:
        refuse_unknown_axes(bind(spec, backend, roots=roots), family)
    except ArchitectureError as error:
        reason = str(error)
    variants = variants_of(spec, baselines, sweep=sweep)
    timer = _timer(spec, machine, roots)
    pairs = [(case, each.config) for case in cases for each in variants if each.target is None]
    if machine.precompile and len(pairs) > 1 and not reason and not has_ranks(spec):
        machine.precompile(spec, pairs, roots)
    try:
        for case in cases:
            untimed = CaseTimes(spec.name, path, case.id, dict(case.values))
            if reason:
                yield _untimed(untimed, State.NOT_APPLICABLE, reason)
                continue
            if backend.broken():
                words = "an earlier case left the CUDA context unusable; time this case separately"
                yield _untimed(untimed, State.FAILED, words)
                continue
            try:
                values = {**distribution, **case.values}
                problem = family.problem(spec, values, seed=case.seed, device=backend.device)
            except Exception as error:  # noqa: BLE001 - such as out of memory; reported in the table
                yield _untimed(untimed, State.FAILED, summarize_error(error, backend))
                continue
            timed = timer.timed(problem, variants, schedule or Schedule())
            yield replace(
                untimed,
                dtype=str(case.values.get("dtype", "")) or _dtype(problem),
                implementations=tuple(timed.implementations),
                passes=tuple(_passes(problem, timed)),
                clocks={"before": timed.before, "after": dict(machine.clocks())},
            )
            del problem, timed
            backend.release()
    finally:
        timer.close()


def _timer(spec: Spec, machine: Machine, roots: tuple[Path, ...]) -> Timer:
    if not has_ranks(spec):
        return _OneGpu(spec, machine, roots)
    return RankTimer(spec, machine.backend, machine.clocks, roots)


def _untimed(case: CaseTimes, state: State, reason: str) -> CaseTimes:
    return replace(case, implementations=(Implementation(ENTRY, state, reason),))


def _passes(problem: Problem, timed: Timed) -> Iterator[PassTimes]:
    cost = problem.cost() if problem.cost is not None and timed.samples else None
    for name, samples in timed.samples.items():
        work = cost if name == "forward" or cost is None else cost.backward
        yield PassTimes(name, work, samples)


def _dtype(problem: Problem) -> str:
    first = next(iter(problem.inputs.values()), None)
    return "" if first is None else str(first.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class _OneGpu:
    """Times the calls of this process."""

    spec: Spec
    machine: Machine
    roots: tuple[Path, ...]

    def timed(self, problem: Problem, variants: Sequence[Variant], schedule: Schedule) -> Timed:
        """See `Timer.timed`."""
        with self.machine.backend.active():
            return self._timed(problem, variants, schedule)

    def close(self) -> None:
        """See `Timer.close`."""

    def _timed(self, problem: Problem, variants: Sequence[Variant], schedule: Schedule) -> Timed:
        backend = self.machine.backend
        try:
            expected = problem.lowp()
        except Exception as error:  # noqa: BLE001 - as for the problem
            words = f"its reference: {summarize_error(error, backend)}"
            return Timed([Implementation(ENTRY, State.FAILED, words)])

        def make(variant: Variant) -> Run:
            if variant.target is not None and ":" not in variant.target:
                return torch_run(variant.target, self.spec, problem)
            return entry_run(
                self.spec,
                problem,
                backend,
                roots=self.roots,
                target=variant.target,
                config=variant.config,
            )

        def mismatch(_name: str, found: Candidate) -> str | None:
            return find_mismatch(problem, expected, found.results)

        ready: dict[str, Candidate] = {}
        implementations: list[Implementation] = []
        for found, implementation in try_variants(variants, make, problem, backend, mismatch):
            implementations.append(implementation)
            if found is not None:
                ready[implementation.name] = found
            elif implementation.state is State.FAILED and backend.broken():
                ready.clear()
                break
        before = dict(self.machine.clocks())
        samples: dict[str, dict[str, Samples]] = {}
        try:
            samples.update(time_passes(ready, self.machine.clock, schedule))
        except Exception as error:  # noqa: BLE001 - GPU errors are asynchronous
            words = summarize_error(error, backend)
            implementations[0] = Implementation(ENTRY, State.FAILED, words)
        return Timed(implementations, samples, before)
