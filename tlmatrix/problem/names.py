"""The pages of `docs/reference/problems`: `python -m tlmatrix.problem.names` writes them.

A test compares them with the tables in the code, and the tables with the names that problems have.
"""

from __future__ import annotations

from pathlib import Path

from tlmatrix.problem.attention.names import PAGE as ATTENTION
from tlmatrix.problem.collective.axes import PAGE as COLLECTIVE
from tlmatrix.problem.declared import PAGE as DECLARED
from tlmatrix.problem.gemm.axes import PAGE as GEMM

DOCUMENTS = (ATTENTION, GEMM, COLLECTIVE, DECLARED)
FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "problems"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for document in DOCUMENTS:
        (FOLDER / f"{document.file}.md").write_text(document.text(), encoding="utf-8")
