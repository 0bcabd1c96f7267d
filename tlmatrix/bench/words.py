"""Errors of implementations, short enough for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend import EntryError
from tlmatrix.run.faults import fault_finding

if TYPE_CHECKING:
    from tlmatrix.backend import Backend

__all__ = ["error_words", "first_sentence"]


def error_words(error: Exception, backend: Backend) -> str:
    """What an implementation raised, in a line."""
    raised = error.error if isinstance(error, EntryError) else error
    finding = fault_finding(raised, backend, "entry", 0)
    if finding is not None:
        return f"{finding.check}: {finding.title}"
    first = first_sentence(str(raised))
    return f"{type(raised).__name__}: {first}" if first else type(raised).__name__


def first_sentence(text: str) -> str:
    """The first sentence of a message: PyTorch's may go on for pages."""
    return text.strip().partition("\n")[0].partition(". ")[0]
