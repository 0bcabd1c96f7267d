"""One-line summaries of errors, for tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend import EntryError
from tlmatrix.run.faults import fault_finding

if TYPE_CHECKING:
    from tlmatrix.backend import Backend


def summarize_error(error: Exception, backend: Backend) -> str:
    """Summarize the exception of an implementation in one line."""
    raised = error.error if isinstance(error, EntryError) else error
    finding = fault_finding(raised, backend, "entry", 0)
    if finding is not None:
        return f"{finding.check}: {finding.title}"
    first = first_sentence(str(raised))
    return f"{type(raised).__name__}: {first}" if first else type(raised).__name__


def first_sentence(text: str) -> str:
    """The first sentence of a message."""
    return text.strip().partition("\n")[0].partition(". ")[0]
