"""Where the records of a run go: a file that is named, or a new one in the project's folder."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.config import Config

__all__ = ["kept_results", "make_folder", "new_results", "resume_command", "shown_path"]


def new_results(given: str | None, config: Config, kind: str) -> Path:
    """The file of a new run of a `kind` (run, fuzz): `given`, or one in that folder, made later.

    Its name tells when it began and in which process, so that no two runs share one.
    """
    if given is not None and given.endswith(".jsonl"):
        return Path(given).resolve()
    folder = Path(given) if given is not None else config.root / config.results
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return folder.resolve() / f"{kind}-{stamp}-{os.getpid()}.jsonl"


def kept_results(given: str | None, config: Config, kind: str = "") -> list[Path]:
    """The results files of a `kind` (of all, without one), the newest first.

    `given` is a folder of them, or a file; by default the project's folder.
    """
    if given is not None and given.endswith(".jsonl"):
        return [Path(given)] if Path(given).is_file() else []
    folder = Path(given) if given is not None else config.root / config.results
    return sorted(
        folder.glob(f"{kind}*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True
    )


def make_folder(path: Path, config: Config) -> None:
    """Make the project's results folder, if the file `path` is in it and it is not there."""
    folder = (config.root / config.results).resolve()
    if folder in path.parents and not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Results are no part of anybody's repository.
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def shown_path(path: Path) -> str:
    """A path as one would write it in the working directory; absolute outside of it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def resume_command(results: Path) -> str:
    """What goes on where the run of a results file stopped."""
    return f"tlmatrix run --resume {shlex.quote(shown_path(results))}"
