"""Tables of the names that a spec or an entry may use of a built-in problem, as data and Markdown.

`tlmatrix.problem.names` writes them to `docs/reference/problems`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tlmatrix.dtypes import explain_dtype
from tlmatrix.problem.distributions import explain_distribution
from tlmatrix.problem.storage import explain_storage
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.spec.values import Value

Role = Literal["axis", "name", "input", "output", "gradient"]
"""`axis`: a spec may list its values. `name`: entries and expressions have it in every case."""


@dataclass(frozen=True)
class Values:
    """The valid values of an axis: in words, and why another value is none of them."""

    words: str
    explain: Callable[[Value], str | None]


@dataclass(frozen=True)
class Name:
    """A name that a spec or an entry may use.

    Attributes:
        name: the name.
        roles: what it may stand for.
        means: its description.
        values: the valid values of an axis.
        default: the value without the axis; empty if the axis is required.
        shapes: shapes of a tensor by layout; `""` stands for all layouts.
        dtype: a dtype, or the axis that has it.
        layouts: the layouts that have the name; empty for all.
        optional: when a tensor exists, if not always.
    """

    name: str
    roles: tuple[Role, ...]
    means: str
    values: Values | None = None
    default: str = ""
    shapes: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""
    layouts: tuple[str, ...] = ()
    optional: str = ""


def axis(name: str, means: str, values: Values, default: str = "", **more: Any) -> Name:  # noqa: ANN401 - fields
    """An axis whose value is a name of the case."""
    return Name(name, ("axis", "name"), means, values, default, **more)


def setting(name: str, means: str, values: Values, default: str = "", **more: Any) -> Name:  # noqa: ANN401 - fields
    """An axis whose value no entry gets."""
    return Name(name, ("axis",), means, values, default, **more)


def tensor(
    name: str,
    means: str,
    shapes: Mapping[str, str] | str,
    dtype: str,
    optional: str = "",
    *,
    roles: tuple[Role, ...] = ("input",),
) -> Name:
    """A tensor, with its shapes by layout or its only one."""
    shapes = {"": shapes} if isinstance(shapes, str) else shapes
    return Name(name, roles, means, shapes=shapes, dtype=dtype, optional=optional)


def names_of(rows: Sequence[Name], *roles: Role) -> frozenset[str]:
    """The names that have one of the roles."""
    return frozenset(row.name for row in rows if set(roles) & set(row.roles))


# Values of axes -----------------------------------------------------------------------------------


def _shown(value: Value) -> str:
    return "none" if value is None else repr(value)


def whole(
    least: int, *, same: bool = False, optional: bool = False, want: str | None = None
) -> Values:
    """Integers from `least`, and `same` or none if these are allowed; `want` names them all."""
    want = want or f"{'none or ' if optional else ''}an integer >= {least}"

    def explain(value: Value) -> str | None:
        if (value is None and optional) or (value == "same" and same):
            return None
        fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if fine else f"{_shown(value)} is not {want}"

    return Values(f"{least} or more" + (", `same`" if same else ""), explain)


def choice(what: str, options: Sequence[str]) -> Values:
    """One of the names of something: a layout, an operation."""

    def explain(value: Value) -> str | None:
        if isinstance(value, str) and value in options:
            return None
        return f"unknown {what} {value!r}{nearest(value, options)}"

    return Values(", ".join(f"`{option}`" for option in options), explain)


def dtypes(*, floating: bool = False, same: bool = False, optional: bool = False) -> Values:
    """Dtypes, or floating ones alone; `same` as another axis or none if these are allowed."""

    def explain(value: Value) -> str | None:
        if (same and value == "same") or (optional and value is None):
            return None
        return explain_dtype(value, floating=floating)

    return Values(f"{'floating ' if floating else ''}dtypes{', `same`' if same else ''}", explain)


def _explain_flag(value: Value) -> str | None:
    return None if isinstance(value, bool) else f"{value!r} is not true or false"


def _explain_number(value: Value) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fine = value is None or (number and math.isfinite(float(value)))  # type: ignore[arg-type]
    return None if fine else f"{value!r} is not none or a finite number"


FLAG = Values("booleans", _explain_flag)
NUMBER = Values("a finite number", _explain_number)
VALUES = axis(
    "values",
    "distribution of the inputs",
    Values(
        "[distributions](../../guides/own-problems.md#what-the-inputs-hold)", explain_distribution
    ),
    "the seed picks one",
)
DEVICE = Name("device", ("name",), "device of the tensors, a `torch.device`")


def storage(layouts: str) -> Name:
    """The axis `storage` of a problem that has these memory layouts."""
    means, values = "memory layout of the inputs", Values(layouts, explain_storage)
    return setting("storage", means, values, "contiguous")


# Pages --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Document:
    """The page of a problem: `docs/reference/problems/FILE.md`."""

    file: str
    title: str
    intro: str
    rows: tuple[Name, ...]
    more: str = ""
    relations: tuple[str, ...] = ()

    def explain(self, axis: str, value: Value) -> str | None:
        """Why `value` is invalid for an axis; None if it is valid, or if the axis is unknown."""
        for row in self.rows:
            if row.name == axis and row.values is not None:
                return row.values.explain(value)
        return None

    def refuse_invalid(self, values: Mapping[str, Value]) -> None:
        """Raise ValueError if an axis has an invalid value."""
        for axis, value in values.items():
            if reason := self.explain(axis, value):
                raise ValueError(f"{axis}: {reason}")

    def text(self) -> str:
        """The page as Markdown."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield f"# {self.title}"
        yield ""
        yield "<!-- Generated by `python -m tlmatrix.problem.names`; edit the code instead. -->"
        yield ""
        yield self.intro
        axes = [row for row in self.rows if "axis" in row.roles]
        names = [row for row in self.rows if "name" in row.roles and "axis" not in row.roles]
        tensors = [row for row in self.rows if set(row.roles) & {"input", "output", "gradient"}]
        if axes:
            yield from _heading("Axes")
            yield from _table(
                ("axis", "values", "default", "layouts", "meaning"),
                [
                    (
                        _code(row.name),
                        row.values.words if row.values else "",
                        row.default or "required",
                        _in(row),
                        row.means,
                    )
                    for row in axes
                ],
            )
        if names:
            yield from _heading("Other names")
            yield from _table(
                ("name", "layouts", "meaning"),
                [(_code(row.name), _in(row), row.means) for row in names],
            )
        if tensors:
            yield from _heading("Tensors")
            yield from _table(
                ("tensor", "role", "shape", "dtype", "meaning"),
                [
                    (_code(row.name), _roles(row), _shapes(row), _code(row.dtype), _meaning(row))
                    for row in tensors
                ],
            )
        if self.more:
            yield ""
            yield self.more.strip()
        if self.relations:
            yield from _heading("Relations")
            yield ", ".join(map(_code, self.relations)) + "."


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
