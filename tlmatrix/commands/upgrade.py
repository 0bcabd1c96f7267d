"""`tlmatrix upgrade`: the same cases under two TileLang releases, and what changes."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
import venv
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from tlmatrix.backend.gpus import all_visible_gpus
from tlmatrix.cache_files import cache_folder, locked, make_private, write_file
from tlmatrix.commands.run import words_of
from tlmatrix.commands.screen import console_on, show
from tlmatrix.commands.specs import nodes_of, plan_all, selector_of
from tlmatrix.engine.settings import architectures
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.options.table import TIER
from tlmatrix.report.compare import Side, Upgrade, kernel_table, summary_table, upgrade_lines
from tlmatrix.results_file import make_folder, shown_path
from tlmatrix.run.records import RecordsError, read_records

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from tlmatrix.config import Config
    from tlmatrix.run.records import RunRecords

    Install = Callable[[Path, str], None]

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
    jobs = [
        _Job(release, python, folder / place, words, archs)
        for release, (python, _), place in zip(releases, pythons, ("old", "new"), strict=True)
        if not any(error for _, error in pythons)
    ]
    for place, job in enumerate(jobs):
        for backend in backends:
            job.run(backend, console)
        sides[place] = Side(job.release, "", job.runs, job.failed)
    found = Upgrade(*sides)
    _print(found, console, folder, all_changes=arguments.all)
    code = ExitCode.FINDINGS if found.worse else ExitCode.OK
    if _GPU in found.compared:
        for job in jobs:
            job.time(console)
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
        found = [str(Version(each or metadata.version("tilelang"))) for each in (old, new)]
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

    release: str
    python: Path
    base: Path
    words: Sequence[str]
    archs: Sequence[str]
    runs: dict[str, RunRecords] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self, backend: str, console: Console) -> None:
        """Run or continue the cases on a backend."""
        results = self.file(f"{backend}.jsonl")
        words = ["run", *self.words, "--backend", backend, "-q"]
        words += self.archs if backend in ("compile", "interpreter") else []
        words += ["--resume" if results.is_file() else "--results", str(results)]
        self._start(words, log := self.file(f"{backend}.log"), console, backend)
        try:
            self.runs[backend] = read_records(results)
        except (OSError, RecordsError):
            self.failed[backend] = log.read_text(errors="replace").splitlines()[-1]

    def time(self, console: Console) -> None:
        """Time the bench cases of the specs that ran on a GPU, unless all of them were timed."""
        times, unfinished = self.file("bench.json"), self.file("bench-unfinished.json")
        if not times.is_file():
            paths = dict.fromkeys(each.path for each in self.runs[_GPU].results)
            words = ["bench", *paths, "--output", str(unfinished)]
            self._start(words, self.file("bench.log"), console, "times")
            if unfinished.is_file():  # no spec may have bench cases
                unfinished.rename(times)

    def file(self, name: str) -> Path:
        """A file of these runs."""
        return self.base.with_name(f"{self.base.name}-{name}")

    def _start(self, words: Sequence[str], log: Path, console: Console, what: str) -> None:
        """Run a command of tlmatrix, which writes to a log."""
        show(console, f"TileLang {self.release}, {what}: {shown_path(log)}")
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


# Python environments with a TileLang release each, kept in the user's cache -----------------------

_COMPLETE = "complete"
"""The file that is written when an environment is complete."""
_NATIVE = ("apache-tvm-ffi", "z3-solver")
"""Libraries that TileLang's binaries load: each environment has its own."""
_LEAST = (">=", "~=", "==")
_ABI = "apache-tvm-ffi"
"""The one whose ABI changes inside the range that old releases accept."""


class InstallError(Exception):
    """A release cannot be installed; the message is the installer's."""


def environments_folder() -> Path:
    """The folder of all environments."""
    return cache_folder() / "environments"


def python_with(
    release: str, starting: Callable[[], None] | None = None, install: Install | None = None
) -> Path:
    """The Python that has a TileLang release: this one, or that of an environment.

    An environment has the packages of this Python except TileLang and the libraries that its
    binaries load. It is made on first use, by one process; one that was not completed is made anew.

    Args:
        release: such as `0.1.14`.
        starting: called before an environment is made, which takes seconds.
        install: installs the release for a Python; by default with pip or uv.

    Raises:
        InstallError: the release cannot be installed.
        OSError: the cache cannot be written.
    """
    if release == metadata.version("tilelang"):
        return Path(sys.executable)
    of = sha256("\n".join([sys.version, *_site_folders()]).encode()).hexdigest()[:8]
    folder = environments_folder() / f"tilelang-{release}-{of}"
    python = folder / "bin" / "python"
    make_private(folder.parent)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / _COMPLETE).is_file():
            if starting is not None:
                starting()
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, symlinks=True)
            lines = [f"import site; site.addsitedir({each!r})" for each in _site_folders()]
            (_packages(folder) / "parent.pth").write_text("\n".join(lines), encoding="utf-8")
            (install or _install)(python, release)
            write_file(folder / _COMPLETE, b"")
    return python


def import_error(python: Path, release: str) -> str:
    """Why a Python cannot import a TileLang release; "" if it can."""
    code = "import tilelang; print(tilelang.__version__, tilelang.__file__)"
    done = subprocess.run(  # noqa: S603 - an environment of this module
        [python, "-c", code], capture_output=True, text=True, check=False
    )
    last = (done.stdout if not done.returncode else done.stderr or "it crashed").strip()
    last = last.splitlines()[-1]
    if done.returncode:
        return last
    found, _, file = last.partition(" ")
    return "" if found.partition("+")[0] == release else f"{file} is imported, which is {found}"


def _site_folders() -> list[str]:
    """The folders of installed packages of this Python."""
    names = ("site-packages", "dist-packages")
    return [each for each in sys.path if each.endswith(names)]


def _packages(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def _install(python: Path, release: str) -> None:
    """Install a release, and what it requires of other packages than this Python has."""
    _run_installer(python, [f"tilelang=={release}"])
    installed = metadata.distributions(name="tilelang", path=[str(_packages(python.parents[1]))])
    needed = list(_needed(next(iter(installed)).requires or []))
    _run_installer(python, [str(each) for each in needed])
    if (lowest := _lowest(needed)) and import_error(python, release):
        _run_installer(python, [f"{_ABI}=={lowest}"])


def _needed(lines: Sequence[str]) -> Iterator[Requirement]:
    """The requirements to install: of native libraries, and those that this Python lacks."""
    for each in map(Requirement, lines):
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        try:
            has = metadata.version(each.name) in each.specifier
        except metadata.PackageNotFoundError:
            has = False
        if not has or each.name in _NATIVE:
            yield each


def _lowest(requirements: Sequence[Requirement]) -> Version | None:
    """The lowest version of apache-tvm-ffi that is accepted; None without a lower bound."""
    bounds = [bound for each in requirements if each.name == _ABI for bound in each.specifier]
    versions = [Version(each.version) for each in bounds if each.operator in _LEAST]
    return max(versions, default=None)


def _run_installer(python: Path, requirements: Sequence[str]) -> None:
    if not requirements:
        return
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
        command += ["--disable-pip-version-check", "--ignore-installed"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "-q", "--python", str(python), "--reinstall"]
    else:
        raise InstallError("there is neither pip nor uv; install one of them")
    command += ["--no-deps", "--only-binary", ":all:", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's own installer
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise InstallError(f"{' '.join(requirements)}: {''.join(words)}")
