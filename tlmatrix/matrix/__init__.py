"""Expands specs into cases: tiers, constraints, strategies, known bugs and invalid inputs."""

from tlmatrix.matrix.expansion import Expansion, expand
from tlmatrix.matrix.explain import (
    CaseNotFoundError,
    Explanation,
    Membership,
    case_of,
    explain,
    find_case,
)
from tlmatrix.matrix.listed_cases import (
    Case,
    InvalidCase,
    Origin,
    expired,
    invalid_cases,
    known_bug,
    valid_case,
)

__all__ = [
    "Case",
    "CaseNotFoundError",
    "Expansion",
    "Explanation",
    "InvalidCase",
    "Membership",
    "Origin",
    "case_of",
    "expand",
    "expired",
    "explain",
    "find_case",
    "invalid_cases",
    "known_bug",
    "valid_case",
]
