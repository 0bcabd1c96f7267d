"""The generated source: lines, indentation, and which line of the user's file each came from."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["Location", "Writer", "buffer_location", "location_of", "unwrapped"]

# TileLang's own macros (reductions, scans) carry lines of its library.
_LIBRARY = "/site-packages/tilelang/"


@dataclass(frozen=True)
class Location:
    """A line of the user's kernel."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Writer:
    """Collects lines; each remembers the user's line that was current when it was written."""

    lines: list[str] = field(default_factory=list)
    locations: list[Location | None] = field(default_factory=list)
    location: Location | None = None
    _depth: int = 0
    _names: dict[str, int] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Write one line at the current depth."""
        self.lines.append("    " * self._depth + text)
        self.locations.append(self.location)

    def comment(self, text: str) -> None:
        """Write a comment, for the person who reads the generated source."""
        self.line(f"# {text}")

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Write `header:` and indent what follows; an empty block becomes `pass`."""
        self.line(header + ":")
        self._depth += 1
        start = len(self.lines)
        try:
            yield
        finally:
            if all(text.lstrip().startswith("#") for text in self.lines[start:]):
                self.line("pass")
            self._depth -= 1

    def insert(self, place: int, texts: list[str]) -> None:
        """Write lines before line `place`, as deep and from the same line of the user's file."""
        line = self.lines[place]
        indent = line[: len(line) - len(line.lstrip())]
        self.lines[place:place] = [indent + text for text in texts]
        self.locations[place:place] = [self.locations[place]] * len(texts)

    def fresh(self, stem: str) -> str:
        """A name that nothing else in this source has."""
        stem = "".join(c if c.isalnum() or c == "_" else "_" for c in stem) or "v"
        if stem[0].isdigit():
            stem = "_" + stem
        count = self._names.get(stem)
        self._names[stem] = 0 if count is None else count + 1
        if count is None:
            return stem
        return self.fresh(f"{stem}_{count + 1}")

    def reserve(self, *names: str) -> None:
        """Keep names of helpers and keywords from being given out."""
        for name in names:
            self._names.setdefault(name, 0)


def unwrapped(text: str) -> str:
    """A line with the calls `wrap(x, bits, signed)` written out: a call costs as much as a tile."""
    start = text.find("wrap(")
    while start >= 0:
        if start and (text[start - 1].isalnum() or text[start - 1] in "._"):
            start = text.find("wrap(", start + 1)
            continue
        end, depth = start + 5, 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        value, bits, signed = text[start + 5 : end - 1].rsplit(", ", 2)
        half, most = 1 << (int(bits) - 1), (1 << int(bits)) - 1
        code = f"((({value}) + {half} & {most}) - {half})" if signed == "True" else ""
        text = f"{text[:start]}{code or f'(({value}) & {most})'}{text[end:]}"
        start = text.find("wrap(", start)
    return text


def location_of(node: Any) -> Location | None:
    """The user's line of a statement; None for statements of TileLang's own macros."""
    import tilelang.ir

    return _location(tilelang.ir.get_stmt_span(node))


def buffer_location(buffer: Any) -> Location | None:
    """The user's line of an allocation."""
    import tilelang.ir

    return _location(tilelang.ir.get_buffer_span(buffer))


def _location(span: Any) -> Location | None:
    if span is None:
        return None
    file = str(span.source_name.name)
    return None if _LIBRARY in file else Location(file, int(span.line))
