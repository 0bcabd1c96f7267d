"""Which cases of an earlier run need not run again, and why others must."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.run.result import Status
from tlmatrix.run.sources import SourceWatch, differences

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.run.records import RunRecords
    from tlmatrix.run.result import CaseResult


def reusable(
    earlier: RunRecords, roots: Iterable[Path], *, seed: int, backend: str
) -> tuple[frozenset[tuple[str, str]], tuple[str, ...]]:
    """The passed cases of a run whose sources, seed and backend are those of the resumed one.

    Args:
        earlier: the run to resume.
        roots: folders, besides those of specs, from which entries are imported.
        seed: the seed of the resumed run.
        backend: its backend, as the user names it.

    Returns:
        (absolute path of the spec, id) of each such case; and a line for each reason why others
        run again.
    """
    watch = SourceWatch(roots)
    folder = Path(earlier.header.folder)
    kept: set[tuple[str, str]] = set()
    again: Counter[str] = Counter()
    for result in earlier.results:
        if result.status is not Status.PASSED:
            continue
        path = (folder / result.path).resolve()
        if not os.path.isfile(path):  # noqa: PTH113 - False for a name that no file can have
            continue
        reason = _reason(earlier, result, watch, path, seed, backend)
        if reason:
            again[reason] += 1
        else:
            kept.add((str(path), result.case))
    words = [
        f"{number:,} case{'s' if number > 1 else ''} run again: {reason}"
        for reason, number in again.items()
    ]
    return frozenset(kept), tuple(words)


def _reason(
    earlier: RunRecords, result: CaseResult, watch: SourceWatch, path: Path, seed: int, backend: str
) -> str:
    """Why a passed case runs again; empty if it need not."""
    if result.seed != seed:
        return f"the seed is {seed}, was {result.seed}"
    if result.requested != backend:
        return f"the backend is {backend}, was {result.requested}"
    now = watch.of(path)
    if result.sources == now.digest:
        return ""
    before = earlier.sources.get(result.sources)
    if before is None:
        return "the results file does not say from which sources their results are"
    return f"{differences(before, now.parts)} since"
