"""The plugin's state in a pytest session: settings, results file, runner.

Every process has one `State`. A worker of pytest-xdist runs cases and appends their records. The
controller, or the only process of a run without workers, also writes the header and the summary
of the results file and sends events.
"""

from __future__ import annotations

import gc
import os
import platform
import shlex
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.cache_files import prepare_caches
from tlmatrix.options.table import (
    ARCH,
    BACKEND,
    COMPUTE_SANITIZER,
    COVERAGE,
    KEEP,
    NO_FUZZ,
    ONLY,
    SEED,
    TIER,
    TIMEOUT,
)
from tlmatrix.parents import end_with
from tlmatrix.plugin.ctrl_c import CtrlC
from tlmatrix.plugin.groups_file import GroupsFile, ShardPlan
from tlmatrix.plugin.settings import Settings, own_timeout, settings_of
from tlmatrix.plugin.shrinking import Shrinker
from tlmatrix.plugin.turns import Turns
from tlmatrix.results_file import (
    PACKAGES,
    make_folder,
    resume_command,
    shown_path,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tlmatrix.backend.assembly import Keep
    from tlmatrix.backend.gpus import GpuAssignment
    from tlmatrix.config import Config
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.compute_sanitizer import ComputeSanitizer
    from tlmatrix.run.events import RunHeader
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult, Status
    from tlmatrix.run.runner import Runner
    from tlmatrix.run.second_pass import SecondPass
    from tlmatrix.run.sources import SourceWatch

RANK_SECONDS = 120.0
"""Time limit in seconds of one call on several ranks, if cases have no time limit."""

_KEY = pytest.StashKey["State"]()
_MAX_WIDTH = 120
"""Most columns of text: longer lines are hard to read."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def state_of(config: pytest.Config) -> State:
    """The state of this session."""
    return config.stash[_KEY]


def set_state(config: pytest.Config, project: Config) -> State:
    """Create the session's state; it writes nothing before the run begins."""
    config.stash[_KEY] = State(config, project)
    return config.stash[_KEY]


def close_state(config: pytest.Config) -> None:
    """Close the session's state, if it has one."""
    state = config.stash.get(_KEY, None)
    if state is not None:
        state.close()


class State:
    """The settings and results of one session.

    Attributes:
        config: pytest's configuration.
        project: the project's configuration.
        settings: the settings of the run.
        interrupted: whether Ctrl-C ended the run.
        options: the options of the run.
        select: the expression of `-k` as the user wrote it.
        planned: the number of cases of the run.
        unrecorded: why the results file lacks results; empty if it has all.
        worker_error: the first error of a worker that wrote to the results file.
        shrinker: shrinks failing fuzz cases.
        worker: the id of this worker; empty in the controller.
        turns: the locks of the workers that share a GPU.
        shard_plan: the plan of which this session runs a shard.
        groups_file: the groups of cases that share kernels.
        ctrl_c: the handler of Ctrl-C, installed in the controller while cases run.
        expendable: whether another process continues the run if a case ends this one.
        words: the command line, for the header of the results file.
    """

    def __init__(self, config: pytest.Config, project: Config) -> None:
        self.config = config
        self.project = project
        self.interrupted = False
        self.select: str = config.option.keyword
        self.planned = 0
        self.unrecorded = ""
        self.worker_error = ""
        self._results: dict[tuple[str, str], CaseResult] = {}
        self.shrinker = Shrinker()
        self._began: float | None = None
        self._writer: RecordsWriter | None = None
        self._runner: Runner | None = None
        self._input: Mapping[str, Any] = {}
        """The input of this worker; empty in the controller."""
        self.worker = ""
        worker: Mapping[str, Any] | None = getattr(config, "workerinput", None)
        if worker is None:
            self.settings = settings_of(config, project)
        else:
            self.worker = worker["workerid"]
            self._input = worker["tlmatrix"]
            self.settings = Settings.from_plain(self._input["settings"])
        self.options = self.settings.options
        self.shard_plan = ShardPlan()
        self.turns = Turns(self._input.get("turns", ""))
        self.groups_file = GroupsFile(self._input.get("groups", ""))
        self.expendable = self.is_worker
        self._settled: set[Path] = set()
        self._current_gpu = ""
        self.ctrl_c = CtrlC()
        self.words = ["pytest", *map(str, config.invocation_params.args)]

    @cached_property
    def width(self) -> int:
        """Columns of text; a worker has no terminal and uses those of the controller."""
        if self.is_worker:
            return int(self._input["width"])
        return min(self.config.get_terminal_writer().fullwidth, _MAX_WIDTH)

    @cached_property
    def gpus(self) -> GpuAssignment:
        """Assigns GPUs to workers; without GPUs if the backend uses none."""
        from tlmatrix.backend.gpus import assignment_for

        return assignment_for(self.options[BACKEND])

    @property
    def workers(self) -> int:
        """The number of workers of `-n`."""
        return int(getattr(self.config.option, "numprocesses", None) or 0)

    def worker_input(self, worker: str) -> dict[str, Any]:
        """The input of a worker of pytest-xdist, as plain data."""
        return {
            "tlmatrix": {
                "settings": self.settings.to_plain(),
                "gpu": self.gpus.assign(worker),
                "sharers": self.gpus.sharers(self.workers),
                "groups": self.groups_file.path,
                "width": self.width,
                "turns": self.groups_file.beside(f"gpu-{self.gpus.of(worker) or 'all'}"),
                "controller": [platform.node(), os.getpid()],
            }
        }

    def interrupt(self) -> None:
        """Mark the run as interrupted."""
        self.interrupted = True

    @property
    def counts(self) -> Counter[Status]:
        """The number of cases by status."""
        return Counter(result.status for result in self._results.values())

    @property
    def unsupported(self) -> int:
        """The number of cases skipped because the interpreter does not support them."""
        from tlmatrix.run.result import SkipReason

        return sum(each.reason is SkipReason.UNSUPPORTED for each in self._results.values())

    def has_result(self, path: str, case: str) -> bool:
        """Whether a case has its result."""
        return (path, case) in self._results

    @property
    def runs_fuzz_cases(self) -> bool:
        """Whether the fuzz cases of the tier run; if kernels do not, they add nothing."""
        from tlmatrix.backend import backend_class

        wanted = not self.options[NO_FUZZ] and self.options[ONLY] is None
        return wanted and backend_class(self.options[BACKEND]).executes

    @property
    def is_worker(self) -> bool:
        """Whether this process is a worker of pytest-xdist."""
        return bool(self.worker)

    @property
    def running(self) -> bool:
        """Whether there were cases to run."""
        return self._began is not None

    def selected_ids(self, path: Path) -> frozenset[str] | None:
        """The ids of a spec's cases among pytest's arguments, `path::id`; None for all cases."""
        place = path.resolve()
        ids = set()
        for given, name in self._arguments:
            if name and given == place:
                ids.add(name)
            elif not name and (given == place or given in place.parents):
                return None
        return frozenset(ids) or None

    @cached_property
    def _arguments(self) -> list[tuple[Path, str]]:
        """The paths that pytest collects, each with the name of an item or an empty string."""
        folder = self.config.invocation_params.dir
        split = (argument.partition("::") for argument in self.config.args)
        return [((folder / path).resolve(), name) for path, _, name in split]

    def prepare_process(self) -> None:
        """Before PyTorch and TileLang are imported: caches, and one thread for a worker."""
        prepare_caches()
        if self.is_worker and "torch" not in sys.modules and "numpy" not in sys.modules:
            for name in _THREADS:
                os.environ.setdefault(name, "1")

    def end_with_controller(self) -> None:
        """End this worker when its controller ends, also by SIGKILL."""
        node, process = self._input.get("controller", ("", 0))
        if node and node == platform.node():  # else a worker on another machine
            end_with(process)

    def confine_process(self, *, only_cases: bool) -> None:
        """Make only its assigned GPU visible to a worker.

        Without `only_cases` the worker also runs other tests, which may need several GPUs; then
        the GPU is only the current one while a case runs.
        """
        gpu = self._input.get("gpu")
        if not gpu:
            return
        from tlmatrix.backend.gpus import confine_process

        if not only_cases or not confine_process(gpu):
            self._current_gpu = gpu

    @contextmanager
    def on_its_gpu(self) -> Iterator[None]:
        """Make the GPU of this worker the current one, if it sees all of them."""
        if not self._current_gpu:
            yield
            return
        import torch

        from tlmatrix.backend.gpus import visible_gpus

        with torch.cuda.device(visible_gpus(os.environ).index(self._current_gpu)):
            yield

    @property
    def sharers(self) -> int:
        """The number of workers that share the GPU of this worker."""
        return int(self._input.get("sharers", 1))

    def settle(self, path: Path) -> None:
        """After the first case of a spec: garbage collections skip what it imported and traced.

        Only in processes that run nothing but cases. Kernels and modules are 400,000 objects, and
        a tenth of a run was spent looking through them again and again.
        """
        if self.expendable and path not in self._settled:
            self._settled.add(path)
            gc.collect()
            gc.freeze()

    def runner(self) -> Runner:
        """The runner of this process, created for its first case."""
        if self._runner is None:
            from tlmatrix.run.events import Preparing

            if not self.is_worker:
                words = "importing PyTorch and TileLang"
                self.config.hook.pytest_tlmatrix_event(event=Preparing(words))
            with _without_collections():
                self._runner = self._new_runner()
            if not self.is_worker:
                self.config.hook.pytest_tlmatrix_event(event=Preparing("first case"))
        return self._runner

    def _new_runner(self) -> Runner:
        from tlmatrix.run.runner import Runner

        runner = Runner(
            options=self.options,
            roots=(self.config.rootpath,),
            rank_seconds=self._rank_seconds(),
            keep=self._keep(),
            records=self.records(),
            worker=self.worker or "main",
            sources=self.sources,
        )
        runner.prepare()
        return runner

    def _keep(self) -> Keep | None:
        """What to keep of compiled kernels.

        Raises:
            UsageError: the backend compiles no kernels, or there is no such kind of file.
        """
        kinds = self.options[KEEP]
        if not kinds:
            return None
        if self.options[BACKEND] != "compile":
            raise pytest.UsageError("--keep: only the backend compile keeps kernels")
        from tlmatrix.backend.assembly import Keep

        try:
            return Keep.parse(kinds, self.settings.results_path)
        except ValueError as error:
            raise pytest.UsageError(f"--keep: {error}") from error

    @cached_property
    def sources(self) -> SourceWatch:
        """The sources of specs; those that are collected, as they were before their imports."""
        from tlmatrix.run.sources import SourceWatch

        return SourceWatch((self.config.rootpath,), self.settings.sources)

    @cached_property
    def second_pass(self) -> SecondPass:
        """Adds to the first failure of a cause what else is wrong."""
        from tlmatrix.run.second_pass import SecondPass

        return SecondPass()

    @cached_property
    def compute_sanitizer(self) -> ComputeSanitizer | None:
        """The tools of compute-sanitizer that run each case again; None for none.

        Raises:
            UsageError: there is no such tool, or compute-sanitizer is not installed.
        """
        tools = self.options[COMPUTE_SANITIZER]
        if not tools:
            return None
        from tlmatrix.run.compute_sanitizer import ComputeSanitizer, ComputeSanitizerError

        try:
            return ComputeSanitizer.named(tools)
        except ComputeSanitizerError as error:
            raise pytest.UsageError(f"--compute-sanitizer: {error}") from error

    def _rank_seconds(self) -> float:
        """Time limit of one call on several ranks: less than that of a case, to report the call."""
        allowed = own_timeout(self.config) or self.project[TIMEOUT]
        return 0.4 * allowed if allowed else RANK_SECONDS

    def describe(self, result: CaseResult) -> str:
        """The text that pytest prints for a failed case; all findings in full with `-v`."""
        from tlmatrix.report.text import describe_result

        brief = self.config.option.verbose <= 0
        return "\n".join(describe_result(result, width=self.width, brief=brief))

    def begin(self, cases: Mapping[str, Sequence[str]]) -> None:
        """Begin the run of cases, ids by path of the spec: write the header, send `RunStarted`.

        Raises:
            UsageError: the backend is not available, there are more shards than cases, or the
                results file cannot be written.
        """
        if self.running or not (cases or self.shard_plan.name):
            return
        shard, plan = self.settings.shard, self.shard_plan
        if shard is not None and shard.count > max(1, plan.total):
            raise pytest.UsageError(
                f"--shard {shard}: more shards than cases; of {plan.total} cases there are at most "
                f"{plan.total} shards"
            )
        prepare_caches()
        self._require_backend()
        _ = self.compute_sanitizer
        self._keep()
        from tlmatrix.run.events import RunStarted

        self._set_sources(cases)
        self.records().header(self._header)
        self.unrecorded = self.records().error
        if self.unrecorded:
            raise pytest.UsageError(
                f"{self.shown_results}: the results cannot be written: {self.unrecorded}; "
                "another place is --tlmatrix-results PATH (`tlmatrix run --results PATH`)"
            )
        self.records().plan(self.shard_plan.cases if self.shard_plan.name else cases)
        self._began = time.monotonic()
        counts = {path: len(ids) for path, ids in cases.items()}
        self.planned = sum(counts.values())
        earlier = Counter(path for path, _ in self.settings.passed_before)
        self.config.hook.pytest_tlmatrix_event(
            event=RunStarted(
                counts,
                self.shown_results,
                dict(earlier),
                "; ".join(filter(None, [self._shard_words, self.gpus.summary(self.workers)])),
                self._header,
            )
        )

    def _set_sources(self, paths: Iterable[str]) -> None:
        """Set the sources of specs, unless this session continues a run that began with others."""
        found = {Path(path).resolve() for path in paths}
        known = self.settings.sources
        new = {str(path): self.sources.of(path).parts for path in found if str(path) not in known}
        self.settings = replace(self.settings, sources={**new, **known})

    def _require_backend(self) -> None:
        if self.options[BACKEND] == "auto":
            return  # Always available, and the check would import PyTorch.
        from tlmatrix.backend import BackendUnavailableError, backend_named

        try:
            backend_named(self.options[BACKEND])
        except BackendUnavailableError as error:
            raise pytest.UsageError(str(error)) from error

    def report_result(self, result: CaseResult) -> None:
        """Count a result and send `CaseFinished`."""
        from tlmatrix.run.events import CaseFinished

        self._results[result.path, result.case] = result
        self.config.hook.pytest_tlmatrix_event(event=CaseFinished(result))

    def end(self, exit_status: int, stopped: str = "") -> None:
        """End the run: send `RunFinished`, and write the summary unless it was interrupted."""
        if self._began is not None and not self.is_worker:
            from tlmatrix.run.events import RunFinished, Summary

            seconds = round(time.monotonic() - self._began, 3)  # as recorded, for `show`
            records = self.records()
            if records.error or self.worker_error or records.removed:
                records.complete(self._header, self._results.values())
            if not self.interrupted:
                counts = {str(status): count for status, count in self.counts.items()}
                records.summary(Summary(counts, seconds, exit_status))
            self.unrecorded = records.error
            self.config.hook.pytest_tlmatrix_event(
                event=RunFinished(
                    dict(self.counts),
                    seconds,
                    self.interrupted,
                    self.covered,
                    self.options[COVERAGE],
                    stopped or ("their workers ended" if self.missing > 0 else ""),
                    self.unrecorded,
                )
            )

    @cached_property
    def covered(self) -> Coverage | None:
        """The kernel coverage of the recorded cases; None if it was not counted."""
        if self.options[COVERAGE] == "off" or not self.running or self.is_worker:
            return None
        from tlmatrix.run.records import RecordsError, read_records

        try:
            return read_records(self.settings.results_path).coverage() or None
        except (OSError, RecordsError):
            return None

    def close(self) -> None:
        """Close the runner and the results file."""
        if self._runner is not None:
            self._runner.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if not self.is_worker:
            self.groups_file.remove()

    @property
    def nothing_judged(self) -> bool:
        """Whether the interpreter supports no kernel of the run, so that no case was checked."""
        return 0 < self.unsupported == len(self._results)

    @property
    def missing(self) -> int:
        """The number of planned cases without a result."""
        return self.planned - len(self._results)

    @property
    def record_error(self) -> str:
        """The first error of this process in writing to the results file."""
        return self._writer.error if self._writer is not None else ""

    @property
    def shown_results(self) -> str:
        """The path of the results file relative to the working directory."""
        return shown_path(self.settings.results_path)

    def resume_command(self) -> str:
        """The command that continues this run."""
        return resume_command(self.settings.results_path)

    def records(self) -> RecordsWriter:
        """The results file, which the first call creates."""
        if self._writer is None:
            from tlmatrix.run.records import RecordsWriter

            make_folder(self.settings.results_path, self.project)
            self._writer = RecordsWriter(self.settings.results_path)
        return self._writer

    @property
    def _shard_words(self) -> str:
        shard, plan = self.settings.shard, self.shard_plan
        if shard is None:
            return ""
        words = f"shard {shard} of the plan {plan.name}"
        if plan.cases:
            return words
        return f"{words} is empty: {plan.groups} groups of cases that share kernels"

    @cached_property
    def _header(self) -> RunHeader:
        from tlmatrix.run.events import RunHeader

        return RunHeader(
            tier=self.options[TIER],
            backend=self.options[BACKEND],
            seed=self.options[SEED],
            architectures=tuple(self.options[ARCH]),
            select=self.select,
            fuzz=not self.options[NO_FUZZ],
            paths=tuple(str(arg) for arg in self.config.args),
            command=shlex.join(self.words),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            folder=str(Path.cwd()),
            versions=versions(*PACKAGES),
            shard=str(self.settings.shard or ""),
            plan=self.shard_plan.name,
            times=self.settings.times,
            sources={shown_path(Path(each)): p for each, p in self.settings.sources.items()},
        )


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause garbage collection: imports keep what they create."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
