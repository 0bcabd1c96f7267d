"""A plugin of pytest for `tlmatrix adopt`: of the parametrized cases of each test, a few run.

Those with the smallest numbers in their id run, as they are interpreted; one of every test runs
before a second of any, so that all are seen if time is short.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_MOST = 6


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep some cases of each test, and order them."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = [sorted(cases, key=_size)[:_MOST] for cases in tests.values()]
    kept = [cases[k] for k in range(_MOST) for cases in chosen if k < len(cases)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _size(item: pytest.Item) -> int:
    return sum(int(number) for number in re.findall(r"\d+", item.nodeid.partition("[")[2])[:20])
