"""The tree of a YAML file: nodes with line and column."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import date
    from pathlib import Path

    from tlmatrix.spec.issues import Issue


@dataclass(slots=True)
class Node:
    """A value of the file; `line` and `column` of its first character, from 1."""

    line: int
    column: int
    weight: int = field(default=1, kw_only=True)
    """The number of nodes in the subtree, with aliases expanded."""


@dataclass(slots=True)
class ScalarNode(Node):
    """A value that is neither a list nor a mapping: its text and its value."""

    text: str
    value: str | int | float | bool | date | None
    quoted: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the value is absent, as after `key:`."""
        return not self.quoted and not self.text


@dataclass(slots=True)
class SequenceNode(Node):
    """A list."""

    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Entry:
    """One `key: value` of a mapping, with the location of the key."""

    line: int
    column: int
    node: Node


@dataclass(slots=True)
class MapNode(Node):
    """A mapping, merge keys (`<<`) already merged."""

    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """The tree of a file, its lines, and the issues of its scalars and keys."""

    path: Path
    root: Node
    lines: list[str]
    issues: list[Issue]

    def find(self, *path: str | int) -> tuple[Node, Entry | None]:
        """The node at a path of keys and indices, and its entry if the last part is a key.

        Parts that the file lacks, such as keys that a short form omits, are skipped.
        """
        node, entry = self.root, None
        for part in path:
            if isinstance(node, MapNode) and part in node.entries:
                entry = node.entries[str(part)]
                node = entry.node
            elif isinstance(node, SequenceNode) and part in range(len(node.items)):
                node, entry = node.items[int(part)], None
        return node, entry

    def location(self, *path: str | int, at_key: bool = False) -> tuple[int, int]:
        """Line and column of the value at a path, with `at_key` of its key if it has one."""
        node, entry = self.find(*path)
        place = entry if at_key and entry is not None else node
        return place.line, place.column

    def path_in_file(self, *path: str | int) -> tuple[str | int, ...]:
        """The parts of a path that the file has.

        For `tiers.quick.strategy` and the short form `quick: pairwise`: `("tiers", "quick")`.
        """
        parts: list[str | int] = []
        for part in path:
            if self.find(*parts, part)[0] is not self.find(*parts)[0]:
                parts.append(part)
        return tuple(parts)

    def without(self, paths: Collection[tuple[str | int, ...]]) -> Document:
        """The document without the nodes at some paths; other nodes keep their locations."""
        return replace(self, root=_without(self.root, [path for path in paths if path]))

    def inside(self, node: Node, offset: int) -> tuple[int, int]:
        """Line and column of a character of a scalar, or of the scalar if it is folded."""
        if isinstance(node, ScalarNode):
            start = node.column - 1 + node.quoted
            line = self.lines[node.line - 1] if node.line <= len(self.lines) else ""
            if line[start : start + len(node.text)] == node.text:
                return node.line, start + offset + 1
        return node.line, node.column


def _without(node: Node, paths: Collection[tuple[str | int, ...]]) -> Node:
    if not paths:
        return node
    below: dict[str | int, list[tuple[str | int, ...]]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    gone = {part for part, rests in below.items() if () in rests}
    match node:
        case MapNode(entries=entries):
            kept = {
                key: replace(entry, node=_without(entry.node, below.get(key, ())))
                for key, entry in entries.items()
                if key not in gone
            }
            return replace(node, entries=kept)
        case SequenceNode(items=items):
            rest = [
                _without(item, below.get(index, ()))
                for index, item in enumerate(items)
                if index not in gone
            ]
            return replace(node, items=rest)
    return node


def plain(node: Node) -> Any:  # noqa: ANN401 - a document may be any plain data
    """A node as new dicts, lists and scalars; aliases do not share them."""
    match node:
        case ScalarNode():
            return node.value
        case SequenceNode():
            return [plain(item) for item in node.items]
        case MapNode():
            return {key: plain(entry.node) for key, entry in node.entries.items()}
    raise AssertionError(node)
