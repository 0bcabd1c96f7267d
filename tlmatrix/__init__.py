"""A declarative test matrix for TileLang GPU kernels.

Use from Python:

    import tlmatrix

    spec = tlmatrix.load("specs/gqa_varlen.yaml")
    for case in tlmatrix.cases(spec, "quick"):
        print(case.id)
    results = tlmatrix.run_specs("specs/gqa_varlen.yaml", backend="interpreter")
    for finding in results.findings:
        print(finding.title)

    with tlmatrix.interpret():      # TileLang kernels run on CPU tensors
        out, lse = my_attention(q, k, v)

The modules of these names are imported when a name is used.

For pytest, which else warns that the package was imported before the session: PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.api import Results, cases, load, run_specs
    from tlmatrix.check.finding import Finding
    from tlmatrix.interpreter import interpret, simulate
    from tlmatrix.matrix import Case
    from tlmatrix.run.records import read_records
    from tlmatrix.run.result import CaseResult, Status
    from tlmatrix.run.runner import run_case
    from tlmatrix.spec.issues import SpecError
    from tlmatrix.spec.model.spec import Spec

__all__ = [
    "Case",
    "CaseResult",
    "Finding",
    "Results",
    "Spec",
    "SpecError",
    "Status",
    "cases",
    "interpret",
    "load",
    "read_records",
    "run_case",
    "run_specs",
    "simulate",
]

_HOMES = {
    "Case": "tlmatrix.matrix",
    "CaseResult": "tlmatrix.run.result",
    "Finding": "tlmatrix.check.finding",
    "Results": "tlmatrix.api",
    "Spec": "tlmatrix.spec.model.spec",
    "SpecError": "tlmatrix.spec.issues",
    "Status": "tlmatrix.run.result",
    "cases": "tlmatrix.api",
    "interpret": "tlmatrix.interpreter",
    "load": "tlmatrix.api",
    "read_records": "tlmatrix.run.records",
    "run_specs": "tlmatrix.api",
    "run_case": "tlmatrix.run.runner",
    "simulate": "tlmatrix.interpreter",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
