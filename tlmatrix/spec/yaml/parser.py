"""A YAML parser for specs: plain data only, as a tree of nodes with line and column.

The tree is built from PyYAML's parser events. Unlike `safe_load` it keeps the location of each key
and value, reports duplicate keys, limits size, depth and the expansion of aliases, and rejects
ambiguous scalars (`scalars`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.yaml.nodes import Document, Entry, MapNode, Node, ScalarNode, SequenceNode
from tlmatrix.spec.yaml.scalars import scalar_meaning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
