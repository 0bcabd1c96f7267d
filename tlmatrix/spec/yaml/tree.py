"""The tree of a YAML file: plain data only, as nodes with line and column.

It is built from PyYAML's parser events. Unlike `safe_load` it keeps the location of each key and
value, reports duplicate keys, limits size, depth and the expansion of aliases, and rejects
ambiguous scalars.

YAML 1.1 reads `no` as false, `010` as 8 and `1:30` as 90; YAML 1.2 does not. Such scalars are
errors here, with a message that says what to write.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from tlmatrix.spec.expr.expression import shorten
from tlmatrix.spec.issues import Issue, KeyPath, SpecError


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

    def path_in_file(self, *path: str | int) -> KeyPath:
        """The parts of a path that the file has.

        For `tiers.quick.strategy` and the short form `quick: pairwise`: `("tiers", "quick")`.
        """
        parts: list[str | int] = []
        for part in path:
            if self.find(*parts, part)[0] is not self.find(*parts)[0]:
                parts.append(part)
        return tuple(parts)

    def without(self, paths: Collection[KeyPath]) -> Document:
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


def _without(node: Node, paths: Collection[KeyPath]) -> Node:
    if not paths:
        return node
    below: dict[str | int, list[KeyPath]] = {}
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


# Reading ----------------------------------------------------------------------------------------

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
"""The most levels of nested lists and mappings."""
MAX_NODES = 100_000
"""The most values in a file, with aliases expanded."""

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser if PyYAML has it: the same events, about ten times faster."""


def read_document(content: bytes, path: Path) -> Document:
    """The tree of a file's bytes.

    Issues of single scalars and keys are collected in `Document.issues`.

    Raises:
        SpecError: the file is not one YAML document of plain data.
    """
    text = _decoded(content, path)
    builder = _Builder(path, text.split("\n"))
    root = builder.build(text)
    return Document(path, root, builder.lines, builder.issues)


def _decoded(content: bytes, path: Path) -> str:
    if len(content) > MAX_BYTES:
        message = f"the file is too large for a spec; the limit is {MAX_BYTES >> 20} MiB"
        raise SpecError([Issue(path, 1, 1, message)])
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SpecError([Issue(path, 1, 1, "the file is UTF-16 text; save it as UTF-8")])
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as problem:
        before = content[: problem.start].decode("utf-8-sig")
        byte = content[problem.start]
        message = f"the byte 0x{byte:02x} is not UTF-8 text; save the file as UTF-8"
        raise SpecError([Issue(path, *_end_of(before), message)]) from None
    if (odd := _ODD_CHARACTER.search(text)) is not None:
        message = f"the character {odd.group()!a} is not allowed in a spec"
        raise SpecError([Issue(path, *_end_of(text[: odd.start()]), message)])
    return text


_ODD_CHARACTER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML forbids, and line ends that editors do not show as such."""


def _end_of(before: str) -> tuple[int, int]:
    """Line and column after a text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


class _Builder:
    """Builds the tree from parser events and enforces the limits of depth and size."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self.path = path
        self.lines = lines
        self.issues: list[Issue] = []
        self.anchors: dict[str, Node | None] = {}  # None while the anchored node is open
        self.count = 0

    def build(self, text: str) -> Node:
        try:
            events = iter(yaml.parse(text, Loader=_PARSER))
            return self.stream(events)
        except yaml.YAMLError as problem:
            raise self.syntax_error(problem) from None

    def fatal(self, mark: Any, message: str) -> SpecError:  # noqa: ANN401 - a C or Python mark
        line, column = mark.line + 1, mark.column + 1
        if line > len(self.lines):  # libyaml may report the line after the last
            line, column = len(self.lines), len(self.lines[-1]) + 1
        return SpecError([*self.issues, Issue(self.path, line, column, message)])

    def report(self, node: Node | Entry, message: str) -> None:
        self.issues.append(Issue(self.path, node.line, node.column, message))

    def syntax_error(self, problem: yaml.YAMLError) -> SpecError:
        if not isinstance(problem, yaml.MarkedYAMLError):
            return SpecError([*self.issues, Issue(self.path, 1, 1, f"not YAML: {problem}")])
        mark = problem.problem_mark or problem.context_mark
        if mark is None:
            return SpecError([*self.issues, Issue(self.path, 1, 1, f"not YAML: {problem.problem}")])
        line_text = self.lines[mark.line] if mark.line < len(self.lines) else ""
        if line_text[mark.column : mark.column + 1] == "\t":
            return self.fatal(mark, "a tab character; indent YAML with spaces")
        for word, explanation in _SYNTAX_HINTS.items():
            if word in str(problem.problem):
                return self.fatal(mark, f"not YAML: {problem.problem}; {explanation}")
        return self.fatal(mark, f"not YAML: {problem.problem}")

    def stream(self, events: Iterator[Any]) -> Node:
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            raise SpecError([Issue(self.path, 1, 1, "the file is empty")])
        root = self.node(next(events), events, depth=0)
        next(events)  # the end of the document
        following = next(events)
        if isinstance(following, yaml.DocumentStartEvent):
            raise self.fatal(
                following.start_mark,
                "a second YAML document; a file has one spec, so remove '---'",
            )
        return root

    def node(self, event: Any, events: Iterator[Any], depth: int) -> Node:  # noqa: ANN401
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            node = self.aliased(event)
        else:
            if event.tag is not None:
                tag = event.tag.replace("tag:yaml.org,2002:", "!!")
                raise self.fatal(
                    mark, f"the tag {tag!r} is not allowed: a spec is plain data; remove it"
                )
            if depth > MAX_DEPTH:
                raise self.fatal(mark, f"nested more than {MAX_DEPTH} levels deep")
            if event.anchor is not None:
                self.anchors[event.anchor] = None
            if isinstance(event, yaml.ScalarEvent):
                node = self.scalar(event)
            elif isinstance(event, yaml.SequenceStartEvent):
                node = self.sequence(event, events, depth)
            else:
                node = self.mapping(event, events, depth)
            if event.anchor is not None:
                self.anchors[event.anchor] = node
        self.count += node.weight if isinstance(event, yaml.AliasEvent) else 1
        if self.count > MAX_NODES or node.weight > MAX_NODES:
            raise self.fatal(mark, f"more than {MAX_NODES} values, with aliases expanded")
        return node

    def aliased(self, event: Any) -> Node:  # noqa: ANN401
        if event.anchor not in self.anchors:
            message = f"the alias *{event.anchor} has no anchor &{event.anchor} before it"
            raise self.fatal(event.start_mark, message)
        node = self.anchors[event.anchor]
        if node is None:
            message = f"the alias *{event.anchor} is inside the value that it refers to"
            raise self.fatal(event.start_mark, message)
        return node

    def scalar(self, event: Any) -> ScalarNode:  # noqa: ANN401
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        quoted = event.style is not None and event.style != ""
        node = ScalarNode(line, column, event.value, event.value, quoted)
        if not quoted:
            node.value, message = scalar_meaning(event.value)
            if message is not None:
                self.report(node, message)
        return node

    def sequence(self, event: Any, events: Iterator[Any], depth: int) -> SequenceNode:  # noqa: ANN401
        node = SequenceNode(event.start_mark.line + 1, event.start_mark.column + 1)
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            item = self.node(event, events, depth + 1)
            if isinstance(item, ScalarNode) and item.is_empty:
                self.report(item, "an entry of a list is empty; write none for an absent value")
            node.items.append(item)
            node.weight += item.weight
        return node

    def mapping(self, event: Any, events: Iterator[Any], depth: int) -> MapNode:  # noqa: ANN401
        node = MapNode(event.start_mark.line + 1, event.start_mark.column + 1)
        merged: list[tuple[Any, Node]] = []
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            mark = event.start_mark
            key = self.key(event)
            value = self.node(next(events), events, depth + 1)
            if key == "<<" and not event.style:
                merged.append((mark, value))
                continue
            entry = Entry(mark.line + 1, mark.column + 1, value)
            if (first := node.entries.get(key)) is not None:
                self.report(entry, f"the key {key!r} appears twice; first in line {first.line}")
            else:
                node.entries[key] = entry
            if isinstance(value, ScalarNode) and value.is_empty:
                self.report(entry, f"{key!r} has no value{self.comment_hint(value)}")
        for mark, value in merged:
            self.merge(mark, value, node)
        node.weight += sum(entry.node.weight for entry in node.entries.values())
        return node

    def comment_hint(self, node: Node) -> str:
        """A hint for a value that YAML reads as a comment, such as `issue: #12`."""
        rest = self.lines[node.line - 1][node.column - 1 :] if node.line <= len(self.lines) else ""
        return "; an unquoted # starts a comment" if rest.lstrip().startswith("#") else ""

    def key(self, event: Any) -> str:  # noqa: ANN401
        """A key as text: `no`, `1` and `none` are names."""
        if isinstance(event, yaml.AliasEvent):
            node = self.aliased(event)
            if isinstance(node, ScalarNode):
                return node.text
        elif isinstance(event, yaml.ScalarEvent) and event.tag is None:
            if event.anchor is not None:
                self.anchors[event.anchor] = self.scalar(event)
            return str(event.value)
        raise self.fatal(event.start_mark, "a key must be a plain name")

    def merge(self, mark: Any, value: Node, into: MapNode) -> None:  # noqa: ANN401
        """`<<: *base`: adds the keys of the base that the mapping lacks."""
        for base in value.items if isinstance(value, SequenceNode) else [value]:
            if not isinstance(base, MapNode):
                raise self.fatal(mark, "'<<' merges a mapping, or a list of mappings")
            for key, entry in base.entries.items():
                into.entries.setdefault(key, entry)


_SYNTAX_HINTS = {
    "mapping values are not allowed": "check indentation, or quote text that holds ': '",
    "cannot start any token": "quote text that begins with this character",
    "unexpected end of stream": "a quote or bracket was never closed",
    "did not find expected ',' or '}'": "a '}' or a comma is missing",
    "did not find expected ',' or ']'": "a ']' or a comma is missing",
    "could not find expected ':'": "a key needs ': ' after it",
    "did not find expected key": "check indentation and quotes",
    "did not find expected '-' indicator": "check indentation",
}
"""Remedies for error messages of libyaml."""


# Scalars ----------------------------------------------------------------------------------------

_WORDS: dict[str, str | bool | None] = {"": None, "~": None}
for _word in ("none", "null"):
    _WORDS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()))
for _word, _meaning in (("true", True), ("false", False)):
    _WORDS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()), _meaning)

_OLD_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)$")
_OTHER_BASE = re.compile(r"[-+]?0(x[0-9a-fA-F_]+|o[0-7_]+|b[01_]+)$")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+$")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_SPECIAL_FLOAT = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}$")
_LONGEST_NUMBER = 400


def scalar_meaning(text: str) -> tuple[str | int | float | bool | date | None, str | None]:
    """The value of an unquoted scalar, and an error message or None."""
    if text in _WORDS:
        return _WORDS[text], None
    first = text[0]
    if first.isalpha():  # most scalars are words
        if (meant := _OLD_BOOLEANS.get(text.lower())) and text in (
            text.lower(),
            text.upper(),
            text.capitalize(),
        ):
            message = f"YAML parsers disagree on {text!r}: write {meant}, or quote it: '{text}'"
            return text, message
        return text, None
    if not (first.isdigit() or first in "+-."):
        return text, None
    return _number_meaning(text)


def _number_meaning(text: str) -> tuple[str | int | float | date | None, str | None]:
    if len(text) > _LONGEST_NUMBER:
        if text.strip("+-0123456789_.") == "":
            return text, f"the number {shorten(text, 20)} is too long"
        return text, None
    if _INTEGER.match(text):
        return int(text.replace("_", "")), None
    if _OTHER_BASE.match(text):
        return int(text.replace("_", ""), 0), None
    if _LEADING_ZERO.match(text):
        sign = "-" if text.startswith("-") else ""
        decimal = sign + (text.lstrip("+-0_").replace("_", "") or "0")
        message = f"YAML parsers disagree on {text!r}: write {decimal}, or quote it: '{text}'"
        return text, message
    if _FLOAT.match(text):
        return float(text), None
    if _SPECIAL_FLOAT.match(text):
        return float(text.replace(".", "", 1)), None
    if _SEXAGESIMAL.match(text):
        return text, f"YAML parsers disagree on {text!r} (a number, base 60): quote it: '{text}'"
    if _DATE.match(text):
        year, month, day = map(int, text.split("-"))
        try:
            return date(year, month, day), None
        except ValueError as problem:
            return text, f"{text!r} is not a date: {problem}"
    return text, None
