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
from tlmatrix.engine.settings import architectures
from tlmatrix.environments import InstallError, import_error, python_with
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.options.table import TIER
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
    given = architectures(arguments.arch, "compile") or ()
    archs = [word for arch in given for word in ("--arch", arch)]
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
    words += ["-n", arguments.processes]
    pythons = [_python(release, console) for release in releases]
    sides = [Side(release, error) for release, (_, error) in zip(releases, pythons, strict=True)]
    for place, (python, _) in enumerate(pythons if not any(e for _, e in pythons) else ()):
        job = _Job(python, folder / ("old", "new")[place], words, archs)
        for backend in backends:
            log = shown_path(job.file(f"{backend}.log"))
            show(console, f"TileLang {releases[place]}, {backend}: {log}")
            job.run(backend)
        sides[place] = Side(releases[place], "", job.runs, job.failed)
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


def _python(release: str, console: Console) -> tuple[Path, str]:
    """The Python with a release, and why it cannot import it.

    Raises:
        UsageError: the release cannot be installed.
    """
    try:
        python = python_with(release, lambda: show(console, f"installing TileLang {release}"))
    except (InstallError, OSError) as error:
        raise UsageError(f"TileLang {release} cannot be installed: {error}") from error
    return python, "" if python == Path(sys.executable) else import_error(python, release)


@dataclass
class _Job:
    """The runs under one release; `base` begins the names of their files."""

    python: Path
    base: Path
    words: Sequence[str]
    archs: Sequence[str]
    runs: dict[str, RunRecords] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self, backend: str) -> None:
        """Run or continue the cases on a backend; on a GPU, time the bench cases of their specs."""
        results, times = self.file(f"{backend}.jsonl"), self.file("bench.json")
        words = ["run", *self.words, "--backend", backend, "-q"]
        words += self.archs if backend in ("compile", "interpreter") else []
        words += ["--resume" if results.is_file() else "--results", str(results)]
        self._start(words, log := self.file(f"{backend}.log"))
        try:
            self.runs[backend] = read_records(results)
        except (OSError, RecordsError):
            self.failed[backend] = log.read_text(errors="replace").splitlines()[-1]
            return
        if backend == _GPU and not times.is_file():
            paths = dict.fromkeys(each.path for each in self.runs[backend].results)
            self._start(["bench", *paths, "--output", str(times)], self.file("bench.log"))

    def file(self, name: str) -> Path:
        """A file of these runs."""
        return self.base.with_name(f"{self.base.name}-{name}")

    def _start(self, words: Sequence[str], log: Path) -> None:
        """Run a command of tlmatrix, which writes to a log."""
        command = [str(self.python), "-m", "tlmatrix", *words]
        log.write_text(f"$ {shlex.join(command)}\n")
        with log.open("a") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)  # noqa: S603 - this project
            try:
                code = process.wait()
            except KeyboardInterrupt:  # which the process got, too
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_SECONDS)
                process.kill()
                raise
        if code == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt


def _times(folder: Path, console: Console) -> ExitCode:
    """Print what `tlmatrix bench` says of the times of the bench cases; 1 if one is slower."""
    files = [folder / f"{place}-bench.json" for place in ("new", "old")]
    if not all(file.is_file() for file in files):
        return ExitCode.OK  # no spec has bench cases
    command = [sys.executable, "-m", "tlmatrix", "bench", "--from", str(files[0])]
    command += ["--against", str(files[1])]
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
