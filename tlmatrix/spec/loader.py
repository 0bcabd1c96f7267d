"""From a file to a `Spec`, or to everything that is wrong with it, each at its line and column.

Errors are not found one at a time: the parts that are malformed are set aside, and what is
left is still checked for names that do not exist and the like.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.lint.messages import issue_of, show
from tlmatrix.spec.lint.semantics import Written, faults
from tlmatrix.spec.model.spec import Spec
from tlmatrix.spec.yaml.nodes import MapNode, ScalarNode, plain
from tlmatrix.spec.yaml.parser import MAX_BYTES, read_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic_core import ErrorDetails

    from tlmatrix.spec.lint.semantics import Fault
    from tlmatrix.spec.yaml.nodes import Document

__all__ = ["find_specs", "load_spec", "parse_spec"]


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """The spec in a file. Raises `SpecError` with every issue, also where it cannot be read."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise SpecError([Issue(path, 1, 1, f"the file cannot be read: {reason}")]) from None
    return parse_spec(content, path)


def parse_spec(content: bytes | str, path: str | os.PathLike[str] = "<spec>") -> Spec:
    """The spec in a text; `path` is what its errors call it. Raises `SpecError`."""
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
        written = Written.of(
            plain(root), frozenset(str(path[0]) if path else "" for path in malformed)
        )
        for fault in faults(spec, written):
            if _encloses(fault.path, malformed):
                continue  # It lacks what is malformed inside of it, which is an error already.
            # What was removed from the rest is still in the document.
            is_left = rest.written(*fault.path) == fault.path
            found.append(_issue(fault, rest if is_left else document))
    # A scalar that YAML parsers disagree on is usually also of the wrong type: once is enough.
    taken = {(issue.line, issue.column) for issue in document.issues}
    found = [issue for issue in found if (issue.line, issue.column) not in taken]
    if spec is None or found or document.issues:
        raise SpecError([*document.issues, *found])
    spec._path = document.path  # noqa: SLF001 - no keys of the file, so set from outside
    spec._document = document  # noqa: SLF001
    return spec


_Path = tuple[str | int, ...]

_STAND_INS: Mapping[str, Any] = {
    "name": "nameless",
    "problem": "attention",
    "axes": {"nothing_left": [None]},
}


def _encloses(place: _Path, malformed: Iterable[_Path]) -> bool:
    return bool(place) and any(
        len(path) > len(place) and path[: len(place)] == place for path in malformed
    )


def _validated(document: Document) -> tuple[Spec | None, list[Issue], Document, frozenset[_Path]]:
    """The spec, made of what is well formed, and what is not.

    With it come the document less all that is malformed, where the paths of the spec lead to, and
    the paths of what is malformed. Removing a value may leave its surroundings without a key that
    they need; then they go, too.
    """
    issues: list[Issue] = []
    broken: set[_Path] = set()
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
                # Of a list whose entries are malformed, pydantic also says that it lacks entries.
                if each["type"] != "too_short" or not _encloses(_malformed(each, document), paths)
            ]
        broken |= paths
        if paths == {()} and set(_STAND_INS) <= data.keys():
            return None, issues, document, frozenset(broken)
        document = document.without(paths)
        data = {**_STAND_INS, **plain(document.root)}


def _malformed(error: ErrorDetails, document: Document) -> tuple[str | int, ...]:
    """The path of what has to go for an error to go; empty for a key that the root lacks."""
    path = document.written(*(part for part in error["loc"] if part != "[key]"))
    # A tier without the size that was malformed would only get another error for that.
    return path[:2] if path[:1] == ("tiers",) else path


def _issue(fault: Fault, document: Document) -> Issue:
    node, entry = document.find(*fault.path)
    if fault.at_key and entry is not None:
        line, column = entry.line, entry.column
    elif fault.offset is not None:
        line, column = document.inside(node, fault.offset)
    else:
        line, column = node.line, node.column
    return Issue(document.path, line, column, fault.message)


# Finding specs ------------------------------------------------------------------------------


def find_specs(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The specs among files and, all the way down, in folders; each once, sorted by folder.

    A file given by name is taken as it is. In a folder, hidden files and folders are passed
    over, and so is every YAML file that is no spec: it has `axes`, and one of `problem`,
    `entry` and `factory`, as keys of its root. Raises `FileNotFoundError` for a path that does
    not exist.
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
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.endswith((".yaml", ".yml")) and not name.startswith("."):
                path = Path(parent, name)
                if is_spec(path):
                    yield path


def is_spec(path: Path) -> bool:
    """Whether a file's root has the keys that make a spec; looks at line starts, not at YAML."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except OSError:
        return False
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines()
    keys = {line.split(b":", 1)[0].rstrip().strip(b"'\"") for line in lines if b":" in line}
    return b"axes" in keys and not keys.isdisjoint({b"problem", b"entry", b"factory"})
