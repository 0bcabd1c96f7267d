"""A worker process of a search: does the jobs that its crew gives it, and tells what happens."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.backend.gpus import all_visible_gpus, confine_process
from tlmatrix.fuzz.lost import Children, Lost, forked, live, shrunk_lost
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.spec.sharding import WORLD

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.fuzz.crew import Settings
    from tlmatrix.fuzz.search import Found, FuzzReport
    from tlmatrix.matrix import Case
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.models import Spec

__all__ = ["Job", "compiled_once", "spawned", "work"]


@dataclass(frozen=True)
class Job:
    """A part of a search, by its number; or `lost`, a case to shrink."""

    path: str
    tier: str
    seed: int = 0
    examples: int | None = None
    seconds: float | None = None
    known: tuple[Found, ...] = ()
    lost: Lost | None = None
    number: int = 0


def work(line: Connection, settings: Settings, gpu: str) -> None:
    """The life of a worker process: jobs until it is told to end; of several GPUs it has one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the crew, which ends us.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    confine_process(gpu)
    # What kernels print is not for the report.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from tlmatrix.run.records import RecordsWriter

    runner = _runner(settings)
    records = RecordsWriter(settings.results)
    name = f"fuzz{os.getpid()}"
    load = cache(_loaded)  # Once: who edits a spec while it is searched must not end the search.
    while (job := line.recv()) is not None:
        spec = load(job.path, runner.roots)
        if job.lost is not None:
            found = _shrunk(line, job, job.lost, spec, runner, settings)
            line.send(("shrunk", _sent_fault(found)))
            continue
        report = _search(line, job, spec, runner, records, name)
        _let_go()
        line.send(("done", report))
        if runner.lost:
            os._exit(70)  # A CUDA context after a fault: another process goes on.


def _let_go() -> None:
    """Give back what large cases have left in the heap, free and in pieces.

    It is never used again as a whole, and comes to a gigabyte in an hour.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _runner(settings: Settings) -> Runner:
    import torch

    from tlmatrix.backend import backend_named
    from tlmatrix.run.runner import Runner

    torch.set_num_threads(1)
    backend = backend_named(settings.backend)
    runner = Runner(backend, roots=settings.roots, asked=settings.backend, strict=settings.strict)
    runner.prepare()
    return runner


def _shrunk(
    line: Connection, job: Job, lost: Lost, spec: Spec, runner: Runner, settings: Settings
) -> Found:
    """The smallest case that is lost alike, tried in processes of their own."""

    def begin() -> tuple[BaseProcess, Connection]:
        if runner.backend.name == "interpreter":
            return forked(runner, spec, job.path, line)
        return spawned(job.path, settings)

    return shrunk_lost(spec, lost, Children(begin))


def spawned(path: str, settings: Settings) -> tuple[BaseProcess, Connection]:
    """A child that shares nothing with this process: it may use a GPU that this one uses."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, path, settings))
    process.start()
    theirs.close()
    return process, mine


def _child(line: Connection, path: str, settings: Settings) -> None:
    runner = _runner(settings)
    live(line, runner, _loaded(path, runner.roots), path)


def _loaded(path: str, roots: tuple[Path, ...]) -> Spec:
    from tlmatrix.spec.importing import make_importable
    from tlmatrix.spec.loader import load_spec

    make_importable(Path(path), roots)
    return load_spec(path)


def _search(
    line: Connection, job: Job, spec: Spec, runner: Runner, records: RecordsWriter, name: str
) -> FuzzReport:
    """One job; every case is on record before the crew hears of it."""
    from tlmatrix.fuzz.search import fuzz_spec

    def admits(case: Case) -> bool:
        line.send(("ask", _mark(case)))
        return bool(line.recv())

    def on_start(case: Case, shrinking: bool) -> None:
        if not shrinking:
            records.start(job.path, case.id, name)
        blank = CaseResult(
            spec=spec.name, path=job.path, case=case.id, key=case.key, values=dict(case.values),
            origin="fuzz", status=Status.CRASHED, backend=runner.backend.name,
            arch=runner.backend.arch, asked=runner.asked,
        )  # fmt: skip
        line.send(("start", blank))

    def on_result(result: CaseResult) -> None:
        records.case(replace(result, coverage=None))
        line.send(("result", _sent(result) if result.failed else _light(result)))

    compiled = runner.backend.name == "cuda"
    strategy = compiled_once(spec, job, gpus=len(all_visible_gpus())) if compiled else None
    report = fuzz_spec(
        spec, runner, strategy=strategy, tier=job.tier, examples=job.examples,
        seconds=job.seconds, seed=job.seed, path=job.path, known=job.known, admits=admits,
        on_start=on_start, on_result=on_result,
        on_found=lambda found: line.send(("found", _sent_fault(found))),
    )  # fmt: skip
    if report.coverage is not None:
        records.coverage(job.path, f"fuzz {job.seed}", report.coverage)
    # Of one configuration there may be no more cases while others have some.
    exhausted = report.exhausted and not compiled
    return replace(report, exhausted=exhausted, found=tuple(map(_sent_fault, report.found)))


def compiled_once(spec: Spec, job: Job, gpus: int) -> SearchStrategy[Case]:
    """Cases of one configuration of the tier, the next one for the next job, of any where none is.

    For backends that compile: there a kernel takes as long as hundreds of examples. Cases of more
    ranks than there are GPUs are not drawn: they could only be skipped.
    """
    from tlmatrix.fuzz.draw import cases, configurations

    most = {WORLD: gpus}
    own = configurations(spec, job.tier, at_most=most)
    among = [own[job.number % len(own)]] if own else None
    return cases(spec, job.tier, among=among, at_most=most)


def _sent(result: CaseResult) -> CaseResult:
    """A result as it goes to another process."""
    return replace(result, values=dict(result.values), coverage=None)


def _sent_fault(found: Found) -> Found:
    return replace(found, smallest=_sent(found.smallest), first=_sent(found.first))


def _light(result: CaseResult) -> CaseResult:
    """What counting needs of a result."""
    return replace(result, values={}, phases={}, kernels=(), key="", coverage=None)


def _mark(case: Case) -> int:
    """A number for a case, the same in every process."""
    from tlmatrix.fuzz.draws import seed_of

    return seed_of(case.key)
