"""The generated source: lines, indentation, and which line of the user's file each came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir.nodes import Location


@dataclass
class Writer:
    """Collects lines; each remembers the user's line that was current when it was written."""

    lines: list[str] = field(default_factory=list)
    locations: list[Location | None] = field(default_factory=list)
    location: Location | None = None
    assigned: tuple[int, set[str]] = field(default_factory=lambda: (0, set()))
    """How many lines were scanned for assignments (`threads.roles`), and the names assigned."""
    _depth: int = 0
    _names: dict[str, int] = field(default_factory=dict)

    def sharing_names(self, location: Location | None = None) -> Writer:
        """An empty writer with the same pool of names."""
        return Writer(_names=self._names, location=location)

    def line(self, text: str) -> None:
        """Write one line at the current depth."""
        self.lines.append("    " * self._depth + text)
        self.locations.append(self.location)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Write `header:` and indent what follows; an empty block becomes `pass`."""
        self.line(header + ":")
        self._depth += 1
        start = len(self.lines)
        try:
            yield
        finally:
            if len(self.lines) == start:
                self.line("pass")
            self._depth -= 1

    def take(self, start: int) -> Sequence[tuple[str, Location | None]]:
        """Remove and return the lines from number `start` on, with their locations."""
        taken = list(zip(self.lines[start:], self.locations[start:], strict=True))
        del self.lines[start:], self.locations[start:]
        return taken

    def indented(self, taken: Sequence[tuple[str, Location | None]]) -> None:
        """Write lines that were taken, one level deeper than they stood."""
        for text, location in taken:
            self.lines.append("    " + text)
            self.locations.append(location)

    def extend(self, other: Writer) -> None:
        """Write the lines of another writer at the current depth."""
        outer = self.location
        for text, location in zip(other.lines, other.locations, strict=True):
            self.location = location
            self.line(text)
        self.location = outer

    def insert(self, position: int, texts: list[str]) -> None:
        """Write lines before line `position`, as deep and from the same line of the user's file."""
        line = self.lines[position]
        indent = line[: len(line) - len(line.lstrip())]
        self.lines[position:position] = [indent + text for text in texts]
        self.locations[position:position] = [self.locations[position]] * len(texts)

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
