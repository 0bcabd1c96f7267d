"""Guidance of a search: scores that reward large error ratios and rare coverage.

Measuring coverage costs about a seventh of a case's time. So every case is measured while new
features appear, and later one in `_ONE_IN`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.coverage import Coverage, Feature
    from tlmatrix.run.result import CaseResult

_STALE = 50
"""Measured examples in a row without a new feature after which fewer are measured."""
_ONE_IN = 4


class Guidance:
    """Scores examples; `coverage` is that of the `counted` examples, None if there are none."""

    def __init__(self) -> None:
        self.coverage: Coverage | None = None
        self.counted = 0
        self._seen: Counter[Feature] = Counter()
        self._stale = 0
        self._examples = 0

    def counts(self) -> bool:
        """Whether to measure the coverage of the next example."""
        self._examples += 1
        return self._stale < _STALE or self._examples % _ONE_IN == 0

    def scores(self, result: CaseResult) -> Mapping[str, float]:
        """The scores of an example, which Hypothesis maximizes.

        `error` is its error ratio; `rare` is the sum of 1/n over its coverage features, where n
        counts the examples with that feature.
        """
        scores = {} if result.error_ratio is None else {"error": result.error_ratio}
        if result.coverage is not None:
            scores["rare"] = self._rarity(result.coverage)
        return scores

    def _rarity(self, coverage: Coverage) -> float:
        self.counted += 1
        self.coverage = coverage if self.coverage is None else self.coverage + coverage
        # Guards determine which lines run.
        features = [found for found in coverage.features() if found.what != "line"]
        new = any(not self._seen[feature] for feature in features)
        self._stale = 0 if new else self._stale + 1
        self._seen.update(features)
        return sum(1 / self._seen[feature] for feature in features)
