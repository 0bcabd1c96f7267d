"""From `package.module:name` in a spec to the object, for families and references of a user's own.

A spec may stand beside the Python file it names: its folder is importable while the file loads.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.problem.words import nearest
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.spec.models import Spec

__all__ = ["explain_target", "load", "refuse"]


def explain_target(target: str) -> str | None:
    """Why `target` cannot name an object, or None where it can."""
    module, colon, name = target.partition(":")
    if colon and module and all(part.isidentifier() for part in [*module.split("."), name]):
        return None
    return f"{target!r} is not of the form package.module:name"


def refuse(spec: Spec, path: tuple[str | int, ...], message: str) -> SpecError:
    """One issue at a place of the spec, as an error to raise."""
    return SpecError([spec.issue(path, message)])


def load(spec: Spec, path: tuple[str | int, ...], target: str) -> object:
    """The object that `target`, the spec's value at `path`, names.

    Raises:
        SpecError: the module cannot be imported, has no such name, or is another of the same
            name from another folder; the issue stands at `path`.
    """
    if reason := explain_target(target):
        raise refuse(spec, path, reason)
    module_name, _, name = target.partition(":")
    folder = Path(spec.path).resolve().parent
    _refuse_namesake(spec, path, module_name, folder)
    with _importable(folder):
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise refuse(
                spec, path, f"{target!r} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    if not hasattr(module, name):
        raise refuse(spec, path, f"{module_name} has no {name!r}{nearest(name, vars(module))}")
    return getattr(module, name)


@contextmanager
def _importable(*folders: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in (*folders, Path.cwd())]
    try:
        yield
    finally:
        sys.path[:] = before


def _refuse_namesake(
    spec: Spec, path: tuple[str | int, ...], module_name: str, folder: Path
) -> None:
    """Python would quietly give the first of two files of one name to both specs."""
    top = module_name.partition(".")[0]
    origin = getattr(sys.modules.get(top), "__file__", None)
    beside = (folder / f"{top}.py", folder / top / "__init__.py")
    mine = next((file for file in beside if file.exists()), None)
    if origin and mine and Path(origin).resolve() != mine.resolve():
        raise refuse(
            spec,
            path,
            f"the module {top!r} is already loaded from {origin}, and {mine} has the same name; "
            "rename one of them",
        )
