"""Reports of a launch or a simulation: the first of each cause, with a count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tlmatrix.interpreter.reports import Report


class Findings:
    """Deduplicates reports by the source locations of both parties."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Report] = {}

    def again(self, key: tuple[Any, ...]) -> bool:
        """Count a finding once more; False if it is new."""
        known = self._found.get(key)
        if known is None:
            return False
        self._found[key] = replace(known, count=known.count + 1)
        return True

    def add(self, report: Report, key: tuple[Any, ...] | None = None) -> None:
        """Add a report, or count an earlier one with the same key."""
        other = report.other
        key = key or (
            report.sanitizer,
            report.file,
            report.line,
            report.buffer,
            other and (other.file, other.line),
        )
        if not self.again(key):
            self._found[key] = report

    def reports(self) -> list[Report]:
        """The reports, in order."""
        return list(self._found.values())
