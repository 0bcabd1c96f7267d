"""Spec -> cases: strategies, rules, tiers, the ledger of known bugs, and rejects."""

from tlmatrix.matrix.case import Case, Origin
from tlmatrix.matrix.expansion import Expansion, expand
from tlmatrix.matrix.explain import (
    CaseNotFoundError,
    Explanation,
    Membership,
    explain,
    find_case,
)
from tlmatrix.matrix.ledger import expired, known_bug
from tlmatrix.matrix.proof import Proof
from tlmatrix.matrix.rejects import RejectCase, reject_cases

__all__ = [
    "Case",
    "CaseNotFoundError",
    "Expansion",
    "Explanation",
    "Membership",
    "Origin",
    "Proof",
    "RejectCase",
    "expand",
    "expired",
    "explain",
    "find_case",
    "known_bug",
    "reject_cases",
]
