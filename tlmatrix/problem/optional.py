"""Axes that a case may have though its spec lists none of their values.

What inputs hold (`values`), how they lie in memory (`storage`), a longest length that is told
larger than it is (`max_seqlen_q`, `max_seqlen_k`): random cases have them, and so do cases that are
written down. A case without them is as if they did not exist, its id too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.model.fields import OPTIONAL_AXES
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.model import Family
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec

__all__ = ["lint_optional", "optional_axes"]


def optional_axes(family: Family) -> frozenset[str]:
    """The optional axes that a family reads; none of a family that does not say."""
    return frozenset(getattr(family, "optional", ())) & frozenset(OPTIONAL_AXES)


def lint_optional(spec: Spec, family: Family) -> Iterator[Issue]:
    """Optional axes, in written cases and in `fuzz`, that the family does not read."""
    known = optional_axes(family)
    regressions = tuple(each.case for each in spec.regressions)
    for key, cases in (("extra_cases", spec.extra_cases), ("regressions", regressions)):
        for number, case in enumerate(cases):
            for axis in case:
                if axis not in spec.axes and axis not in known:
                    hint = nearest(axis, [*spec.axes, *known])
                    message = f"neither the spec nor its problem has the axis {axis!r}{hint}"
                    yield spec.issue((key, number, axis), message)
    for index, name in enumerate(spec.fuzz.storage if spec.fuzz else ()):
        path = ("fuzz", "storage", index)
        if "storage" not in known:
            yield spec.issue(
                path, f"the problem lays out its inputs itself, so {name!r} says nothing"
            )
        elif name == "expanded" and not getattr(family, "cotangents", True):
            yield spec.issue(path, "the problem has no cotangents, which alone can be 'expanded'")
        elif name == "expanded" and "gradients" not in spec.checks:
            message = "without the check 'gradients' there are no cotangents to be 'expanded'"
            yield spec.issue(path, message)
