"""What the plugin knows during a pytest session: settings, the results file, the runner.

One `State` a process. In a worker of pytest-xdist it runs cases and appends their records; in
the controller, or without workers, it also begins and ends the file and tells listeners.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.plugin.settings import Settings, settings_of
from tlmatrix.plugin.sharing import Sharing
from tlmatrix.plugin.shrinking import Shrinking
from tlmatrix.results_file import make_folder, resume_command, shown_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.backend.gpus import GpuAssignment
    from tlmatrix.config import Config
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.events import RunHeader
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult, Status
    from tlmatrix.run.runner import Runner

__all__ = ["State", "close_state", "set_state", "state_of"]

RANK_SECONDS = 120.0
"""How long the ranks of a case may take for a call, where the case itself may take longer."""

_KEY = pytest.StashKey["State"]()
_WIDEST = 120
"""Lines of prose longer than this are hard to read on any terminal."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def state_of(config: pytest.Config) -> State:
    """The state of this session."""
    return config.stash[_KEY]


def set_state(config: pytest.Config, project: Config) -> State:
    """Begin the session's state; nothing is written before a case is known to run."""
    config.stash[_KEY] = State(config, project)
    return config.stash[_KEY]


def close_state(config: pytest.Config) -> None:
    """End it, where it was begun."""
    state = config.stash.get(_KEY, None)
    if state is not None:
        state.close()


class State:
    """Settings and results of one session."""

    def __init__(self, config: pytest.Config, project: Config) -> None:
        self.config = config
        self.project = project
        self.interrupted = False
        self.select: str = config.option.keyword
        """The expression of `-k` as the user wrote it."""
        self.counts: Counter[Status] = Counter()
        self.refused = 0
        """Cases that were skipped because the interpreter does not model their kernels."""
        self.shrinking = Shrinking()
        self._began: float | None = None
        self._writer: RecordsWriter | None = None
        self._runner: Runner | None = None
        self._sent: Mapping[str, Any] = {}
        """What the controller told this worker; empty in the controller itself."""
        self.worker = ""
        worker: Mapping[str, Any] | None = getattr(config, "workerinput", None)
        if worker is None:
            self.settings = settings_of(config, project)
        else:
            self.worker = worker["workerid"]
            self._sent = worker["tlmatrix"]
            self.settings = Settings.from_plain(self._sent["settings"])
        self.sharing = Sharing(self._sent.get("groups", ""))
        self.expendable = self.is_worker
        """Whether another process goes on with the run if a case ends this one."""

    @cached_property
    def width(self) -> int:
        """Columns for prose; a worker has no terminal and is told."""
        if self.is_worker:
            return int(self._sent["width"])
        return min(self.config.get_terminal_writer().fullwidth, _WIDEST)

    @cached_property
    def gpus(self) -> GpuAssignment:
        """The GPUs of this machine among the workers; none where kernels run elsewhere."""
        from tlmatrix.backend.gpus import assignment_for

        return assignment_for(self.settings.backend)

    @property
    def workers(self) -> int:
        """How many workers the user asked for."""
        return int(getattr(self.config.option, "numprocesses", None) or 0)

    def for_worker(self, worker: str) -> dict[str, Any]:
        """What a worker of pytest-xdist is told, in plain data."""
        return {
            "tlmatrix": {
                "settings": self.settings.plain(),
                "gpu": self.gpus.assign(worker),
                "groups": self.sharing.file,
                "width": self.width,
            }
        }

    @property
    def fuzzes(self) -> bool:
        """Whether the drawn cases of the tier run, too: for `compile`, lengths change nothing."""
        wanted = not self.config.option.tlmatrix_no_fuzz and not self.config.option.tlmatrix_only
        return wanted and self.settings.backend != "compile"

    @property
    def is_worker(self) -> bool:
        """Whether this process only runs cases, for a controller that reports them."""
        return bool(self.worker)

    @property
    def running(self) -> bool:
        """Whether there were cases to run."""
        return self._began is not None

    def named(self, path: Path) -> frozenset[str] | None:
        """The ids that arguments of pytest name of a spec, `path::id`; None for all its cases."""
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
        """What pytest was asked to collect: paths, each with the name of an item in it, or none."""
        folder = self.config.invocation_params.dir
        split = (argument.partition("::") for argument in self.config.args)
        return [((folder / path).resolve(), name) for path, _, name in split]

    def prepare_process(self) -> None:
        """Before the first import of PyTorch in a worker: one thread each, for all of them."""
        if self.is_worker and "torch" not in sys.modules and "numpy" not in sys.modules:
            for name in _THREADS:
                os.environ.setdefault(name, "1")

    def confine_process(self) -> None:
        """Leave a worker one GPU."""
        if gpu := self._sent.get("gpu"):
            from tlmatrix.backend.gpus import confine_process

            confine_process(gpu)

    def runner(self) -> Runner:
        """What runs the cases of this process; made when the first one runs."""
        if self._runner is None:
            from tlmatrix.run.events import Preparing

            if not self.is_worker:
                words = "importing PyTorch and TileLang"
                self.config.hook.pytest_tlmatrix_event(event=Preparing(words))
            from tlmatrix.run.runner import Runner

            self._runner = Runner(
                self.settings.backend,
                architectures=self.settings.architectures,
                seed=self.settings.seed,
                roots=(self.config.rootpath,),
                coverage=self.settings.coverage != "off",
                rank_seconds=self._rank_seconds(),
                strict=self.settings.unsupported == "fail",
                keep_going=self.settings.keep_going,
                records=self._records(),
                worker=self.worker or "main",
            )
            self._runner.prepare()
            if not self.is_worker:
                self.config.hook.pytest_tlmatrix_event(event=Preparing("first case"))
        return self._runner

    def _rank_seconds(self) -> float:
        """Ranks that hang are to be told before their case runs out of time."""
        own = self.config.getoption("timeout", None) or self.config.getini("timeout")
        allowed = float(own or self.project.timeout or 0)
        return 0.4 * allowed if allowed else RANK_SECONDS

    def describe(self, result: CaseResult) -> str:
        """A case as pytest prints it: the first finding, and of others the title; `-v` for all."""
        from tlmatrix.report.text import describe_result

        brief = self.config.option.verbose <= 0
        return "\n".join(describe_result(result, width=self.width, brief=brief))

    def begin(self, cases: Mapping[str, int]) -> None:
        """Cases are about to run: write the header, tell listeners.

        Raises:
            UsageError: the backend that was asked for cannot run here.
        """
        if self.running or not cases:
            return
        self._refuse_missing_backend()
        from tlmatrix.run.events import RunStarted

        self._began = time.monotonic()
        self._records().header(self._header())
        earlier = Counter(path for path, _ in self.settings.passed_before)
        self.config.hook.pytest_tlmatrix_event(
            event=RunStarted(
                dict(cases), self.shown_results, dict(earlier), self.gpus.summary(self.workers)
            )
        )

    def _refuse_missing_backend(self) -> None:
        if self.settings.backend == "auto":
            return  # Takes what there is; no need to import PyTorch to ask.
        from tlmatrix.backend import BackendUnavailableError, backend_named

        try:
            backend_named(self.settings.backend)
        except BackendUnavailableError as error:
            raise pytest.UsageError(str(error)) from error

    def finished(self, result: CaseResult) -> None:
        """A result reached the process that reports."""
        from tlmatrix.run.events import CaseFinished
        from tlmatrix.run.result import SkipReason

        self.counts[result.status] += 1
        self.refused += result.reason is SkipReason.UNSUPPORTED
        self.config.hook.pytest_tlmatrix_event(event=CaseFinished(result))

    def end(self, exit_status: int) -> None:
        """Nothing more will run; a run that was interrupted gets no summary."""
        if self._began is not None and not self.is_worker:
            from tlmatrix.run.events import RunFinished, Summary

            seconds = time.monotonic() - self._began
            if not self.interrupted:
                counts = {str(status): count for status, count in self.counts.items()}
                self._records().summary(Summary(counts, round(seconds, 3), exit_status))
            self.config.hook.pytest_tlmatrix_event(
                event=RunFinished(
                    dict(self.counts),
                    seconds,
                    self.interrupted,
                    self.covered,
                    self.settings.coverage,
                )
            )

    @cached_property
    def covered(self) -> Coverage | None:
        """What the cases on record exercised of their kernels; None if nothing was counted."""
        if self.settings.coverage == "off" or not self.running or self.is_worker:
            return None
        from tlmatrix.run.records import read_records

        return read_records(self.settings.results_path).coverage() or None

    def close(self) -> None:
        """Let go of the results file."""
        if self._runner is not None:
            self._runner.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if not self.is_worker:
            self.sharing.remove()

    @property
    def nothing_judged(self) -> bool:
        """Whether the interpreter refused every kernel: no case says anything."""
        return 0 < self.refused == self.counts.total()

    @property
    def shown_results(self) -> str:
        """The results file as one would write it in the working directory."""
        return shown_path(self.settings.results_path)

    def resume_command(self) -> str:
        """What goes on where this run stopped."""
        return resume_command(self.settings.results_path)

    def _records(self) -> RecordsWriter:
        if self._writer is None:
            from tlmatrix.run.records import RecordsWriter

            make_folder(self.settings.results_path, self.project)
            self._writer = RecordsWriter(self.settings.results_path)
        return self._writer

    def _header(self) -> RunHeader:
        from tlmatrix.run.events import RunHeader

        return RunHeader(
            tier=self.settings.tier,
            backend=self.settings.backend,
            seed=self.settings.seed,
            architectures=self.settings.architectures,
            select=self.select,
            fuzz=not self.config.option.tlmatrix_no_fuzz,
            paths=tuple(str(arg) for arg in self.config.args),
            command=shlex.join(
                ["pytest", *(str(arg) for arg in self.config.invocation_params.args)]
            ),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            folder=str(Path.cwd()),
            versions=_versions(),
        )


def _versions() -> dict[str, str]:
    found = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in ("tlmatrix", "tilelang", "torch", "numpy", "pytest"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
