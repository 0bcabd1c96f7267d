"""Tables of the names that a spec or an entry may use of a built-in problem, as data and Markdown.

`tlmatrix.problem.names` writes them to `docs/reference/problems`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Document", "Name", "names_of"]

Role = Literal["axis", "name", "input", "output", "gradient"]
"""`axis`: a spec may list its values. `name`: entries and expressions have it in every case."""


@dataclass(frozen=True)
class Name:
    """A name that a spec or an entry may use.

    `values` says what an axis may hold, with `default` for a spec without the axis (empty: it is
    required). `shapes` are those of a tensor by layout, or for all layouts under `""`; `dtype`
    is a dtype or the axis that names it. `layouts` are those that have the name (empty: all).
    `optional` says when a tensor is there, if not always.
    """

    name: str
    roles: tuple[Role, ...]
    means: str
    values: str = ""
    default: str = ""
    shapes: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""
    layouts: tuple[str, ...] = ()
    optional: str = ""

    def there(self, layout: str) -> bool:
        """Whether cases of a layout have the name."""
        if "name" in self.roles or self.layouts:
            return not self.layouts or layout in self.layouts
        return not self.shapes or self.tensor_in(layout)

    def tensor_in(self, layout: str) -> bool:
        """Whether the name is a tensor in cases of a layout."""
        return "" in self.shapes or layout in self.shapes

    def shape(self, layout: str) -> str:
        """The shape in a layout, in letters."""
        return self.shapes.get(layout, self.shapes.get("", ""))


def names_of(rows: Sequence[Name], *roles: Role) -> frozenset[str]:
    """The names that have one of the roles."""
    return frozenset(row.name for row in rows if set(roles) & set(row.roles))


@dataclass(frozen=True)
class Document:
    """The page of a problem: `docs/reference/problems/FILE.md`."""

    file: str
    title: str
    intro: str
    rows: tuple[Name, ...]
    more: str = ""

    def text(self) -> str:
        """The page as Markdown."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield f"# {self.title}"
        yield ""
        yield "<!-- Written by `python -m tlmatrix.problem.names` from the code: edit it there. -->"
        yield ""
        yield self.intro
        axes = [row for row in self.rows if "axis" in row.roles]
        names = [row for row in self.rows if "name" in row.roles and "axis" not in row.roles]
        tensors = [row for row in self.rows if set(row.roles) & {"input", "output", "gradient"}]
        if axes:
            yield from _heading("Axes")
            yield from _table(
                ("axis", "values", "default", "layouts", "what it is"),
                [(_code(r.name), r.values, r.default or "required", _in(r), r.means) for r in axes],
            )
        if names:
            yield from _heading("Other names")
            yield from _table(
                ("name", "layouts", "what it is"),
                [(_code(row.name), _in(row), row.means) for row in names],
            )
        if tensors:
            yield from _heading("Tensors")
            yield from _table(
                ("tensor", "role", "shape", "dtype", "what it is"),
                [
                    (_code(row.name), _roles(row), _shapes(row), _code(row.dtype), _meaning(row))
                    for row in tensors
                ],
            )
        if self.more:
            yield ""
            yield self.more.strip()


def _heading(title: str) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _in(row: Name) -> str:
    return ", ".join(map(_code, row.layouts)) if row.layouts else "all"


def _roles(row: Name) -> str:
    return ", ".join(role for role in row.roles if role not in ("axis", "name"))


def _meaning(row: Name) -> str:
    return f"{row.means}; {row.optional}" if row.optional else row.means


def _shapes(row: Name) -> str:
    together: dict[str, list[str]] = {}
    for layout, shape in row.shapes.items():
        together.setdefault(shape, []).append(layout)
    if len(together) == 1 and not row.layouts:
        (shape,) = together
        layouts = [layout for layout in together[shape] if layout]
        return _code(shape) + (f" ({', '.join(layouts)})" if layouts else "")
    return "<br>".join(
        f"{', '.join(filter(None, layouts))}: {_code(shape)}".removeprefix(": ")
        for shape, layouts in together.items()
    )
