"""A worker of a pool: the process that runs jobs, and what they run with."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import traceback
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tlmatrix.backend.gpus import confine_process
from tlmatrix.check.finding import MASKED, NOT_RUN
from tlmatrix.options.table import COVERAGE
from tlmatrix.processes import end_with
from tlmatrix.run.records import RecordsWriter
from tlmatrix.run.result import Status
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from tlmatrix.backend.assembly import Keep
    from tlmatrix.check.finding import Finding
    from tlmatrix.fuzz.search import FuzzFailure
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.matrix import Case
    from tlmatrix.options.table import RunOptions
    from tlmatrix.run.compute_sanitizer import ComputeSanitizer
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.triage.cause import Cause

    Send = Callable[[str, Any], Any]
    """Sends a message (kind, content) to the pool; returns its answer, if the kind has one."""

UNUSABLE = 70
"""Exit status of a process that a case left unusable."""
_RANK_SECONDS = 120.0
"""Time limit in seconds of one call on several ranks, if cases have no time limit."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`: free bytes to keep, and the size from which blocks are mapped."""


def rank_seconds(timeout: float) -> float:
    """Time limit of one call on several ranks: less than that of a case, to report the call."""
    return 0.4 * timeout if timeout else _RANK_SECONDS


@dataclass(frozen=True)
class WorkerSettings:
    """What the workers of a pool have in common.

    Attributes:
        options: the options of the run.
        seed: the seed of the run; 0 gives every case its own inputs.
        roots: folders, besides the spec's own, from which entries are imported.
        sources: the parts of the sources when the run began, by path of the spec
            (`tlmatrix.run.sources`).
        timeout: the time limit of a case in seconds; 0 for none.
        keep: what the backend `compile` keeps of kernels.
        compute_sanitizer: runs each case again under its tools.
        sharers: the number of workers that share a GPU.
        environment: the environment of a worker; None for that of its machine.
    """

    options: RunOptions
    seed: int = 0
    roots: tuple[Path, ...] = ()
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    timeout: float = 0.0
    keep: Keep | None = None
    compute_sanitizer: ComputeSanitizer | None = None
    sharers: int = 1
    environment: Mapping[str, str] | None = None

    def runner(self, name: str, records: RecordsWriter | None = None) -> Runner:
        """A runner with these settings, which records the results of cases."""
        import torch

        from tlmatrix.run.runner import Runner
        from tlmatrix.run.sources import SourceWatch

        torch.set_num_threads(1)  # which is faster for small tensors
        began = {str(Path(path).resolve()): parts for path, parts in self.sources.items()}
        runner = Runner(
            options=self.options,
            seed=self.seed,
            roots=self.roots,
            rank_seconds=rank_seconds(self.timeout),
            keep=self.keep,
            records=records,
            worker=name,
            sources=SourceWatch(self.roots, began),
        )
        runner.prepare()
        return runner


class Job(Protocol):
    """A part of a pool's work, which one worker runs."""

    @property
    def limit(self) -> float:
        """Seconds after which a case that still runs is ended with its process; 0 for none."""

    @property
    def gpus(self) -> int:
        """The number of GPUs that its process needs on a cluster."""

    def run(self, worker: Worker) -> Any:  # noqa: ANN401 - what the pool's work expects
        """Run the job in a worker; returns a report for the pool."""


class Worker:
    """What jobs of one process run with: a runner, loaded specs, the connection to the pool.

    Attributes:
        settings: those of the pool.
        name: its name in the results file.
        send: sends a message to the pool.
        expendable: whether another process takes over if this one ends.
        stderr: where crashes are traced; None for where they are now.
        over: returns whether the pool wants no further case; raises a Ctrl-C that it got.
        unusable: whether this process can run no further case.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        name: str,
        send: Send,
        *,
        expendable: bool = True,
        stderr: int | None = None,
        over: Callable[[], bool] = bool,
    ) -> None:
        self.settings = settings
        self.name = name
        self.send = send
        self.expendable = expendable
        self.stderr = stderr
        self.over = over
        self.unusable = False
        self._settled: set[str] = set()
        self._specs: dict[str, Spec] = {}
        measured = settings.options[COVERAGE] != "off"
        self._records = _SentRecords(send, over, case_coverage=measured)

    @cached_property
    def runner(self) -> Runner:
        """Runs cases, whose results go to the pool."""
        return self.settings.runner(self.name, self._records)

    @cached_property
    def judge(self) -> CaseJudge:
        """Runs cases of a run."""
        return CaseJudge(self.runner, self.settings.compute_sanitizer)

    def spec(self, path: str) -> Spec:
        """The spec in a file, loaded once: an edit does not affect a worker that runs."""
        if path not in self._specs:
            self._specs[path] = load(path, self.runner.roots)
        return self._specs[path]

    def start(self, case: Case, path: str, *, recorded: bool = True) -> None:
        """Tell the pool that a case begins; one that shrinking tries is not recorded."""
        self.send("start", (self.runner.unfinished(case, path), recorded))

    def add_coverage(self, path: str, name: str, coverage: Coverage) -> None:
        """Record the coverage of several cases together."""
        self._records.coverage(path, name, coverage)
        self.send("record", self._records.taken())

    def settle(self, path: str) -> None:
        """After the first case of a spec: garbage collections skip what it imported and traced.

        Kernels and modules are 400,000 objects, and a tenth of a run was spent looking through
        them again and again.
        """
        if path not in self._settled:
            self._settled.add(path)
            gc.collect()
            gc.freeze()

    def close(self) -> None:
        """End the processes that cases started."""
        if "runner" in self.__dict__:
            self.runner.close()


class _SentRecords(RecordsWriter):
    """Sends each result with its records to the pool, which writes the results file."""

    def __init__(self, send: Send, over: Callable[[], bool], *, case_coverage: bool) -> None:
        self._send = send
        self._over = over
        self._lines: list[bytes] = []
        super().__init__(Path(os.devnull), case_coverage=case_coverage)

    def _open(self) -> None:
        """Open no file."""

    def _write(self, line: bytes) -> None:
        self._lines.append(line.rstrip(b"\n"))

    def start(self, path: str, case: str, worker: str) -> None:  # noqa: ARG002 - as inherited
        """Record nothing, as `Worker.start` has; raise a Ctrl-C that came since.

        The runner watches for a later one.
        """
        self._over()

    def case(self, result: CaseResult) -> None:
        """Send a result, whose records include its coverage if the runner measured all cases."""
        super().case(result)
        self._send("result", (replace(result, coverage=None), self.taken()))

    def taken(self) -> list[bytes]:
        """The lines that were not sent."""
        lines, self._lines = self._lines, []
        return lines


def load(path: str, roots: tuple[Path, ...]) -> Spec:
    """Load a spec, and make the modules that it names importable."""
    from tlmatrix.spec.importing import make_importable
    from tlmatrix.spec.loader import load_spec

    make_importable(Path(path), roots)
    return load_spec(path)


def worker_main(connection: Connection, settings: WorkerSettings, name: str, gpu: str) -> None:
    """Run jobs until the pool sends None; `gpu` is the one that this worker may use, "" for all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles Ctrl-C and ends its workers
    if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        end_with(parent.pid)
    if settings.environment is not None:
        os.environ.clear()
        os.environ.update(settings.environment)
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    confine_process(gpu)
    stderr = os.dup(2)
    for descriptor in (1, 2):  # discard what kernels print
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    _keep_heap()

    def send(kind: str, content: Any) -> Any:  # noqa: ANN401 - any message
        connection.send((kind, content))
        return connection.recv() if kind == "ask" else None

    worker = Worker(settings, name, send, stderr=stderr)
    while (job := connection.recv()) is not None:
        kind, content = run_job(job, worker)
        send(kind, content)
        if kind == "broken":
            os._exit(UNUSABLE)  # without finalizers, which may hang
    worker.close()


def run_job(job: Job, worker: Worker) -> tuple[str, Any]:
    """Run a job; the message by which it ends."""
    try:
        report = job.run(worker)
    except SpecError as error:
        return "failed", error
    except Exception:  # noqa: BLE001 - ours: those of the code under test are findings
        return "failed", traceback.format_exc()
    return ("broken" if worker.unusable else "done"), report


def trim_heap() -> None:
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


# Cases: the first failure of each cause is looked into further ------------------------------------
#
# Wrong values, an access outside, or a result of another shape stop the checks that run the entry
# again: a second pass makes them as if that finding did not exist. A fuzz case is shrunk.

_SHRINK_SECONDS = 10.0
"""Time limit of shrinking one failure: a run with failures should end soon."""
_VALUES = frozenset({"numeric", "gradients", "poison"})


class CaseJudge:
    """Runs the cases of a run in this process, and knows the causes that it has looked behind.

    Args:
        runner: runs and records the cases.
        sanitizer: runs each case again under tools of compute-sanitizer.
    """

    def __init__(self, runner: Runner, sanitizer: ComputeSanitizer | None = None) -> None:
        self.runner = runner
        self._sanitizer = sanitizer
        self._masked: set[tuple[str | None, ...]] = set()
        self._shrunk: set[tuple[str, Cause]] = set()
        self._found: list[FuzzFailure] = []

    def run(
        self, spec: Spec, case: Case, path: str, limit: float | None, *, alone: bool = False
    ) -> CaseResult:
        """Run, judge and record a case of the spec at `path` within `limit` seconds.

        `alone` is whether no other case runs, as this one ran out of memory beside others.
        """

        def refined(result: CaseResult) -> CaseResult:
            if alone and result.findings and result.findings[0].check == "memory":
                first, *others = result.findings
                noted = replace(first, title=f"{first.title}; also while no other case ran")
                return replace(result, findings=(noted, *others))
            if self.runner.broken_by:
                return result
            if self._sanitizer is not None:
                result = self._sanitizer.judge(result, limit)
            if case.origin == "fuzz":
                return self._with_smaller(spec, case, result, limit) if result.failed else result
            if case.origin != "invalid" and self.runner.backend.executes:
                return self._with_masked(spec, case, result)
            return result

        return self.runner.run(
            spec,
            case,
            path=path,
            # Of the checks that run the code again, each fuzz case gets one, in rotation.
            reruns="rotate" if case.origin == "fuzz" else "all",
            time_limit=limit or None,
            refine=refined,
        )

    def _with_masked(self, spec: Spec, case: Case, result: CaseResult) -> CaseResult:
        """A result with the findings of a second pass, if it is the first of its cause."""
        if result.status is not Status.FAILED or not _stopped(result):
            return result
        first = result.findings[0]
        cause = (result.path, *first.cause, first.source)
        if cause in self._masked:
            return result
        self._masked.add(cause)
        known = {finding.check for finding in result.findings}
        again = self.runner.judge(spec, case, path=result.path, masked=True)
        found = [_noted(each) for each in again.findings if each.check not in known]
        return replace(result, findings=(*result.findings, *found))

    def _with_smaller(
        self, spec: Spec, case: Case, result: CaseResult, limit: float | None
    ) -> CaseResult:
        """A result with the smallest case that fails like it, if it is the first of its cause.

        Shrinking takes at most a quarter of the time limit.
        """
        from tlmatrix.fuzz.search import shrink_failure
        from tlmatrix.triage.cause import cause_of

        cause = cause_of(result)
        if cause is None or (result.path, cause) in self._shrunk:
            return result
        self._shrunk.add((result.path, cause))
        seconds = min(_SHRINK_SECONDS, limit / 4) if limit else _SHRINK_SECONDS
        found = shrink_failure(spec, self.runner, case, result, seconds=seconds)
        self._shrunk.update((result.path, cause) for cause in found.causes)
        if any(found.same_fault(other) for other in self._found):
            return result
        self._found.append(found)
        if found.smallest.key == result.key:
            # Shrinking adds to the finding which elements are wrong with any data.
            return replace(result, findings=found.smallest.findings)
        return replace(result, smaller=found.smallest)


def _noted(finding: Finding) -> Finding:
    detail = f"{finding.detail}\n{MASKED}" if finding.detail else MASKED
    return replace(finding, detail=detail)


def _stopped(result: CaseResult) -> bool:
    """Whether checks did not run that may find another fault.

    If only some values are wrong, relations between calls are wrong with them.
    """
    if not any(NOT_RUN in (finding.detail or "") for finding in result.findings):
        return False
    if any(finding.check == "determinism" for finding in result.findings):
        return False  # calls differ, and so do the sides of relations
    values = (finding for finding in result.findings if finding.check in _VALUES)
    return all(finding.pattern in ("everything", "shape") for finding in values)
