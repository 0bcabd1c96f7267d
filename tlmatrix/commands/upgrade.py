"""`tlmatrix upgrade`: the same cases under two TileLang releases, and what changes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from tlmatrix.backend.gpus import all_visible_gpus
from tlmatrix.commands.run import words_of
from tlmatrix.commands.screen import console_on, show
from tlmatrix.commands.specs import nodes_of, plan_all, selector_of
from tlmatrix.environments import InstallError, import_error, python_with
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.options.table import ARCH, TIER
from tlmatrix.report.upgrade import Side, Upgrade, kernel_table, summary_table, upgrade_lines
from tlmatrix.results_file import make_folder, shown_path
from tlmatrix.run.records import RecordsError, read_records

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from tlmatrix.config import Config
    from tlmatrix.run.records import RunRecords

_GPU = "cuda"
_SECONDS = 30
"""Time that a run gets to end after Ctrl-C."""


def upgrade(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Run cases under two releases and print what changes.

    Raises:
        UsageError: the arguments are invalid, or a release cannot be installed.
        SpecError: a spec is invalid; nothing has run.
    """
    releases = _releases(arguments.releases)
    nodes = nodes_of(arguments.paths, config)
    options = config.options.updated(vars(arguments))
    plan_all(nodes, options[TIER], roots=[config.root])
    selector_of(arguments.select)
    words = [*words_of(nodes), "--tier", options[TIER], "--no-fuzz", "--no-coverage"]
    words += ["-k", arguments.select] if arguments.select else []
    archs = [word for arch in options[ARCH] or () for word in ("--arch", arch)]
    backends = list(dict.fromkeys(arguments.backend)) or ["compile", "interpreter"]
    if not arguments.backend and all_visible_gpus():
        backends.append(_GPU)
    # Another selection of cases has results of its own.
    selection = sha256(json.dumps([words, archs]).encode()).hexdigest()[:8]
    folder = Path(arguments.results or config.results).resolve()
    folder /= f"upgrade-{'-'.join(releases)}-{selection}"
    make_folder(folder, config)
    folder.mkdir(parents=True, exist_ok=True)
    console = console_on(sys.stderr if arguments.json else sys.stdout, 80)
    sides = []
    for place, release in zip(("old", "new"), releases, strict=True):
        job = _Job(release, folder / place, words, archs, arguments.workers, console)
        sides.append(job.run(backends))
    found = Upgrade(*sides)
    _print(found, console, folder, all_changes=arguments.all)
    code = ExitCode.FINDINGS if found.worse else ExitCode.OK
    if _GPU in found.compared:
        code = max(code, _times(folder, console))
    if arguments.json:
        print(json.dumps(found.to_json(), indent=1))
    return code


def _releases(text: str) -> tuple[str, str]:
    """The releases of `OLD..NEW`.

    Raises:
        UsageError: it is not that.
    """
    old, mark, new = text.partition("..")
    try:
        found = [str(Version(each or version("tilelang"))) for each in (old, new)]
    except InvalidVersion:
        mark = ""
    if not mark:
        raise UsageError(f"upgrade {text}: write OLD..NEW, two releases, such as 0.1.14..0.1.15")
    return found[0], found[1]


@dataclass
class _Job:
    """The runs under one release; `base` begins the names of their files."""

    release: str
    base: Path
    words: Sequence[str]
    archs: Sequence[str]
    workers: str
    console: Console
    _runs: dict[str, RunRecords] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)

    def run(self, backends: Sequence[str]) -> Side:
        """Run the cases on each backend.

        Raises:
            UsageError: the release cannot be installed.
        """
        show(self.console, f"TileLang {self.release}")
        try:
            python = python_with(self.release)
        except (InstallError, OSError) as error:
            raise UsageError(f"TileLang {self.release} cannot be installed: {error}") from error
        if python != Path(sys.executable) and (reason := import_error(python, self.release)):
            return Side(self.release, reason)
        for backend in backends:
            self._run(python, backend)
        return Side(self.release, "", self._runs, self._failed)

    def _run(self, python: Path, backend: str) -> None:
        results = self._file(backend, "jsonl")
        log = self._file(backend, "log")
        again = results.is_file()
        words = ["run", *self.words, "--backend", backend, "-n", self.workers, "-q"]
        words += [] if backend == _GPU else self.archs
        words += ["--resume" if again else "--results", str(results)]
        about = "continuing" if again else "running"
        show(self.console, f"  {backend}: {about}; its output is in {shown_path(log)}")
        code = _start([str(python), "-m", "tlmatrix", *words], log)
        if code == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        try:
            self._runs[backend] = read_records(results)
        except (OSError, RecordsError):
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            self._failed[backend] = lines[-1] if lines else f"exit code {code}"
            return
        if backend == _GPU and not (times := self._file("bench", "json")).is_file():
            paths = dict.fromkeys(each.path for each in self._runs[backend].results)
            words = ["bench", *paths, "--output", str(times)]
            _start([str(python), "-m", "tlmatrix", *words], self._file("bench", "log"))

    def _file(self, name: str, ending: str) -> Path:
        return self.base.with_name(f"{self.base.name}-{name}.{ending}")


def _start(command: Sequence[str], log: Path) -> int:
    """Run a command, which writes to a log; its exit code."""
    with log.open("w", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)  # noqa: S603 - this project
        try:
            return process.wait()
        except KeyboardInterrupt:  # which the process got, too
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS)
            process.kill()
            raise


def _times(folder: Path, console: Console) -> ExitCode:
    """Print what `tlmatrix bench` says of the times of the bench cases; 1 if one is slower."""
    files = [folder / f"{place}-bench.json" for place in ("new", "old")]
    if not all(file.is_file() for file in files):
        return ExitCode.OK  # no spec has bench cases
    words = ["bench", "--from", str(files[0]), "--against", str(files[1])]
    command = [sys.executable, "-m", "tlmatrix", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this project
    show(console, f"\n{done.stdout or done.stderr}")
    return ExitCode.FINDINGS if done.returncode else ExitCode.OK


def _print(found: Upgrade, console: Console, folder: Path, *, all_changes: bool) -> None:
    for table in (summary_table(found), kernel_table(found)):
        if table is not None:
            console.print()
            console.print(table)
    console.print()
    for line in upgrade_lines(found, sys.maxsize if all_changes else 20):
        show(console, line)
    show(console, f"results: {shown_path(folder)}")
