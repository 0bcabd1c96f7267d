"""Errors of a spec, each with its location, reported all at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tlmatrix.words import printable

KeyPath = tuple[str | int, ...]
"""A path of keys and indices in a spec: `("axes", "rows", 0)`."""


@dataclass(frozen=True, order=True)
class Issue:
    """An error in a spec file; `line` and `column` count from 1."""

    path: Path
    line: int
    column: int
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


@dataclass(frozen=True)
class Fault:
    """An error at a path of keys, before its line and column are known.

    Attributes:
        path: keys and list positions from the root of the file.
        message: what is wrong, what was expected, what to do.
        offset: index into the text of an expression.
        at_key: whether the error is at the key itself and not at its value.
    """

    path: KeyPath
    message: str
    offset: int | None = None
    at_key: bool = False


class SpecError(ValueError):
    """An invalid spec; `issues` has all of its errors, in file order."""

    def __init__(self, issues: Iterable[Issue]) -> None:
        self.issues = tuple(sorted(set(issues)))
        super().__init__("\n".join(str(issue) for issue in self.issues))

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Issue, ...]]]:
        """Pickle with the issues; the default would pass the message in their place."""
        return type(self), (self.issues,)
