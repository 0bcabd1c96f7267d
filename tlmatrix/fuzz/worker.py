"""A worker process of `WorkerPool`: runs jobs and sends events to the pool."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import traceback
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.backend.gpus import all_visible_gpus, confine_process
from tlmatrix.fuzz.lost_cases import ChildProcess, LostCase, fork_child, serve_cases, shrink_lost
from tlmatrix.parents import end_with
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.sharding import WORLD

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.fuzz.job import Job, Settings
    from tlmatrix.fuzz.search import FuzzFailure, FuzzReport
    from tlmatrix.matrix import Case
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`: free bytes to keep, and the size from which blocks are mapped."""


def worker_main(
    connection: Connection, settings: Settings, gpu: str, *, sends_records: bool = False
) -> None:
    """Run jobs until the pool sends None; `gpu` is the one that this worker may use, "" for all.

    With `sends_records`, records go to the pool instead of the results file.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles Ctrl-C and ends its workers
    if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        end_with(parent.pid)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    confine_process(gpu)
    # Discard what kernels print.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from tlmatrix.run.records import RecordsWriter, SentRecords

    records: RecordsWriter
    if sends_records:
        records = SentRecords(lambda line: connection.send(("record", line)), case_coverage=False)
    else:
        records = RecordsWriter(settings.results, case_coverage=False)
    runner = _runner(settings, records)
    load = cache(_load)  # once, so that an edit of the spec does not affect a running search
    while (job := connection.recv()) is not None:
        try:
            spec = load(job.path, runner.roots)
            if job.lost is not None:
                found = _shrink(connection, job, job.lost, spec, runner, settings)
                connection.send(("shrunk", _slim_failure(found)))
                continue
            report = _search(connection, job, spec, runner, records)
        except SpecError as error:
            connection.send(("invalid", error))
            continue
        except Exception:  # noqa: BLE001 - ours: those of the code under test are findings
            connection.send(("failed", traceback.format_exc()))
            continue
        _trim_heap()
        if records.error:
            connection.send(("unrecorded", records.error))
        if runner.broken_by:
            connection.send(("broken", report))
            os._exit(70)  # the CUDA context is unusable after a fault
        if runner.outdated:
            connection.send(("outdated", f"{runner.outdated} since the search began"))
            runner.outdated = ""  # the next job may be of another spec
        connection.send(("done", report))


def _trim_heap() -> None:
    """Return free heap memory to the system; fragmentation costs about a gigabyte an hour."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _keep_heap() -> None:
    """Let glibc keep the memory of freed tensors, which costs a page fault for every 4 KiB else."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, 32 << 20)  # the most that it allows
        set_option(_TRIM_THRESHOLD, 256 << 20)


def _runner(settings: Settings, records: RecordsWriter | None = None) -> Runner:
    import torch

    from tlmatrix.run.runner import Runner
    from tlmatrix.run.sources import SourceWatch

    torch.set_num_threads(1)
    _keep_heap()
    began = {str(Path(path).resolve()): parts for path, parts in settings.sources.items()}
    runner = Runner(
        options=settings.options,
        seed=0,
        roots=settings.roots,
        records=records,
        worker=f"fuzz{os.getpid()}",
        sources=SourceWatch(settings.roots, began),
    )
    runner.prepare()
    return runner


def _shrink(
    connection: Connection, job: Job, lost: LostCase, spec: Spec, runner: Runner, settings: Settings
) -> FuzzFailure:
    """Shrink a lost case; each attempt runs in a child process."""

    def begin() -> tuple[BaseProcess, Connection]:
        if runner.backend.survives_fork:
            return fork_child(runner, spec, job.path, connection)
        return spawn_child(job.path, settings)

    return shrink_lost(spec, lost, ChildProcess(begin))


def spawn_child(path: str, settings: Settings) -> tuple[BaseProcess, Connection]:
    """Start a child that shares no state with this process and so may use the same GPU."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, path, settings))
    process.start()
    theirs.close()
    return process, mine


def _child(connection: Connection, path: str, settings: Settings) -> None:
    runner = _runner(settings)
    serve_cases(connection, runner, _load(path, runner.roots), path)


def _load(path: str, roots: tuple[Path, ...]) -> Spec:
    from tlmatrix.spec.importing import make_importable
    from tlmatrix.spec.loader import load_spec

    make_importable(Path(path), roots)
    return load_spec(path)


def _search(
    connection: Connection, job: Job, spec: Spec, runner: Runner, records: RecordsWriter
) -> FuzzReport:
    """Run one job; every case is in the results file before the pool learns of it."""
    from tlmatrix.fuzz.search import fuzz_spec

    def admits(case: Case) -> bool:
        connection.send(("is new", _case_hash(case)))
        return bool(connection.recv())

    def on_start(case: Case, _shrinking: bool) -> None:
        blank = runner.unfinished(case, job.path)
        connection.send(("start", replace(blank, values=dict(case.values))))

    def on_result(result: CaseResult) -> None:
        connection.send(("result", _slim(result) if result.failed else _for_counting(result)))

    compiled = runner.backend.compiles
    strategy = one_configuration(spec, job, gpus=len(all_visible_gpus())) if compiled else None
    report = fuzz_spec(
        spec, runner, strategy=strategy, tier=job.tier, examples=job.examples,
        seconds=job.seconds, seed=job.seed, path=job.path, known=job.known, admits=admits,
        on_start=on_start, on_result=on_result,
        on_found=lambda found: connection.send(("found", _slim_failure(found))),
    )  # fmt: skip
    if report.coverage is not None:
        records.coverage(job.path, f"fuzz {job.seed}", report.coverage)
    # The job's one configuration may be exhausted while others are not.
    exhausted = report.exhausted and not compiled
    return replace(report, exhausted=exhausted, found=tuple(map(_slim_failure, report.found)))


def one_configuration(spec: Spec, job: Job, gpus: int) -> SearchStrategy[Case]:
    """A strategy for cases that share the kernels of one case of the tier, of another for each job.

    For backends that compile, where a kernel takes as long as hundreds of examples. Cases with
    more ranks than `gpus` are not generated, as they would be skipped.
    """
    from tlmatrix.fuzz.strategies import sharing_cases

    return sharing_cases(spec, job.tier, number=job.configuration, at_most={WORLD: gpus})


def _slim(result: CaseResult) -> CaseResult:
    """A result without coverage, for the pool."""
    return replace(result, values=dict(result.values), coverage=None)


def _slim_failure(found: FuzzFailure) -> FuzzFailure:
    return replace(found, smallest=_slim(found.smallest), first=_slim(found.first))


def _for_counting(result: CaseResult) -> CaseResult:
    """A result with only the fields that counting needs."""
    return replace(result, values={}, phases={}, kernels=(), key="", coverage=None)


def _case_hash(case: Case) -> int:
    """A hash of a case that is the same in every process."""
    from tlmatrix.fuzz.generation import derive_seed

    return derive_seed(case.key)
