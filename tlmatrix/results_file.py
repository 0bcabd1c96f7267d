"""Paths of results files, and the versions in their heads."""

from __future__ import annotations

import os
import platform
import shlex
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.config import Config


PACKAGES = ("tlmatrix", "tilelang", "torch", "numpy", "pytest")
"""Packages whose versions are in the header of a results file."""


def new_results(given: str | None, config: Config, kind: str) -> Path:
    """The path of a new results file of a `kind` (run, fuzz): `given`, or a file in that folder.

    The file is not created. Its name has the time and the process id, so it is unique.
    """
    if given is not None and given.endswith(".jsonl"):
        return Path(given).resolve()
    folder = Path(given) if given is not None else config.results
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return folder.resolve() / f"{kind}-{stamp}-{os.getpid()}.jsonl"


def kept_results(given: str | None, config: Config, kind: str = "") -> list[Path]:
    """The results files of a `kind` (by default of all kinds), the newest first.

    `given` is a folder or a file; by default the project's folder.
    """
    if given is not None and given.endswith(".jsonl"):
        return [Path(given)] if Path(given).is_file() else []
    folder = Path(given) if given is not None else config.results
    return sorted(
        folder.glob(f"{kind}*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True
    )


def make_folder(path: Path, config: Config) -> None:
    """Create the project's results folder if `path` is in it."""
    folder = config.results.resolve()
    if folder in path.parents and not folder.exists():
        with suppress(OSError):  # which the writer of results reports
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def shown_path(path: Path) -> str:
    """A path relative to the working directory; absolute if it is outside."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def resume_command(results: Path) -> str:
    """The command that continues the run of a results file."""
    return f"tlmatrix run --resume {shlex.quote(shown_path(results))}"


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python and of those packages that are installed, for the head of a file."""
    found = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
