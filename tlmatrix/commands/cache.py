"""`tlmatrix cache`: shows what the caches on disk hold, and removes what was not used for long."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.cache_files import cache_folder, tilelang_folder
from tlmatrix.exit_codes import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tlmatrix.config import Config

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Entry:
    """A file or folder of a cache: its bytes, and when it was last written or read."""

    path: Path
    bytes: int
    used: float


def cache(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Print the caches; with `--prune SIZE`, remove the entries used longest ago beyond that size.

    Raises:
        UsageError: the size is invalid.
    """
    folders = _folders()
    found = {name: list(entries_of(path)) for name, path in folders.items()}
    width = max(map(len, found))
    for name, entries in found.items():
        size = _shown(sum(entry.bytes for entry in entries))
        print(f"{name:<{width}}  {len(entries):>7,} entries  {size:>9}  {folders[name]}")
    total = [entry for entries in found.values() for entry in entries]
    print(f"{'total':<{width}}  {len(total):>7,} entries  {_shown(sum(e.bytes for e in total)):>9}")
    if arguments.prune is not None:
        removed = prune(total, _bytes(arguments.prune))
        freed = _shown(sum(entry.bytes for entry in removed))
        print(f"removed {len(removed):,} entries, {freed}")
    return ExitCode.OK


def entries_of(folder: Path) -> Iterator[Entry]:
    """The entries of a cache; temporary files and locks of other processes are none."""
    try:
        children = sorted(folder.iterdir())
    except OSError:
        return
    for child in children:
        if child.suffix in {".lock", ".tmp"} or child.name.startswith("."):
            continue
        files = [each for each in child.rglob("*") if each.is_file()] if child.is_dir() else [child]
        try:
            facts = [each.stat() for each in files]
        except OSError:
            continue  # removed meanwhile
        used = max((max(fact.st_mtime, fact.st_atime) for fact in facts), default=0.0)
        yield Entry(child, sum(fact.st_size for fact in facts), used)


def prune(entries: list[Entry], most: int) -> list[Entry]:
    """Remove the entries used longest ago until at most `most` bytes are left; the removed ones.

    A kernel of a running process stays loaded; a later one compiles it again.
    """
    left = sum(entry.bytes for entry in entries)
    removed = []
    for entry in sorted(entries, key=lambda each: each.used):
        if left <= most:
            break
        if entry.path.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            entry.path.unlink(missing_ok=True)
        left -= entry.bytes
        removed.append(entry)
    return removed


def _folders(environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The caches: those of tlmatrix, and TileLang's compiled kernels of each of its versions."""
    own = cache_folder(environment)
    found = {
        "covering arrays": own / "covering",
        "interpreted programs": own / "programs",
        "assembled kernels": own / "assembly",
    }
    tilelang = tilelang_folder(environment)
    for path in sorted((*tilelang.glob("*/*/kernels"), *tilelang.glob("*/cuda-binaries"))):
        parts = path.relative_to(tilelang).parts
        found[f"TileLang {parts[0]} {parts[-1]}"] = path
    return found


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"--prune {text}: must be a size such as 500M or 10G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _shown(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1 << 10 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1 << 10
    raise AssertionError
