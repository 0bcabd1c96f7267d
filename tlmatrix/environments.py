"""Python environments with a TileLang release each, kept in the user's cache."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import venv
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import Version

from tlmatrix.cache_files import cache_folder, locked, make_private, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Install = Callable[[Path, str], None]

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
