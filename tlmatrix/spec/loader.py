"""From a file to a `Spec`, or to everything that is wrong with it, each at its line and column.

Errors are not found one at a time: the parts that are malformed are set aside, and what is
left is still checked for names that do not exist and the like.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.messages import issue_of, show
from tlmatrix.spec.models import Spec
from tlmatrix.spec.nodes import MAX_BYTES, MapNode, plain, read_document
from tlmatrix.spec.semantics import faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic_core import ErrorDetails

    from tlmatrix.spec.nodes import Document
    from tlmatrix.spec.semantics import Fault

__all__ = ["find_specs", "load_spec", "parse_spec"]


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """The spec in a file. Raises `SpecError` with every issue, also where it cannot be read."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
            size = os.fstat(file.fileno()).st_size
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise SpecError([Issue(path, 1, 1, f"the file cannot be read: {reason}")]) from None
    return parse_spec(content if size <= MAX_BYTES else bytes(size), path)


def parse_spec(content: bytes | str, path: str | os.PathLike[str] = "<spec>") -> Spec:
    """The spec in a text; `path` is what its errors call it. Raises `SpecError`."""
    content = content.encode() if isinstance(content, str) else content
    document = read_document(content, Path(path))
    root = document.root
    if not isinstance(root, MapNode):
        message = f"a spec is a mapping of keys to values, not {show(plain(root))}"
        raise SpecError([*document.issues, Issue(document.path, root.line, root.column, message)])
    data = plain(root)
    spec, found, kept = _validated(data, document)
    if spec is not None:
        axes = data.get("axes")
        names = axes if isinstance(axes, dict) else {}
        found += [_issue(fault, document, kept) for fault in faults(spec, names, data)]
    # A scalar that YAML readers disagree on is usually also of the wrong type: once is enough.
    taken = {(issue.line, issue.column) for issue in document.issues}
    found = [issue for issue in found if (issue.line, issue.column) not in taken]
    if spec is None or found or document.issues:
        raise SpecError([*document.issues, *found])
    spec._path = document.path  # noqa: SLF001 - no keys of the file, so set from outside
    spec._document = document  # noqa: SLF001
    return spec


Kept = dict[str, list[int]]
"""For lists that lost items: the index in the file of each item that is left."""


def _validated(data: dict[str, Any], document: Document) -> tuple[Spec | None, list[Issue], Kept]:
    """The spec, made of the parts that are well formed if some are not, and what is not."""
    try:
        return Spec.model_validate(data), [], {}
    except ValidationError as error:
        errors = error.errors(include_url=False)
    issues = [issue_of(each, document) for each in errors]
    rest, kept = _without(data, errors)
    try:
        return Spec.model_validate(rest), issues, kept
    except ValidationError:
        return None, issues, {}


_STAND_INS: Mapping[str, Any] = {"name": "nameless", "problem": "attention", "axes": {}}


def _without(data: dict[str, Any], errors: list[ErrorDetails]) -> tuple[dict[str, Any], Kept]:
    """The data less every entry with an error, and with something for each key that must be."""
    bad: dict[str, set[str | int]] = defaultdict(set)
    for each in errors:
        key, *below = [part for part in each["loc"] if not str(part).startswith("<")]
        value = data.get(str(key))
        bad[str(key)].add(below[0] if below and _has(value, below[0]) else "")
    rest = dict(data)
    kept: Kept = {}
    for key, inner_keys in bad.items():
        value = rest.pop(key, None)
        if "" in inner_keys or key in ("problem", "fuzz", "bench"):
            continue
        if isinstance(value, dict):
            rest[key] = {name: each for name, each in value.items() if name not in inner_keys}
        elif isinstance(value, list):
            kept[key] = [index for index in range(len(value)) if index not in inner_keys]
            rest[key] = [value[index] for index in kept[key]]
    return {**_STAND_INS, **rest, "axes": rest.get("axes") or {"none_left": [None]}}, kept


def _has(value: object, part: object) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _issue(fault: Fault, document: Document, kept: Kept) -> Issue:
    path = fault.path
    if len(path) > 1 and isinstance(path[1], int) and path[0] in kept:
        path = (path[0], kept[str(path[0])][path[1]], *path[2:])
    node, entry = document.find(*path)
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
    keys = {line.split(b":", 1)[0].strip(b"'\" ") for line in lines if b":" in line[:80]}
    return b"axes" in keys and not keys.isdisjoint({b"problem", b"entry", b"factory"})
