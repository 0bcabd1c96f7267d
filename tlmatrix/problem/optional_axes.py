"""Optional axes: a case may have them though its spec does not list them.

They are the distribution of inputs (`values`), their memory layout (`storage`), and bounds on
sequence lengths larger than the longest (`max_seqlen_q`, `max_seqlen_k`). Fuzz cases and explicit
cases may have them. They do not change the id of a case without them.
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


def optional_axes(family: Family) -> frozenset[str]:
    """The optional axes that a family reads; none without the attribute `optional_axes`."""
    return frozenset(getattr(family, "optional_axes", ())) & frozenset(OPTIONAL_AXES)


def lint_optional_axes(spec: Spec, family: Family) -> Iterator[Issue]:
    """An issue for each optional axis, in a case or in `fuzz`, that the family does not read."""
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
                path, f"storage {name!r} has no effect: the problem has no axis `storage`"
            )
        elif name == "expanded" and not getattr(family, "cotangents", True):
            yield spec.issue(
                path, "storage 'expanded' has no effect: the problem has no cotangents"
            )
        elif name == "expanded" and "gradients" not in spec.checks:
            message = "storage 'expanded' has no effect: it needs the check 'gradients'"
            yield spec.issue(path, message)
