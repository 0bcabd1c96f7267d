"""Checks the names of a problem in `call`, `factory_args`, `returns` and `tolerance` of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.model.calling import items_of, names_in, output_faults
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec


def lint_arguments(spec: Spec, names: Collection[str], tensors: Collection[str]) -> Iterator[Issue]:
    """An issue for each unknown name in `call` and `factory_args`, and each tensor in the latter.

    Known are `names`, `tensors`, and the axes and `returns` of the spec.
    """
    known = {*names, *spec.axes}
    everything = {*known, *tensors}
    for key, item in items_of(spec.call):
        for name in sorted(names_in(item)):
            if name not in everything and name not in spec.results:
                hint = nearest(name, everything)
                yield spec.issue(("call", key), f"call: the problem has no {name!r}{hint}")
    for argument, value in spec.factory_args.items():
        if not isinstance(value, str):
            continue
        try:
            used = Expression(value).names
        except ExpressionError:
            continue  # The spec loader reports it.
        for name in sorted(used - known):
            tensor = "a tensor, which has no value at compile time"
            what = tensor if name in tensors else f"unknown{nearest(name, known)}"
            yield spec.issue(
                ("factory_args", argument), f"factory_args: {argument}: the name {name!r} is {what}"
            )


def lint_results(spec: Spec, results: Collection[str]) -> Iterator[Issue]:
    """An issue for each name in `returns` and `tolerance` that is no output or gradient."""
    for fault in output_faults(spec.call, spec.returns, results, ()):
        yield spec.issue(fault.path, f"{fault.path[0]}: {fault.message}")
    for name in spec.tolerance.tensors:
        if name not in results:
            yield spec.issue(
                ("tolerance", name), f"tolerance: unknown tensor {name!r}{nearest(name, results)}"
            )
    for arch, changes in spec.tolerance.by_arch.items():
        for name in changes:
            if name != "default" and name not in results:
                yield spec.issue(
                    ("tolerance", "by_arch", arch, name),
                    f"tolerance: unknown tensor {name!r}{nearest(name, {*results, 'default'})}",
                )
