"""Names that a spec uses of its problem: in `call`, `factory_args`, `returns` and `tolerance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.model.calling import items_of, names_in, output_faults
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec

__all__ = ["lint_arguments", "lint_results"]


def lint_arguments(spec: Spec, names: Collection[str], tensors: Collection[str]) -> Iterator[Issue]:
    """Unknown names in `call` (tensors and other names) and in `factory_args` (no tensors).

    The axes of the spec and its `returns` are known besides.
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
            continue  # an issue of the loader's
        for name in sorted(used - known):
            what = "a tensor" if name in tensors else f"unknown{nearest(name, known)}"
            yield spec.issue(
                ("factory_args", argument),
                f"factory_args: {argument}: the name {name!r} is {what}",
            )


def lint_results(spec: Spec, results: Collection[str]) -> Iterator[Issue]:
    """Names in `returns` and `tolerance` that are no output or gradient of the problem."""
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
