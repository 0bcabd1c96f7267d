"""Which cases of a spec are timed; imports no PyTorch, so that a mistake is told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.matrix import Case
from tlmatrix.spec.issues import SpecError
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["bench_cases"]


def bench_cases(spec: Spec, given: Sequence[Mapping[str, Value]] = ()) -> list[Case]:
    """The cases to time: those given, else those of the spec's section `bench`.

    Raises:
        SpecError: there is no such section, or an axis that the spec has not.
    """
    written = given or (spec.bench.cases if spec.bench is not None else ())
    if not written:
        words = "the spec names no case to time: add a section `bench`, or give --case"
        raise SpecError([spec.issue((), words)])
    for values in given:
        for axis in values:
            if axis not in spec.axes:
                words = (
                    f"--case: the spec has no axis {axis!r}{suggestion(axis, spec.axes, 'Axes')}"
                )
                raise SpecError([spec.issue(("axes",), words)])
    first = {name: values[0] for name, values in spec.axes.items()}
    cases = [Case(spec.name, {**first, **values}, "extra") for values in written]
    return list(dict.fromkeys(cases))
