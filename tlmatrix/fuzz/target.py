"""What a search aims at: errors close to what is allowed, and parts of kernels seldom exercised.

Counting what a case exercises costs about a seventh of its time. So every case is counted while
that brings something new, and then one in a few.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.coverage import Coverage, Feature
    from tlmatrix.run.result import CaseResult

__all__ = ["Aim"]

_STALE = 50
"""Counted examples in a row without anything new, after which fewer are counted."""
_ONE_IN = 4


class Aim:
    """Scores of examples. `coverage` is what the `counted` ones exercised, None if none was."""

    def __init__(self) -> None:
        self.coverage: Coverage | None = None
        self.counted = 0
        self._seen: Counter[Feature] = Counter()
        self._stale = 0
        self._asked = 0

    def counts(self) -> bool:
        """Whether to count what the next example exercises."""
        self._asked += 1
        return self._stale < _STALE or self._asked % _ONE_IN == 0

    def scores(self, result: CaseResult) -> Mapping[str, float]:
        """The scores of an example, larger for one that later ones should resemble.

        `rare`: the features it exercised, each counting less the more often it was seen.
        """
        scores = {} if result.closeness is None else {"error": result.closeness}
        if result.coverage is not None:
            scores["rare"] = self._rarity(result.coverage)
        return scores

    def _rarity(self, coverage: Coverage) -> float:
        self.counted += 1
        self.coverage = coverage if self.coverage is None else self.coverage + coverage
        # Lines follow from the guards around them.
        features = [found for found in coverage.features() if found.what != "line"]
        new = any(not self._seen[feature] for feature in features)
        self._stale = 0 if new else self._stale + 1
        self._seen.update(features)
        return sum(1 / self._seen[feature] for feature in features)
