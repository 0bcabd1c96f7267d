"""The loader of specs: from a file to a `Spec`, or to all of its errors with line and column.

Malformed parts are removed and the rest is still checked, so that one load reports all errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from pydantic import ValidationError

from tlmatrix.spec.issues import Issue, KeyPath, SpecError
from tlmatrix.spec.lint.messages import issue_of, show
from tlmatrix.spec.lint.semantics import GivenNames, faults
from tlmatrix.spec.model.spec import Spec
from tlmatrix.spec.yaml.tree import MAX_BYTES, MapNode, ScalarNode, plain, read_document

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from tlmatrix.spec.lint.semantics import Fault
    from tlmatrix.spec.yaml.tree import Document


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """Load the spec in a file; raises `SpecError` with every issue."""
    path = Path(path)
    _refuse_dangling(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise SpecError([Issue(path, 1, 1, f"the file cannot be read: {reason}")]) from None
    return parse_spec(content, path)


def parse_spec(content: bytes | str, path: str | os.PathLike[str] = "<spec>") -> Spec:
    """Load the spec in a text; `path` is its name in errors. Raises `SpecError`."""
    content = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    document = read_document(content, Path(path))
    root = document.root
    if not isinstance(root, MapNode):
        message = f"a spec is a mapping of keys to values, not {show(plain(root))}"
        if isinstance(root, ScalarNode) and root.is_empty:
            message = "the file is empty"
        raise SpecError([*document.issues, Issue(document.path, root.line, root.column, message)])
    spec, found, rest, malformed = _validated(document)
    if spec is not None:
        given = GivenNames.of(
            plain(root), frozenset(str(path[0]) if path else "" for path in malformed)
        )
        for fault in faults(spec, given):
            if _encloses(fault.path, malformed):
                continue  # A malformed part inside is already reported.
            # Parts removed from the rest are still in the document.
            is_left = rest.path_in_file(*fault.path) == fault.path
            found.append(_issue(fault, rest if is_left else document))
    # An ambiguous scalar usually has the wrong type, too: report it once.
    taken = {(issue.line, issue.column) for issue in document.issues}
    found = [issue for issue in found if (issue.line, issue.column) not in taken]
    if spec is None or found or document.issues:
        raise SpecError([*document.issues, *found])
    spec._path = document.path  # noqa: SLF001 - not keys of the file
    spec._document = document  # noqa: SLF001
    return spec


_PLACEHOLDERS: Mapping[str, Any] = {
    "name": "nameless",
    "problem": "attention",
    "axes": {"nothing_left": [None]},
}


def _encloses(place: KeyPath, malformed: Iterable[KeyPath]) -> bool:
    return bool(place) and any(
        len(path) > len(place) and path[: len(place)] == place for path in malformed
    )


def _validated(document: Document) -> tuple[Spec | None, list[Issue], Document, frozenset[KeyPath]]:
    """The spec of the well-formed parts, the issues, and what was removed.

    Returns the spec, the issues, the document without malformed parts, and their paths. If a
    mapping lacks a required key after a removal, it is removed, too.
    """
    issues: list[Issue] = []
    broken: set[KeyPath] = set()
    data = plain(document.root)
    while True:
        try:
            return Spec.model_validate(data), issues, document, frozenset(broken)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        paths = {_malformed(each, document) for each in errors}
        if not broken:
            issues = [
                issue_of(each, document)
                for each in errors
                # Pydantic also reports a list as too short if its entries are malformed.
                if each["type"] != "too_short" or not _encloses(_malformed(each, document), paths)
            ]
        broken |= paths
        if paths == {()} and set(_PLACEHOLDERS) <= data.keys():
            return None, issues, document, frozenset(broken)
        document = document.without(paths)
        data = {**_PLACEHOLDERS, **plain(document.root)}


def _malformed(error: ErrorDetails, document: Document) -> KeyPath:
    """The path to remove to resolve an error; empty for a missing root key."""
    path = document.path_in_file(*(part for part in error["loc"] if part != "[key]"))
    # Removing a malformed size alone would cause another error of its tier.
    return path[:2] if path[:1] == ("tiers",) else path


def _issue(fault: Fault, document: Document) -> Issue:
    if fault.offset is None:
        place = document.location(*fault.path, at_key=fault.at_key)
    else:
        place = document.inside(document.find(*fault.path)[0], fault.offset)
    return Issue(document.path, *place, fault.message)


# Finding specs ------------------------------------------------------------------------------


def find_specs(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The spec files among files and, recursively, in folders; unique, sorted by folder.

    Files given by name are returned unchecked. In folders, hidden files and folders are skipped,
    and so are YAML files without the root keys `axes` and one of `problem`, `entry` and `factory`.

    Raises:
        FileNotFoundError: a path does not exist.
        SpecError: a file or folder in a folder cannot be read, or is a link to nothing.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            found |= dict.fromkeys(_specs_under(path))
        elif path.exists():
            found[path] = None
        else:
            raise FileNotFoundError(f"no such file or folder: {path}")
    return list(found)


def _specs_under(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for parent, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        if (real := os.path.realpath(parent)) in seen:
            folders.clear()  # links may lead back
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.endswith((".yaml", ".yml")) and not name.startswith("."):
                path = Path(parent, name)
                if _is_spec_in_folder(path):
                    yield path


def dangling_links(folder: Path) -> list[Path]:
    """The YAML files in a folder that are links to nothing, sorted; without hidden ones."""
    names = [name for suffix in (".yaml", ".yml") for name in folder.glob(f"[!.]*{suffix}")]
    return sorted(path for path in names if path.is_symlink() and not path.exists())


def _refuse_dangling(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        message = f"a link to {path.readlink()}, which does not exist; remove or mend it"
        raise SpecError([Issue(path, 1, 1, message)])


def _is_spec_in_folder(path: Path) -> bool:
    _refuse_dangling(path)
    try:
        return path.is_file() and is_spec(path)
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> Never:
    """Raise a SpecError for a file or folder that cannot be read."""
    message = f"cannot be read: {error.strerror}; it may contain specs"
    raise SpecError([Issue(Path(error.filename), 1, 1, message)]) from error


def is_spec(path: Path) -> bool:
    """Whether a file has the root keys of a spec, by its line starts, without parsing.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES)
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines()
    keys = {line.split(b":", 1)[0].rstrip().strip(b"'\"") for line in lines if b":" in line}
    return b"axes" in keys and not keys.isdisjoint({b"problem", b"entry", b"factory"})
