"""Decides whether rounding explains the error of an element: a float64 run is then closer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.explain.location import Location
    from tlmatrix.interpreter import Explanation
    from tlmatrix.interpreter.explain import LaunchLog
    from tlmatrix.problem import Problem

_LABEL = 10


def precision_lines(
    explanation: Explanation, problem: Problem, location: Location, log: LaunchLog
) -> Iterator[str]:
    """The lines that compare an element and its float64 run with the reference.

    There are none if the element has several writers, or if other kernels computed its inputs,
    unless these could be run in float64 as well.
    """
    exact, whole = explanation.rounding.exact, True
    if exact is None:
        exact, whole = explanation.exact, False
        if explanation.earlier is not None or len(explanation.writers) != 1:
            return
        if any(source.made_by for source in explanation.sources):
            return
    if exact is None or not problem.has_reference:
        return
    if explanation.index != location.mine and explanation.buffer != location.name:
        return
    reference = float(problem.reference()[location.name][location.index])
    error, wide = abs(explanation.value - reference), abs(exact - reference)
    yield ""
    yield f"  {'reference':<{_LABEL}}{reference:.6g}"
    if error != error or (error > 0 and wide > error / 2):  # noqa: PLR0124 - NaN is unequal to itself
        rounded = not whole and _inputs_may_be_rounded(explanation, location, log)
        verdict = "the kernel's inputs may have been rounded before" if rounded else "not precision"
        far = f"a float64 run is as far from it ({wide:.1e} of {error:.1e})"
        if not math.isfinite(error):
            far = f"a float64 run gives {exact}"
        yield f"  {'':<{_LABEL}}{far}: {verdict}"
    elif error > 0:
        yield (
            f"  {'':<{_LABEL}}a float64 run is close to it ({wide:.1e} of "
            f"{error:.1e}): the error is precision"
        )


def _inputs_may_be_rounded(explanation: Explanation, location: Location, log: LaunchLog) -> bool:
    """Whether an earlier kernel may have rounded a tensor that the explained kernel reads."""
    inputs = {tensor.data_ptr() for tensor in location.given.values()}
    read = [explanation.tensors(source.buffer) for source in explanation.sources]
    return any(tensor.data_ptr() not in inputs for tensor in read) and any(
        launch.live[name].is_floating_point()
        for launch in log.launches
        if launch.number < explanation.launch
        for name in launch.written
    )
