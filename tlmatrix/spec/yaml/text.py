"""Values as YAML text, and edits of a list in a text that preserve every other byte.

Comments, layout and line ends stay: the text is spliced at the positions of PyYAML's marks. The
caller parses the result and compares it (`tlmatrix.fuzz.corpus`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import yaml

from tlmatrix.spec.yaml.tree import scalar_meaning

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value


def flow(value: Value | date) -> str:
    """A value in flow style, `{q: [17, 64], k: same}`; ambiguous text is quoted."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _number(value)
        case date():
            return value.isoformat()
        case str():
            return _quoted(value)
        case Mapping():
            return "{" + ", ".join(f"{_quoted(k)}: {flow(each)}" for k, each in value.items()) + "}"
        case Sequence():
            return "[" + ", ".join(flow(each) for each in value) + "]"
    raise TypeError(f"cannot write {value!r} to a spec: expected plain data")


def _number(value: float) -> str:
    text = repr(value)
    return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)


def _quoted(value: str) -> str:
    if not value.isprintable():
        return f'"{"".join(map(_escaped, value))}"'
    if scalar_meaning(value) != (value, None):
        return f"'{value}'"
    dumped: str = yaml.safe_dump(
        [value], default_flow_style=True, width=1 << 30, allow_unicode=True
    )
    return dumped.strip()[1:-1]


def _escaped(character: str) -> str:
    """A character inside double quotes, escaped as in JSON, above U+FFFF as in YAML."""
    if character.isprintable() and character not in '"\\':
        return character
    return f"\\U{ord(character):08x}" if ord(character) > 0xFFFF else json.dumps(character)[1:-1]


# Edits ------------------------------------------------------------------------------------------

_BREAK = re.compile(r"\r\n|\n|\r")
_COMMA = re.compile(r"(?:\s|#[^\r\n]*+)*+,")
"""A comma after an entry, perhaps behind comments."""
_LOADER = yaml.SafeLoader
"""Not libyaml's: its marks count bytes that a text with a byte order mark does not have."""


def _at(mark: Any) -> int:  # noqa: ANN401 - PyYAML's types say that a mark may be missing
    index: int = mark.index
    return index


@dataclass(frozen=True)
class _Value:
    """The position of a value: indices `start` and `end` into the text.

    Of a list `opened` is the index after `[`, or that of its first dash; `last` the span of its
    last entry, None if it is empty.
    """

    start: int
    end: int
    opened: int = -1
    is_list: bool = False
    is_flow: bool = False
    last: tuple[int, int] | None = None

    @classmethod
    def of(cls, event: Any, events: Iterator[Any], text: str) -> _Value:  # noqa: ANN401
        """The value that begins with a parser event; consumes its events."""
        start, end = event.start_mark.index, event.end_mark.index
        if not isinstance(event, yaml.CollectionStartEvent):
            return cls(start, end)
        opened, last = end, None
        while not isinstance(inner := next(events), yaml.CollectionEndEvent):
            item = cls.of(inner, events, text)
            last, end = (item.start, item.end), item.end
        is_list = isinstance(event, yaml.SequenceStartEvent)
        if event.flow_style:
            return cls(start, _at(inner.end_mark), opened, is_list, is_flow=True, last=last)
        dash = opened if text[opened : opened + 1] == "-" else opened - 1
        return cls(start, end, dash, is_list, last=last)


@dataclass(frozen=True)
class _Root:
    """The position of the root mapping, and of the value of one key.

    `after_key` is the index after the colon of the key, or after the anchor of its value; `last`
    the index after the last value.
    """

    column: int
    start: int
    end: int
    is_flow: bool
    last: int
    after_key: int = -1
    value: _Value | None = None

    @classmethod
    def of(cls, text: str, key: str) -> _Root:
        events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        root: Any = next(event for event in events if isinstance(event, yaml.MappingStartEvent))
        column, start, last = root.start_mark.column, root.end_mark.index, root.end_mark.index
        after, value, first = -1, None, True
        while not isinstance(name := next(events), yaml.MappingEndEvent):
            if first:
                column, start, first = name.start_mark.column, name.start_mark.index, False
            event = next(events)
            found = _Value.of(event, events, text)
            last = found.end
            if isinstance(name, yaml.ScalarEvent) and name.value == key:
                value, after = found, text.index(":", _at(name.end_mark)) + 1
                if found.is_list and event.anchor:
                    after = found.start + 1 + len(event.anchor)
        end = _at(name.start_mark)
        if not root.flow_style:
            closing = next(events)
            end = closing.start_mark.index if closing.explicit else len(text)
        return cls(column, start, end, bool(root.flow_style), last, after, value)


def appended(text: str, key: str, entries: Sequence[str], before: Sequence[str]) -> Iterator[str]:
    """Candidate texts with entries appended to the list of a root key, the most likely first.

    `entries` are one line each. `before` are the current entries, for a list that is an alias or
    merged. The second candidate is for a text whose last value extends to the end.

    Raises:
        yaml.YAMLError: PyYAML's own parser cannot read the text, as libyaml can.
    """
    try:
        root = _Root.of(text, key)
    except yaml.YAMLError:
        # libyaml accepts tabs before a comment, this parser does not; positions stay the same.
        root = _Root.of(text.replace("\t", " "), key)
    value = root.value
    if value is None:
        yield from _with_key(text, root, key, [*before, *entries])
    elif not value.is_list:
        yield _spliced(text, value.start, value.end, f"[{', '.join([*before, *entries])}]")
    elif not value.is_flow:
        column = _column(text, value.opened)
        yield _with_lines(text, value.end, [f"{' ' * column}- {each}" for each in entries])
    elif value.last is not None:
        yield _in_flow(text, value.last, value.end - 1, entries)
    elif root.is_flow or _BREAK.search(text, root.after_key, value.end):
        yield _spliced(text, value.opened, value.opened, ", ".join(entries))
    else:
        lines = [f"{' ' * (root.column + 2)}- {each}" for each in entries]
        yield _with_lines(_spliced(text, root.after_key, value.end, ""), root.after_key, lines)


def _with_key(text: str, root: _Root, key: str, entries: Sequence[str]) -> Iterator[str]:
    """Texts with a new key: at the end of the root, then before its first key."""
    if root.is_flow:
        comma = "" if _COMMA.match(text, root.last) else ", "
        yield _spliced(text, root.end, root.end, f"{comma}{key}: [{', '.join(entries)}]")
        return
    indent = " " * root.column
    lines = [f"{indent}{key}:", *(f"{indent}  - {each}" for each in entries)]
    before = text[: root.end]
    gap = [] if _BREAK.sub("\n", before).endswith("\n\n") else [""]
    ended = before if before.endswith(("\n", "\r")) else before + _ending(text)
    yield ended + _joined(_ending(text), [*gap, *lines]) + text[root.end :]
    # After the byte order mark.
    start = _line_start(text, root.start) or int(text.startswith("\ufeff"))
    yield text[:start] + _joined(_ending(text), lines) + text[start:]


def _in_flow(text: str, last: tuple[int, int], closing: int, entries: Sequence[str]) -> str:
    """A text with entries added to a flow list: on the same line, or one a line as the others."""
    start, end = last
    trailing = _COMMA.match(text, end)
    comma = "" if trailing else ","
    place = trailing.end() if trailing else end
    line = _line_end(text, place)
    if line >= closing or text[_line_start(text, start) : start].strip():
        return _spliced(text, place, place, f"{comma} {', '.join(entries)}")
    indent = " " * _column(text, start)
    lines = [f"{indent}{each}," for each in entries]
    if comma:
        lines[-1] = lines[-1][:-1]
    return _with_lines(_spliced(text, place, place, comma), place + len(comma), lines)


def _with_lines(text: str, at: int, lines: Sequence[str]) -> str:
    """The text with lines inserted after the line of an index."""
    place = _next_line(text, at)
    before = text[:place]
    if not before.endswith(("\n", "\r")):
        # The last line has no line end, and the new last line gets none.
        return before + _ending(text) + _joined(_ending(text), lines).removesuffix(_ending(text))
    ending = next(each for each in ("\r\n", "\n", "\r") if before.endswith(each))
    return before + _joined(ending, lines) + text[place:]


def _spliced(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def _joined(ending: str, lines: Sequence[str]) -> str:
    return "".join(line + ending for line in lines)


def _ending(text: str) -> str:
    """The line end that the text uses."""
    found = _BREAK.search(text)
    return found.group() if found else "\n"


def _line_start(text: str, at: int) -> int:
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _line_end(text: str, at: int) -> int:
    """The end of the line of an index.

    An index at a line's start counts to the line before, since block scalars end there.
    """
    if at and text[at - 1] in "\r\n":
        return at
    found = _BREAK.search(text, at)
    return found.start() if found else len(text)


def _next_line(text: str, at: int) -> int:
    if at and text[at - 1] in "\r\n":
        return at
    found = _BREAK.search(text, at)
    return found.end() if found else len(text)


def _column(text: str, at: int) -> int:
    return at - _line_start(text, at)
