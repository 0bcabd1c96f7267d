"""What a result depends on: the user's files of a spec and its code, and versions of packages.

The files are the spec and the modules that its texts `package.module:name` name, with all that they
import. Imports are found in the text of files, so nothing is imported: the process that plans a run
can compare its sources with those of an earlier one. Python's library, installed packages and
tlmatrix are not read.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tlmatrix.results_file import versions
from tlmatrix.spec.importing import BESIDE, folder_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_PACKAGES = ("tlmatrix", "tilelang", "torch")
_TARGET = re.compile(r"(?<![\w.])([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]")
_IMPORT = re.compile(
    r"(?:^|;)[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b[ \t]*(\([^)]*\)|[^\n;]*)"
    r"|import[ \t]+([^\n;]+))",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")

Stamp = tuple[int, int, int]
"""Modification time, size and inode of a file."""


@dataclass(frozen=True)
class Sources:
    """What the results of a spec depend on.

    Attributes:
        parts: the hash of each file by its name as a module (`package/module.py`), and the
            versions of packages; equal on all machines that have the same files.
        files: the files of modules, each with its name and its stamp.
    """

    parts: Mapping[str, str]
    files: Mapping[Path, tuple[str, Stamp | None]]

    @property
    def digest(self) -> str:
        """A hash of all parts, which results carry."""
        return digest_of(self.parts)


def digest_of(parts: Mapping[str, str]) -> str:
    """A hash of the parts of `Sources`."""
    lines = "".join(f"{name}\t{text}\n" for name, text in sorted(parts.items()))
    return blake2b(lines.encode(), digest_size=8).hexdigest()


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What differs between two sets of parts: `k.py changed, torch 2.8 became 2.9`."""
    words = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if not (old and new):
            words.append(f"{name} was {'added' if new else 'removed'}")
        else:
            words.append(f"{name} {f'{old} became {new}' if name in _PACKAGES else 'changed'}")
    return ", ".join(words)


class SourceWatch:
    """The sources of specs as this process first read them, and what changed since.

    Python keeps a module that it imported, but TileLang reads the source of a kernel when it
    traces it, so an edit can mix two versions of a kernel in one process.

    Args:
        roots: folders, besides the spec's own, from which entries are imported.
        expected: the parts with which the run began, by absolute path of the spec; the default
            are those that this process reads first.
    """

    def __init__(
        self, roots: Iterable[Path] = (), expected: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._roots = tuple(roots)
        self._expected = expected or {}
        self._first: dict[Path, Sources] = {}

    def of(self, spec: Path) -> Sources:
        """The sources of the spec in a file as the first call read them."""
        if spec not in self._first:
            self._first[spec] = read_sources(spec, self._roots)
        return self._first[spec]

    def changes(self, spec: Path) -> str:
        """What changed since the run began, as `differences` words it; empty if nothing changed.

        The spec itself may be edited: this process has loaded it.
        """
        first = self.of(spec)
        now = {
            name: _digest(file, stamp)
            for file, (name, before) in first.files.items()
            if (stamp := _stamp(file)) != before
        }
        began = self._expected.get(str(spec.resolve()), first.parts)
        # `first` too: modules that this process imported may be older than the run.
        return differences(began, {**first.parts, **now}) or differences(began, first.parts)


def read_sources(spec: Path, roots: Iterable[Path] = ()) -> Sources:
    """The sources of the spec in a file, whose modules are imported from its folder and `roots`."""
    spec = spec.resolve()
    folders = (spec.parent, Path.cwd(), *reversed(list(roots)))
    known = (each for each in sys.path if each not in BESIDE)
    modules = _Modules([*map(str, folders), *known])
    stamp = _stamp(spec)
    parts = {spec.name: _digest(spec, stamp)}
    files = {}
    for module, file, is_package in modules.reachable(_targets(spec, stamp)):
        name = module.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        files[file] = name, _stamp(file)
        parts[name] = _digest(file, _stamp(file))
    return Sources(parts | _versions(), files)


def sources_of(
    paths: Iterable[str], folder: Path, roots: Iterable[Path]
) -> dict[str, Mapping[str, str]]:
    """The parts of the sources of specs, by path relative to `folder`, for the head of a file."""
    return {path: read_sources(folder / path, roots).parts for path in paths}


class _Module(NamedTuple):
    """The file of a module, None without one, and the folders in which its submodules are."""

    file: Path | None
    folders: tuple[str, ...] = ()


class _Modules:
    """Finds the files of modules without importing them."""

    def __init__(self, path: Sequence[str]) -> None:
        self._path = path
        self._found: dict[tuple[str, str], _Module | None] = {}

    def reachable(self, names: Iterable[str]) -> Iterator[tuple[str, Path, bool]]:
        """The user's modules among `names` and all that they import: name, file, is a package."""
        waiting = [(name, "") for name in names]
        seen = set(waiting)
        while waiting:
            name, beside = waiting.pop()
            found = self._find(name, beside)
            if found is None:
                continue
            parent = name.rpartition(".")[0]
            imported = {(parent, beside)} if parent else set()
            if found.file is not None:
                yield name, found.file, bool(found.folders)
                package = name if found.folders else parent
                each = _imports_of(found.file, _stamp(found.file), package)
                imported |= {(other, folder_beside(found.file)) for other in each}
            waiting += imported - seen
            seen |= imported

    def _find(self, name: str, beside: str) -> _Module | None:
        """A module of the user, `beside` being the last folder; None for any other."""
        if (name, beside) not in self._found:
            parent, _, last = name.rpartition(".")
            if parent:
                package = self._find(parent, beside)
                found = _module(last, package.folders) if package is not None else None
            elif name in sys.stdlib_module_names or name in _PACKAGES:
                found = None  # a checkout in $PYTHONPATH is TileLang all the same
            else:
                folders = [*self._path, beside] if beside else self._path
                found = _module(name, folders) or _editable(name)
            self._found[name, beside] = found
        return self._found[name, beside]


def _module(name: str, folders: Iterable[str]) -> _Module | None:
    """The module in the first of the folders that has it; None if it is an installed one."""
    parts = []
    for folder in folders:
        place = os.path.join(folder, name)  # noqa: PTH118 - ten times as fast
        for file, inside in ((f"{place}/__init__.py", (place,)), (f"{place}.py", ())):
            if os.path.isfile(file):  # noqa: PTH113 - likewise
                return None if _is_installed(file) else _Module(Path(file), inside)
        if os.path.isdir(place):  # noqa: PTH112 - likewise
            parts.append(place)
    # A folder without `__init__.py` is a part of a namespace package.
    return _Module(None, tuple(parts)) if parts and not any(map(_is_installed, parts)) else None


def _editable(name: str) -> _Module | None:
    """The module of a package that is installed as editable by a finder of its own."""
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            found = finder.find_spec(name, None)
            if found is not None and found.origin and not _is_installed(found.origin):
                return _Module(Path(found.origin), tuple(found.submodule_search_locations or ()))
    return None


def _is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package, to Python, or to tlmatrix."""
    installed = "/site-packages/" in file or "/dist-packages/" in file
    return installed or file.startswith(_own_folders())


@cache
def _own_folders() -> tuple[str, ...]:
    own = Path(__file__).resolve().parents[1], Path(sysconfig.get_path("stdlib"))
    return tuple(f"{folder}{os.sep}" for folder in own)


@cache
def _versions() -> dict[str, str]:
    return {name: text for name, text in versions(*_PACKAGES).items() if name in _PACKAGES}


def _stamp(file: Path) -> Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@cache
def _content(file: Path, _stamp: Stamp | None) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


@cache
def _digest(file: Path, stamp: Stamp | None) -> str:
    """The hash of a file; empty if there is none."""
    return "" if stamp is None else blake2b(_content(file, stamp), digest_size=8).hexdigest()


@cache
def _imports_of(file: Path, stamp: Stamp | None, package: str) -> frozenset[str]:
    """The modules that a file may import."""
    return frozenset(_imports(_content(file, stamp).decode(errors="replace"), package))


def _targets(spec: Path, stamp: Stamp | None) -> list[str]:
    """The modules that a spec names."""
    return _TARGET.findall(_content(spec, stamp).decode(errors="replace"))


def _imports(text: str, package: str) -> Iterator[str]:
    """The modules that a text of Python may import; `package` is the one of the module."""
    for origin, names, plain in _IMPORT.findall(text.replace("\\\n", " ")):
        if plain:
            yield from (_first_word(each) for each in plain.split(","))
            continue
        module = origin.lstrip(".")
        level = len(origin) - len(module)
        if level:
            base = package.split(".")[: len(package.split(".")) - level + 1]
            module = ".".join(filter(None, [*base, module]))
        if module:
            yield module
        listed = _COMMENT.sub("", names).strip("() \t\n\r")
        for each in listed.split(","):
            if (name := _first_word(each)) and name != "*":
                yield f"{module}.{name}" if module else name


def _first_word(text: str) -> str:
    words = text.split()
    return words[0] if words else ""
