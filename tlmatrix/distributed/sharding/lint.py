"""Lint of `shards`: tensors that a family does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tlmatrix.problem.model import Family
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec

__all__ = ["lint_shards"]


def lint_shards(spec: Spec, family: Family) -> Iterator[Issue]:
    """Issues of `shards`; a family without the attribute `tensors` may have any tensor."""
    known: Iterable[str] | None = getattr(family, "tensors", None)
    for name in spec.shards if known is not None else ():
        if name not in (names := sorted(known or ())):
            hint = suggestion(name, names, "Its tensors")
            message = f"shards: the problem has no tensor {name!r}{hint}"
            yield spec.issue(("shards", name), message)
