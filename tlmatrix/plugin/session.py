"""A pytest session that runs cases: its run, and the runner of this process.

A worker of pytest-xdist runs cases and appends their records. The controller, or the only process
of a session without workers, also writes the header and the summary of the results file.
"""

from __future__ import annotations

import os
import pickle
import platform
import re
import shlex
import sys
import tempfile
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.cache_files import prepare_caches
from tlmatrix.engine.run import Run
from tlmatrix.engine.settings import RunSettings
from tlmatrix.exit_codes import OutputError, UsageError
from tlmatrix.options.table import BACKEND, PERTURB, SEED, TIMEOUT, plugin_options
from tlmatrix.processes import end_with
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.backend.gpus import GpuAssignment
    from tlmatrix.config import Config
    from tlmatrix.engine.selection import ShardPlan
    from tlmatrix.engine.worker import CaseJudge
    from tlmatrix.run.result import CaseResult, Status
    from tlmatrix.run.sources import SourceWatch

NODE = re.compile(r"(?P<path>(?:(?!::).)*\.ya?ml)::(?P<case>.*)")
"""The node id of a case; ids of other tests may have `.yaml::` in a parameter."""
_KEY = pytest.StashKey["Session"]()
_MAX_WIDTH = 120
"""Most columns of text: longer lines are hard to read."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def session_of(config: pytest.Config) -> Session:
    """The session's part of tlmatrix."""
    return config.stash[_KEY]


def create_session(config: pytest.Config, project: Config) -> Session:
    """Create the session's part of tlmatrix; it writes nothing before the run begins."""
    with _usage_errors():
        config.stash[_KEY] = Session(config, project)
    return config.stash[_KEY]


def close_session(config: pytest.Config) -> None:
    """Close the runner and the results file, if there are any."""
    session = config.stash.get(_KEY, None)
    if session is not None:
        session.close()


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn errors of options and outputs into those of pytest."""
    try:
        yield
    except (UsageError, OutputError) as error:
        raise pytest.UsageError(str(error)) from error


def own_timeout(config: pytest.Config) -> float:
    """The seconds of a test by pytest-timeout's options; 0 without, or with `-p no:timeout`."""
    if not hasattr(config.option, "timeout"):
        return 0.0
    return float(config.option.timeout or config.getini("timeout") or 0)


class Session:
    """The settings and the run of one session.

    Attributes:
        config: pytest's configuration.
        settings: those of the run, the same in the controller and in every worker.
        run: the run; a worker only writes its records.
        worker: the id of this worker; empty in the controller.
        shard_plan: the plan of which this session runs a shard.
        interrupted: why the session was interrupted, such as `Ctrl-C`.
    """

    def __init__(self, config: pytest.Config, project: Config) -> None:
        self.config = config
        self.project = project
        self.interrupted = ""
        self.shard_plan: ShardPlan | None = None
        self._current_gpu = ""
        sent: Mapping[str, Any] | None = getattr(config, "workerinput", None)
        self.worker: str = sent["workerid"] if sent is not None else ""
        self._input: dict[str, Any] = pickle.loads(sent["tlmatrix"]) if sent is not None else {}  # noqa: S301 - from the controller
        self.settings: RunSettings = self._input.get("settings") or self._own_settings()
        self.run = Run(
            self.settings,
            project,
            paths=[str(argument) for argument in config.args],
            command=shlex.join(["pytest", *map(str, config.invocation_params.args)]),
            select=config.option.keyword,
            roots=(config.rootpath,),
        )

    def _own_settings(self) -> RunSettings:
        if (seconds := own_timeout(self.config)) not in TIMEOUT.kind:
            raise UsageError(f"--timeout {seconds:g}: must be {TIMEOUT.kind}")
        option = self.config.option
        given = {each.name: getattr(option, f"tlmatrix_{each.name}") for each in plugin_options()}
        given[TIMEOUT.name] = own_timeout(self.config) or None
        return RunSettings.of(given, self.project, self.config.rootpath)

    @cached_property
    def width(self) -> int:
        """Columns of text; a worker has no terminal and uses those of the controller."""
        if self.worker:
            return int(self._input["width"])
        return min(self.config.get_terminal_writer().fullwidth, _MAX_WIDTH)

    @cached_property
    def gpus(self) -> GpuAssignment:
        """Assigns GPUs to workers; without GPUs if the backend uses none."""
        from tlmatrix.backend.gpus import assignment_for

        return assignment_for(self.settings.options[BACKEND])

    @property
    def workers(self) -> int:
        """The number of workers of `-n`."""
        return int(getattr(self.config.option, "numprocesses", None) or 0)

    def worker_input(self, worker: str) -> bytes:
        """What a worker of pytest-xdist gets."""
        if self.settings.shard is not None and not self._plan_file:
            self._plan_file = Path(tempfile.mkdtemp(prefix="tlmatrix-")) / "plan"
        return pickle.dumps(
            {
                "settings": self.settings,
                "gpu": self.gpus.assign(worker),
                "sharers": self.gpus.sharers(self.workers),
                "width": self.width,
                "plan": self._plan_file,
                "controller": (platform.node(), os.getpid()),
            }
        )

    _plan_file: Path | None = None

    def end_with_controller(self) -> None:
        """End this worker when its controller ends, also by SIGKILL."""
        node, process = self._input.get("controller", ("", 0))
        if node and node == platform.node():  # else a worker on another machine
            end_with(process)

    def prepare_process(self) -> None:
        """Before PyTorch and TileLang are imported: caches, and one thread for a worker."""
        prepare_caches()
        if self.worker and "torch" not in sys.modules and "numpy" not in sys.modules:
            for name in _THREADS:
                os.environ.setdefault(name, "1")

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

    def selected_ids(self, path: Path) -> list[str]:
        """The ids of a spec's cases among pytest's arguments, `path::id`; none for all cases."""
        place = path.resolve()
        ids = set()
        for given, name in self._arguments:
            if name and given == place:
                ids.add(name)
            elif not name and (given == place or given in place.parents):
                return []
        return sorted(ids)

    @cached_property
    def _arguments(self) -> list[tuple[Path, str]]:
        """The paths that pytest collects, each with the name of an item or an empty string."""
        folder = self.config.invocation_params.dir
        split = (argument.partition("::") for argument in self.config.args)
        return [((folder / path).resolve(), name) for path, _, name in split]

    @cached_property
    def judge(self) -> CaseJudge:
        """Runs the cases of this process; created for its first case."""
        from tlmatrix.engine.worker import CaseJudge, rank_seconds
        from tlmatrix.run.runner import Runner

        runner = Runner(
            options=self.settings.options,
            roots=(self.config.rootpath,),
            rank_seconds=rank_seconds(self.settings.timeout),
            keep=self.settings.keep,
            records=self.run.records,
            worker=self.worker or "main",
            sources=self.sources,
        )
        runner.prepare()
        if (sharers := self._input.get("sharers", 1)) > 1:
            runner.backend.limit_memory(sharers)
        return CaseJudge(runner, self.settings.compute_sanitizer)

    @cached_property
    def sources(self) -> SourceWatch:
        """The sources of specs as they were when this process collected them."""
        from tlmatrix.run.sources import SourceWatch

        return SourceWatch((self.config.rootpath,))

    def describe(self, result: CaseResult) -> str:
        """The text that pytest prints for a failed case; all findings in full with `-v`."""
        from tlmatrix.report.text import describe_result

        brief = self.config.option.verbose <= 0
        return "\n".join(describe_result(result, width=self.width, brief=brief))

    def collected_by_worker(self) -> None:
        """Give the controller the plan of which the collected cases are a shard."""
        file = self._input["plan"]
        if file is not None and self.shard_plan is not None:
            draft = file.with_suffix(f".{self.worker}")
            draft.write_bytes(pickle.dumps(self.shard_plan))
            draft.replace(file)

    def begin(self, cases: Mapping[str, Sequence[str]]) -> None:
        """Begin the run of cases, ids by path of the spec, in the controller.

        Raises:
            UsageError: the backend is not available, or the results file cannot be written.
        """
        if self._plan_file is not None and self._plan_file.exists():
            self.shard_plan = pickle.loads(self._plan_file.read_bytes())  # noqa: S301 - from a worker
        if self.run.began or not (cases or self.shard_plan):
            return
        prepare_caches()
        with _usage_errors():
            self.settings.require()
            self.run.begin(cases, self.shard_plan)

    def record_lost(self, path: str, case_id: str) -> CaseResult:
        """The result of a case whose process ended: the recorded one, or else a new one.

        The process may have recorded a timeout or a GPU fault before it ended.
        """
        from tlmatrix.run.records import RecordsError, read_records
        from tlmatrix.run.result import Status, crash_finding

        with suppress(OSError, RecordsError):
            for result in read_records(self.settings.results).results:
                # A result without a key is only a record that the case began.
                if (result.path, result.case) == (path, case_id) and result.key:
                    return result
        return self._recorded(path, case_id, Status.CRASHED, findings=(crash_finding(),))

    def record_unjudged(self, path: str, case_id: str, report: pytest.TestReport) -> CaseResult:
        """Record a case that pytest did not run: it was skipped, or a fixture or hook failed."""
        from tlmatrix.check.finding import Finding
        from tlmatrix.run.result import SkipReason, Status

        if report.skipped:
            longrepr = report.longrepr
            words = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
            message = words.removeprefix("Skipped: ")
            reason = SkipReason.PYTEST
            return self._recorded(path, case_id, Status.SKIPPED, reason=reason, message=message)
        crash = getattr(report.longrepr, "reprcrash", None)
        words = crash.message if crash is not None else report.longreprtext
        last = (words.strip().splitlines() or [""])[0]
        finding = Finding(
            check="internal",
            title=f"pytest could not run the case, in its {report.when}: {last}",
            hint="an error of a fixture or plugin, or of tlmatrix itself",
            detail=report.longreprtext,
            pattern=last,
        )
        return self._recorded(path, case_id, Status.ERROR, findings=(finding,))

    def _recorded(self, path: str, case_id: str, status: Status, **facts: Any) -> CaseResult:  # noqa: ANN401 - fields
        from tlmatrix.matrix import find_case
        from tlmatrix.run.result import CaseResult
        from tlmatrix.spec.loader import load_spec

        options = self.settings.options
        run = {"requested": options[BACKEND], "seed": options[SEED], "perturb": options[PERTURB]}
        result = CaseResult.of(find_case(load_spec(path), case_id), path, status, **facts, **run)
        self.run.records.case(result)
        return result

    def shown(self, node: re.Match[str]) -> str:
        """The path of the spec of a node id as results have it."""
        return shown_path(self.config.rootpath / node["path"])

    def close(self) -> None:
        """Close the runner and the results file."""
        if "judge" in self.__dict__:
            self.judge.runner.close()
        self.run.close()
        if self._plan_file is not None:
            import shutil

            shutil.rmtree(self._plan_file.parent, ignore_errors=True)
