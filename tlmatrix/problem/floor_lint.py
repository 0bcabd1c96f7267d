"""Warns about tolerance floors so large that no wrong result can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.dtypes import DTYPES
from tlmatrix.spec.model.spec import DeclaredProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.checks import AllowanceChange
    from tlmatrix.spec.model.spec import Spec

_LARGEST = 128.0
"""A bound on the elements of inputs: 16 standard deviations of 8 (`values: large`)."""


def lint_floors(spec: Spec) -> Iterator[Issue]:
    """An issue for each floor that is at least the largest possible error of its tensors."""
    most = {name: 2 * largest for name, largest in _largest(spec).items()}
    if not most:
        return
    for path, name, change in _changes(spec):
        bound = max(most.values()) if name == "default" else most.get(name)
        if isinstance(change.floor, float | int) and bound is not None and change.floor >= bound:
            whose = "a result" if name == "default" else name
            yield spec.issue(
                (*path, "floor"),
                f"with the floor {change.floor:g} every finite result passes, even zeros: errors "
                f"of {whose} are at most {bound:g}; remove the floor to allow rounding errors only",
            )


def _changes(spec: Spec) -> Iterator[tuple[tuple[str, ...], str, AllowanceChange]]:
    tolerance = spec.tolerance
    yield ("tolerance", "default"), "default", tolerance.default
    for name, change in tolerance.tensors.items():
        yield ("tolerance", name), name, change
    for arch, changes in tolerance.by_arch.items():
        for name, change in changes.items():
            yield ("tolerance", "by_arch", arch, name), name, change


def _largest(spec: Spec) -> Mapping[str, float]:
    """The largest magnitude of each result, if the problem or its dtypes bound it."""
    if isinstance(spec.problem, DeclaredProblem):
        outputs = spec.problem.outputs
        declared = outputs if isinstance(outputs, dict) else {}
        found = {}
        for name in spec.problem.output_names:
            dtype = declared[name].dtype if name in declared else None
            of_inputs = {each.dtype_text for each in spec.problem.inputs.values()}
            found[name] = max(
                (_range_of(spec, each) for each in ({dtype} if dtype else of_inputs)),
                default=float("inf"),
            )
        return found
    dtypes = max((_range_of(spec, name) for name in ("$dtype", "$out_dtype")), default=0.0)
    match spec.problem:
        case "attention":
            # out is a weighted mean of values; gradients are sums, bounded by their dtype.
            return {"out": _LARGEST, "dq": dtypes, "dk": dtypes, "dv": dtypes}
        case "gemm":
            terms = max(
                (each for each in spec.axes.get("k", ()) if isinstance(each, int)), default=0
            )
            return {"c": min(dtypes or float("inf"), (1 + terms) * _LARGEST**2)}
        case "collective":
            ranks = max(
                (each for each in spec.axes.get("world", ()) if isinstance(each, int)), default=1
            )
            return {"y": ranks * _LARGEST}
    return {}


def _range_of(spec: Spec, dtype: str) -> float:
    """The largest finite value of a dtype, or of the dtypes of an axis: `$dtype`."""
    names = spec.axes.get(dtype[1:], ()) if dtype.startswith("$") else (dtype,)
    known = [DTYPES[name] for name in names if isinstance(name, str) and name in DTYPES]
    # No bound for integers, which are compared exactly.
    return max((each.largest if each.floating else float("inf") for each in known), default=0.0)
