"""Caches covering arrays on disk.

A file's name is a hash of everything its rows depend on. Damaged files, and rows that are no
covering array, are ignored and written again; a cache that cannot be read or written is no error.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from tlmatrix.cache_files import cache_folder, write_file
from tlmatrix.matrix.coverage_proof import Proof, prove
from tlmatrix.matrix.covering import covering_rows
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from pathlib import Path

    from tlmatrix.matrix.constraints import Row
    from tlmatrix.matrix.shared_kernels import CompileClasses
    from tlmatrix.matrix.space import Space
    from tlmatrix.spec.values import Value

_FORMAT = 3  # increment when covering.py makes other rows


def cached_covering_rows(
    space: Space,
    strength: int,
    seed: int = 0,
    classes: CompileClasses | None = None,
    folder: Path | None = None,
) -> tuple[tuple[Row, ...], Proof]:
    """`covering_rows`, from the cache in `folder` if present; always proven.

    The texts of the space's constraints are part of the key, so equal texts must mean equal
    constraints.
    """
    if strength >= len(space.sizes):
        return covering_rows(space, strength, seed, classes)  # a product, quick to make
    path = (folder or cache_folder()) / "covering" / f"{_key(space, strength, seed, classes)}.json"
    rows = _read(path, space)
    if rows is not None:
        proof = prove(space, rows, strength)
        if proof.holds:
            return rows, proof
    rows, proof = covering_rows(space, strength, seed, classes)
    _write(path, rows)
    return rows, proof


@cache
def _library_version() -> str:
    return metadata.version("covertable")


def _key(space: Space, strength: int, seed: int, classes: CompileClasses | None) -> str:
    content: Value = {
        "axes": [[name, [canonical(value) for value in space.axes[name]]] for name in space.names],
        "rules": sorted([list(each.names), each.text] for each in space.constraints),
        "strength": strength,
        "seed": seed,
        "classes": [list(each) for each in classes.classes] if classes else [],
        "given": [list(each) for each in classes.given] if classes else [],
        "compile_axes": [space.names[at] for at in classes.positions] if classes else [],
        "covertable": _library_version(),
        "format": _FORMAT,
    }
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _read(path: Path, space: Space) -> tuple[Row, ...] | None:
    """The rows in the file; None if it has none, or others than rows of the space."""
    try:
        held = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(held, list):
        return None
    for row in held:
        if not isinstance(row, list) or len(row) != len(space.sizes):
            return None
        for index, size in zip(row, space.sizes, strict=True):
            if type(index) is not int or not 0 <= index < size:
                return None
    rows = tuple(tuple(row) for row in held)
    return rows if all(space.allows(row) for row in rows) else None


def _write(path: Path, rows: tuple[Row, ...]) -> None:
    write_file(path, json.dumps(rows, separators=(",", ":")).encode("ascii"))
