"""Imports of the objects that a spec names as `package.module:attribute`.

The spec's folder comes first on the import path, then the working directory and the project's root,
so that kernels need no package. What lies beside a module's file comes last.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tlmatrix.spec.issues import KeyPath, SpecError
from tlmatrix.tracebacks import unwinds, user_traceback
from tlmatrix.words import guess

if TYPE_CHECKING:
    from tlmatrix.spec.model.spec import Spec

BESIDE: list[str] = []
"""Folders on the import path for the modules beside a file, the latest first."""


def make_importable(spec_path: Path, roots: Iterable[Path] = ()) -> None:
    """Add the spec's folder, the working directory and `roots` to the import path.

    They stay there, because code under test may import modules later.
    """
    for folder in (*roots, Path.cwd(), spec_path.resolve().parent):
        text = str(folder)
        if text in BESIDE:
            BESIDE.remove(text)
            sys.path.remove(text)
        if text not in sys.path:
            sys.path.insert(0, text)


def import_named(name: str) -> ModuleType:
    """Import a module, whose file may import modules that lie beside it, as a script does."""
    if name.endswith(".py"):
        module = name.removesuffix(".py").replace("/", ".").lstrip(".")
        raise ModuleNotFoundError(f"a module is named without its suffix: {module}", name=name)
    if name not in sys.modules:
        if (file := _by_path(name)) is not None:
            return _loaded(name, file)
        with suppress(ImportError, ValueError, AttributeError):
            found = importlib.util.find_spec(name)
            if found is not None and found.origin is not None:
                _add_beside(folder_beside(Path(found.origin).resolve()))
    return importlib.import_module(name)


def _by_path(name: str) -> Path | None:
    """The file of a module that Python does not import by its name; None if it does.

    Its folder has a dot in its name, or a module that the folder at the top is named like, so that
    the modules beside it could not be imported.
    """
    parts = name.split(".")
    for folder in [Path(each or ".") for each in sys.path if len(parts) > 1]:
        file = _file_below(folder, parts)
        if file is None:
            continue
        dotted = len(file.relative_to(folder).parts) < len(parts)
        hidden = (file.parent / f"{parts[0]}.py").exists()
        return file.resolve() if folder_beside(file) and (dotted or hidden) else None
    return None


def _file_below(folder: Path, parts: list[str]) -> Path | None:
    """The file of a module below a folder, whose own folders may have dots in their names."""
    if not folder.is_dir():
        return None
    for count in range(1, len(parts)):
        found = _file_below(folder / ".".join(parts[:count]), parts[count:])
        if found is not None:
            return found
    file = folder / f"{'.'.join(parts)}.py"
    return file if file.is_file() else None


def _loaded(name: str, file: Path) -> ModuleType:
    """A module that is loaded from a file under a name."""
    _add_beside(folder_beside(file))
    found = importlib.util.spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@cache
def folder_beside(file: Path) -> str:
    """The folder whose modules a file may import by their bare names; "" in a package."""
    return "" if (file.parent / "__init__.py").exists() else str(file.parent)


def _add_beside(folder: str) -> None:
    """Add a folder at the end of the import path, before other such folders.

    Modules beside other files that have the names of its own are forgotten.
    """
    known = {str(Path(each).resolve()) for each in sys.path if each not in BESIDE}
    if not folder or folder in known:
        return
    own = {path.stem for path in Path(folder).glob("*.py")}
    for name, module in list(sys.modules.items()):
        at = str(Path(getattr(module, "__file__", None) or "").parent)
        if name in own and at in BESIDE and at != folder:
            del sys.modules[name]
    BESIDE[:] = [folder, *(each for each in BESIDE if each != folder)]
    sys.path[:] = [*(each for each in sys.path if each not in BESIDE), *BESIDE]


def refuse(spec: Spec, path: KeyPath, message: str) -> SpecError:
    """An error with one issue at a path of the spec."""
    return SpecError([spec.issue(path, message)])


def load(spec: Spec, path: KeyPath, target: str) -> object:
    """The object that `target`, the spec's value at `path`, names.

    Raises:
        SpecError: no such module or attribute, the module raises while it is imported, or
            another module of that name is already loaded from another folder; the issue stands
            at `path`.
    """

    def wrong(message: str) -> SpecError:
        return refuse(spec, path, f"{'.'.join(map(str, path))}: {target!r}: {message}")

    module_name, _, attributes = target.partition(":")
    if not module_name or not attributes:
        raise wrong('write "package.module:attribute"')
    make_importable(spec.path)
    _refuse_namesake(spec, module_name, wrong)
    try:
        found: object = import_named(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise wrong(_missing_module(spec, error.name)) from error
        raise wrong(
            f"importing it needs the module {error.name!r}, which is not installed\n"
            + user_traceback(error)
        ) from error
    except BaseException as error:
        if unwinds(error):
            raise
        raise wrong(
            f"importing it raised {type(error).__name__}: {error}\n{user_traceback(error)}"
        ) from error
    place = module_name
    for name in attributes.split("."):
        if not hasattr(found, name):
            near = guess(name, [item for item in dir(found) if not item.startswith("_")])
            meant = f"; did you mean {near!r}?" if near else ""
            raise wrong(f"{place} has no {name!r}{meant}")
        found = getattr(found, name)
        place = f"{place}.{name}"
    return found


def _missing_module(spec: Spec, name: str) -> str:
    folder = spec.path.resolve().parent
    neighbours = [path.stem for path in folder.glob("*.py")]
    neighbours += [path.name for path in folder.iterdir() if (path / "__init__.py").exists()]
    near = guess(name.removesuffix(".py"), neighbours)
    if near:
        return f"no module {name!r}; did you mean {near!r}?"
    return (
        f"no module {name!r}; looked in the spec's folder, the working directory and what is "
        "installed. Put the file beside the spec, or install its package"
    )


def _refuse_namesake(spec: Spec, module_name: str, wrong: Callable[[str], SpecError]) -> None:
    """Raise if another folder's module of the same name is loaded; Python would reuse it."""
    top = module_name.partition(".")[0]
    loaded = sys.modules.get(top)
    origin = getattr(loaded, "__file__", None)
    if origin is None:
        return
    folder = spec.path.resolve().parent
    beside = [folder / f"{top}.py", folder / top / "__init__.py"]
    here = next((path for path in beside if path.exists()), None)
    if here is not None and Path(origin).resolve() != here.resolve():
        raise wrong(
            f"the module {top!r} is already loaded from {origin}, and {here} has the same name; "
            "rename one of them, or run the two specs separately"
        )
