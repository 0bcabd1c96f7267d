"""Selects the cases of a spec to time, without importing PyTorch, so that errors appear at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.matrix import Case
from tlmatrix.spec.issues import SpecError
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


def bench_cases(spec: Spec, given: Sequence[Mapping[str, Value]] = ()) -> list[Case]:
    """The cases to time: those `given`, or else those of the spec's section `bench`.

    Raises:
        SpecError: the spec has no such section, or lacks an axis of a given case.
    """
    written = given or (spec.bench.cases if spec.bench is not None else ())
    if not written:
        message = "the spec lists no cases to time: add a section `bench`, or give --case"
        raise SpecError([spec.issue((), message)])
    for values in given:
        for axis in values:
            if axis not in spec.axes:
                message = (
                    f"--case: the spec has no axis {axis!r}{suggestion(axis, spec.axes, 'Axes')}"
                )
                raise SpecError([spec.issue(("axes",), message)])
    first = {name: values[0] for name, values in spec.axes.items()}
    cases = [Case(spec.name, {**first, **values}, "extra") for values in written]
    return list(dict.fromkeys(cases))
