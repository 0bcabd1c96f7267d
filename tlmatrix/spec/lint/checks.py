"""Checks of the oracles of a spec: relations, agreements, and problems without a reference."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.issues import Fault
from tlmatrix.spec.model.fields import TARGET
from tlmatrix.spec.model.packed import packed_lists
from tlmatrix.spec.model.parts import OutputDecl
from tlmatrix.spec.model.relations import FINITE, OF_BATCHES
from tlmatrix.spec.model.spec import DeclaredProblem
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tlmatrix.spec.model.spec import Agreement, RelationDecl, Spec


def oracle_faults(spec: Spec, axes: Collection[str], broken: Collection[str]) -> Iterator[Fault]:
    """Faults of `relations`, `agree`, and of a problem without a reference.

    `axes` are the names in the file, `broken` the root keys with malformed values.
    """
    declared = spec.problem if isinstance(spec.problem, DeclaredProblem) else None
    for number, each in enumerate(spec.relations):
        yield from _relation_faults(each, ("relations", number), axes, declared)
    for number, side in enumerate(spec.agree):
        yield from _agreement_faults(side, ("agree", number), spec, axes)
    for key, check in (("relations", "relations"), ("agree", "agreement")):
        if getattr(spec, key) and check not in spec.checks and "checks" not in broken:
            message = f"{key!r} has no effect: 'checks' leaves out {check!r}; add it"
            yield Fault((key,), message, at_key=True)
    if "problem" not in broken and declared is not None and declared.reference is None:
        yield from _no_reference_faults(spec, declared, broken)


def _relation_faults(
    each: RelationDecl,
    path: tuple[str | int, ...],
    axes: Collection[str],
    declared: DeclaredProblem | None,
) -> Iterator[Fault]:
    if len(each.forms) != 1:
        given = " and ".join(each.forms) or "none"
        message = (
            "a relation needs exactly one of name, permute, split, scale and idempotent; "
            f"got {given}"
        )
        yield Fault(path, message)
        return
    if each.gives and each.scale is None:
        yield Fault((*path, "gives"), "'gives' needs 'scale', the factors of inputs", at_key=True)
    if each.name is not None:
        yield from _name_faults(each.name, (*path, "name"), declared)
    if each.permute is not None or each.split is not None:
        key = each.forms[0]
        dim = each.permute or each.split
        if declared is None:
            message = f"{key!r} needs a problem declared in the spec; use 'name' for other problems"
            yield Fault((*path, key), message, at_key=True)
            return
        dims = list(dict.fromkeys(_dims(declared)))
        if dim not in dims:
            hint = suggestion(dim, dims, "Dimensions of inputs")
            yield Fault((*path, key), f"unknown dimension {dim!r}{hint}")
        elif key == "split" and axes and dim not in axes:
            message = f"{dim!r} is not an axis; 'split' needs one, to call the entry with a part"
            yield Fault((*path, key), message)
    if declared is not None:
        yield from _tensor_faults(each, path, declared)


def _name_faults(
    name: str, path: tuple[str | int, ...], declared: DeclaredProblem | None
) -> Iterator[Fault]:
    if ":" in name:
        if not re.match(TARGET, name):
            yield Fault(path, f"{name!r} must be written package.module:name")
    elif declared is not None:
        known = [FINITE, *(OF_BATCHES if any(packed_lists(declared)) else ())]
        if name in known:
            return
        hint = suggestion(name, known, "A declared problem has")
        yield Fault(path, f"unknown relation {name!r}{hint}, or package.module:name")


def _tensor_faults(
    each: RelationDecl, path: tuple[str | int, ...], declared: DeclaredProblem
) -> Iterator[Fault]:
    inputs, outputs = list(declared.inputs), list(declared.output_names)
    named: list[tuple[tuple[str | int, ...], str, list[str], str, bool]] = [
        (("scale", name), name, inputs, "input", True) for name in each.scale or ()
    ]
    named += [(("gives", name), name, outputs, "output", True) for name in each.gives]
    for name, output in (each.idempotent or {}).items():
        named.append((("idempotent", name), name, inputs, "input", True))
        named.append((("idempotent", name), output, outputs, "output", False))
    for place, name, known, what, at_key in named:
        if name not in known:
            hint = suggestion(name, known, f"{what.capitalize()}s")
            yield Fault((*path, *place), f"unknown {what} {name!r}{hint}", at_key=at_key)


def _agreement_faults(
    side: Agreement, path: tuple[str | int, ...], spec: Spec, axes: Collection[str]
) -> Iterator[Fault]:
    if not (side.axis or side.set or side.factory_args or side.entry or side.backend):
        message = "an agreement needs one of axis, set, factory_args, entry and backend; got none"
        yield Fault(path, message)
    if side.axis is not None and axes:
        if side.axis not in axes:
            message = f"unknown axis {side.axis!r}{suggestion(side.axis, axes, 'Axes')}"
            yield Fault((*path, "axis"), message)
        elif len(spec.axes.get(side.axis, (0, 1))) < 2:
            message = f"the axis {side.axis!r} has one value; an agreement needs two or more"
            yield Fault((*path, "axis"), message)
    if side.factory_args and spec.factory is None:
        message = "'factory_args' belongs to a factory; set arguments of an entry with 'set'"
        yield Fault((*path, "factory_args"), message, at_key=True)


def _no_reference_faults(
    spec: Spec, declared: DeclaredProblem, broken: Collection[str]
) -> Iterator[Fault]:
    """Keys that a declared problem without a reference lacks."""
    if not (spec.relations or spec.agree):
        if not {"relations", "agree"} & set(broken):
            message = (
                "the key 'reference' is missing in 'problem'; add it, or add 'relations' or "
                "'agree' to check results without a reference"
            )
            yield Fault(("problem",), message, at_key=True)
        return
    outputs = declared.outputs
    if not isinstance(outputs, dict):
        message = "without a reference, outputs need shapes: outputs: {y: {shape: [rows, cols]}}"
        yield Fault(("problem", "outputs"), message)
        return
    for name, output in outputs.items():
        if not isinstance(output, OutputDecl) or output.shape is None:
            message = f"without a reference, the output {name!r} needs a shape"
            yield Fault(("problem", "outputs", name), message, at_key=True)


def _dims(declared: DeclaredProblem) -> Iterable[str]:
    """Sizes of inputs that are a plain name, not an expression of several."""
    for tensor in declared.inputs.values():
        for size in tensor.sizes:
            if isinstance(size, Expression) and str(size).isidentifier():
                yield str(size)
