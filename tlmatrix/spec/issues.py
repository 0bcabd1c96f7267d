"""Problems found in a spec, each at its place, collected so that a user sees all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Issue", "SpecError"]


@dataclass(frozen=True, order=True)
class Issue:
    """One thing wrong with a spec file.

    `line` and `column` count from 1, as editors do.
    """

    path: Path
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


class SpecError(ValueError):
    """A spec that cannot be used; `issues` holds everything wrong with it, in file order."""

    def __init__(self, issues: Iterable[Issue]) -> None:
        self.issues = tuple(sorted(set(issues)))
        super().__init__("\n".join(str(issue) for issue in self.issues))

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Issue, ...]]]:
        """How it is pickled: with its issues; the message alone would be taken for them."""
        return type(self), (self.issues,)
