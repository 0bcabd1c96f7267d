"""Checks of the key `problem`, of its oracles (`relations`, `agree`), and of expressions."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tlmatrix.dtypes import DTYPES, dtype_meant
from tlmatrix.spec.expr.expression import WORDS, Expression, ExpressionError
from tlmatrix.spec.issues import Fault, KeyPath
from tlmatrix.spec.lint.messages import show
from tlmatrix.spec.model.calling import call_faults, output_faults, results_of, written_by
from tlmatrix.spec.model.checks import FINITE, OF_BATCHES
from tlmatrix.spec.model.fields import TARGET
from tlmatrix.spec.model.packed import is_packed, packed_axes, packed_lists
from tlmatrix.spec.model.spec import DERIVED, FAMILIES, DeclaredProblem, OutputDecl
from tlmatrix.spec.values import explain_lengths, label
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from tlmatrix.spec.model.spec import Agreement, InputDecl, RelationDecl, Spec
    from tlmatrix.spec.values import Value


def problem_faults(spec: Spec, axes: Collection[str]) -> Iterator[Fault]:
    """An unknown problem name, or faults of declared tensors; `axes` are those in the file."""
    problem = spec.problem
    if isinstance(problem, str):
        module, colon, name = problem.partition(":")
        dotted = [*module.split("."), *name.split(".")]
        if problem not in FAMILIES and not (colon and all(part.isidentifier() for part in dotted)):
            hint = suggestion(problem, FAMILIES, "Problems")
            message = f"unknown problem {problem!r}{hint}, package.module:Class, or a mapping"
            yield Fault(("problem",), message)
        return
    for name, tensor in problem.inputs.items():
        path: KeyPath = ("problem", "inputs", name)
        if name in axes:
            yield Fault(path, f"the input {name!r} has the name of an axis", at_key=True)
        elif name in WORDS:
            message = (
                f"an input cannot be called {name!r}: expressions read that as a constant; "
                "rename the input"
            )
            yield Fault(path, message, at_key=True)
        yield from _input_faults(tensor, axes, spec, path)
        yield from _tensor_faults(tensor, axes, spec, path)
    for name in problem.output_names:
        if name in problem.inputs or name in axes:
            what = "an input" if name in problem.inputs else "an axis"
            index = problem.output_names.index(name)
            path = ("problem", "outputs", name if isinstance(problem.outputs, dict) else index)
            yield Fault(path, f"the output {name!r} has the name of {what}", at_key=True)
    if isinstance(problem.outputs, dict):
        for name, output in problem.outputs.items():
            yield from _tensor_faults(output, axes, spec, ("problem", "outputs", name))
    if problem.reference is not None and problem.reference.operands is not None:
        place = ("problem", "reference", "operands")
        yield from _dtype_faults(problem.reference.operands, axes, spec, place)
        dtype = DTYPES.get(problem.reference.operands)
        if dtype is not None and not dtype.floating:
            yield Fault(place, f"operands: {dtype.name} is no floating-point dtype")
    yield from _packed_axis_faults(spec, problem)


def returns_faults(spec: Spec, problem: DeclaredProblem) -> Iterator[Fault]:
    """Unknown and missing outputs in `returns` and `call` of the spec and of its reference."""
    yield from output_faults(spec.call, spec.returns, problem.tensors, ())
    reference = problem.reference
    if reference is None:
        return
    path = ("problem", "reference")
    yield from call_faults(reference.call, reference.returns, path)
    outputs = problem.output_names
    yield from output_faults(reference.call, reference.returns, outputs, path)
    if reference.returns:
        named = {*results_of(reference.returns), *written_by(reference.call, outputs)}
        for name in outputs:
            if name not in named:
                message = f"the reference does not return {name!r}; name it in 'returns'"
                yield Fault((*path, "returns"), message)


def _input_faults(
    tensor: InputDecl, axes: Collection[str], spec: Spec, path: KeyPath
) -> Iterator[Fault]:
    """Faults of an input: it has a shape and a dtype, or is derived from a packed axis."""
    for index, bound in enumerate(tensor.between or ()):
        if isinstance(bound, Expression):
            yield from unknown_names(bound, axes, spec, (*path, "between", index))
    if tensor.between is not None and len(tensor.between) != 2:
        count = len(tensor.between)
        message = f"'between' needs two bounds, the least and the largest value; got {count}"
        yield Fault((*path, "between"), message)
    if tensor.distinct and tensor.between is None:
        yield Fault((*path, "distinct"), "distinct belongs to integers with between")
    if tensor.between is not None and tensor.fill is not None:
        message = "'fill' and 'between' both define the values; remove one"
        yield Fault((*path, "fill"), message)
    written = [key for key in DERIVED if getattr(tensor, key) is not None]
    if not written:
        for other in ("page_size", "unseen"):
            if getattr(tensor, other) is not None:
                yield Fault((*path, other), f"{other} belongs to an input with pages_of")
        for key in ("shape", "dtype"):
            if getattr(tensor, key) is None:
                message = (
                    f"the key {key!r} is missing; add it, or derive the input from a packed axis, "
                    "such as offsets_of: seqlens"
                )
                yield Fault(path, message)
        return
    key = written[0]
    for other in (*written[1:], "shape", "fill", "between"):
        if getattr(tensor, other) is not None:
            message = f"{key} defines the tensor; remove {other}"
            yield Fault((*path, other), message, at_key=True)
    if tensor.grad:
        yield Fault((*path, "grad"), f"{key} makes integers, which have no gradient; remove grad")
    if tensor.dtype not in (None, "int32", "int64"):
        yield Fault((*path, "dtype"), f"{key} makes int32 or int64, not {tensor.dtype}")
    if (key == "pages_of") is (tensor.page_size is None):
        message = (
            "pages_of needs page_size, the rows of a page"
            if tensor.page_size is None
            else f"page_size belongs to pages_of, not to {key}"
        )
        yield Fault((*path, key), message, at_key=True)
    if tensor.unseen is not None and key != "pages_of":
        yield Fault((*path, "unseen"), f"unseen belongs to pages_of, not to {key}", at_key=True)
    of: Expression = getattr(tensor, key)
    place = (*path, key)
    unknown = list(unknown_names(of, axes, spec, place))
    yield from unknown
    if isinstance(tensor.page_size, Expression):
        yield from unknown_names(tensor.page_size, axes, spec, (*path, "page_size"))
    if tensor.unseen is not None:
        yield from unknown_names(tensor.unseen, axes, spec, (*path, "unseen"))
    whole = all(name in spec.axes for name in of.names)  # another is malformed, and reported
    if not unknown and whole and not any(any(map(is_packed, spec.axes[n])) for n in of.names):
        message = (
            f"{str(of)!r} names no packed axis: an axis whose values are lists of lengths, "
            "[[17, 64, 1], [0, 5]]"
        )
        yield Fault(place, message)


def _packed_axis_faults(spec: Spec, problem: DeclaredProblem) -> Iterator[Fault]:
    """Values of packed axes that are not lengths, and lists that no axis values can give."""
    for path, lengths in packed_lists(problem):
        if any(any(map(is_packed, spec.axes.get(name, ()))) for name in lengths.names):
            yield from never_faults(lengths, spec, path, _explain_list)
    for axis in packed_axes(spec):
        for index, value in enumerate(spec.axes[axis]):
            if reason := explain_lengths(value, axis):
                yield Fault(("axes", axis, index), reason)
        for tier, settings in spec.tiers.items():
            for index, value in enumerate((settings.axes or {}).get(axis, ())):
                if reason := explain_lengths(value, axis):
                    yield Fault(("tiers", tier, "axes", axis, index), reason)


def _explain_list(value: object) -> str | None:
    if isinstance(value, dict):
        return explain_lengths(value)
    good = isinstance(value, list | tuple) and all(type(n) is int and n >= 0 for n in value)
    return None if good else f"{show(value)} is not a list of lengths (whole numbers, 0 or more)"


def _tensor_faults(
    tensor: InputDecl | OutputDecl, axes: Collection[str], spec: Spec, path: KeyPath
) -> Iterator[Fault]:
    for index, size in enumerate(tensor.shape or ()):
        if isinstance(size, Expression):
            place = (*path, "shape", index)
            unknown = list(unknown_names(size, axes, spec, place))
            yield from unknown
            if not unknown:
                yield from never_faults(size, spec, place, lambda _: None)
    dims = getattr(tensor, "dims", None)
    if dims is not None and tensor.shape is not None and len(dims) != len(tensor.shape):
        message = f"'dims' has {len(dims)} names, and the shape has {len(tensor.shape)} dimensions"
        yield Fault((*path, "dims"), message)
    if tensor.dtype is not None:
        yield from _dtype_faults(tensor.dtype, axes, spec, (*path, "dtype"))


def _dtype_faults(dtype: str, axes: Collection[str], spec: Spec, place: KeyPath) -> Iterator[Fault]:
    """An unknown dtype, or an unknown axis of dtypes."""
    if not dtype.startswith("$"):
        if dtype not in DTYPES:
            known = [*DTYPES, *(f"${axis}" for axis in axes)]
            hint = suggestion(dtype_meant(dtype), known, "Dtypes")
            yield Fault(place, f"unknown dtype {dtype!r}{hint}")
        return
    axis = dtype[1:]
    if axes and axis not in axes:
        known = [f"${axis}" for axis in axes]
        message = f"unknown axis {dtype!r}{suggestion(dtype, known, 'Axes')}"
        yield Fault(place, message)
    for index, value in enumerate(spec.axes.get(axis, ())):
        if not isinstance(value, str) or value not in DTYPES:
            hint = suggestion(dtype_meant(value), DTYPES, "Dtypes")
            yield Fault(("axes", axis, index), f"unknown dtype {show(value)}{hint}")


def tolerance_faults(spec: Spec, problem: DeclaredProblem) -> Iterator[Fault]:
    """Tolerances of unknown tensors."""
    known = problem.tensors
    for name in spec.tolerance.tensors:
        if name not in known:
            hint = suggestion(name, sorted(known), "Tensors")
            yield Fault(("tolerance", name), f"unknown tensor {name!r}{hint}", at_key=True)
    for arch, changes in spec.tolerance.by_arch.items():
        for name in changes:
            if name not in known and name != "default":
                hint = suggestion(name, ["default", *sorted(known)], "Tensors")
                path = ("tolerance", "by_arch", arch, name)
                yield Fault(path, f"unknown tensor {name!r}{hint}", at_key=True)


# Relations, agreements, and problems without a reference ----------------------------------------


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
    each: RelationDecl, path: KeyPath, axes: Collection[str], declared: DeclaredProblem | None
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
        yield from _relation_tensor_faults(each, path, declared)


def _name_faults(name: str, path: KeyPath, declared: DeclaredProblem | None) -> Iterator[Fault]:
    if ":" in name:
        if not re.match(TARGET, name):
            yield Fault(path, f"{name!r} must be written package.module:name")
    elif declared is not None:
        known = [FINITE, *(OF_BATCHES if any(packed_lists(declared)) else ())]
        if name in known:
            return
        hint = suggestion(name, known, "A declared problem has")
        yield Fault(path, f"unknown relation {name!r}{hint}, or package.module:name")


def _relation_tensor_faults(
    each: RelationDecl, path: KeyPath, declared: DeclaredProblem
) -> Iterator[Fault]:
    inputs, outputs = list(declared.inputs), list(declared.output_names)
    named: list[tuple[KeyPath, str, list[str], str, bool]] = [
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
    side: Agreement, path: KeyPath, spec: Spec, axes: Collection[str]
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
    if not spec.compares_values and "numeric" in spec.checks:
        if not {"relations", "agree", "checks"} & set(broken):
            message = (
                "the key 'reference' is missing in 'problem'; add it, or add 'relations' or "
                "'agree' to check results without a reference, or leave the check of values out: "
                "checks: {without: [numeric]}"
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


# Expressions: unknown names, and values that raise errors ---------------------------------------

RUN_NAMES = ("arch", "backend")
"""Names of a run, which expressions may use besides the axes where a key allows it."""

_COMBINATIONS = 1000
"""Value combinations on which a constraint is evaluated; beyond them, every pair of values."""


def condition_faults(spec: Spec, axes: Collection[str]) -> Iterator[Fault]:
    """Faults of every constraint and `when`; `axes` are those in the file, even if malformed."""
    constraints = [each.expression for each in spec.constraints]
    for index, expression in enumerate(constraints):
        path = ("constraints", index, "require")
        unknown = list(unknown_names(expression, axes, spec, path))
        yield from unknown or _trial_faults(expression, spec, path)
        if expression in constraints[:index]:
            yield Fault(path, f"the constraint {spec.constraints[index].text!r} appears twice")
    for index, expression in enumerate(spec.compile_axes):
        where = ("compile_axes", index)
        unknown = list(unknown_names(expression, axes, spec, where))
        yield from unknown or _trial_faults(expression, spec, where)
    for key in ("determinism", "relations", "agree", "codegen", "known_bugs"):
        for index, each in enumerate(getattr(spec, key)):
            if each.when is not None:
                yield from unknown_names(each.when, axes, spec, (key, index, "when"), RUN_NAMES)
    if spec.cuda_graph is not None:
        when = spec.cuda_graph.when
        yield from unknown_names(when, axes, spec, ("cuda_graph", "when"), RUN_NAMES)
    for index, rule in enumerate(spec.codegen):
        if rule.model_fields_set <= {"when", "kernel"}:
            message = "the codegen rule expects nothing; add instructions, spills, registers, …"
            yield Fault(("codegen", index), message)


def unknown_names(
    expression: Expression,
    axes: Collection[str],
    spec: Spec,
    path: KeyPath,
    others: Collection[str] = (),
) -> Iterator[Fault]:
    """Names of an expression that are neither axes nor `others`, each with a suggestion."""
    if not axes:
        return  # the axes are malformed, and reported
    known = [*axes, *others]
    for name in sorted(expression.names.difference(known), key=expression.offset_of):
        holders = [axis for axis, values in spec.axes.items() if name in values]
        if holders:
            hint = f"; it is a value of the axis {holders[0]!r}, so quote it: '{name}'"
        elif name in RUN_NAMES:
            hint = "; it is known only when a case runs, so it cannot be used here"
        else:
            hint = suggestion(name, known, "Names here")
        message = f"unknown name {name!r} in {expression.text!r}{hint}"
        yield Fault(path, message, offset=expression.offset_of(name))


def _trial_faults(expression: Expression, spec: Spec, path: KeyPath) -> Iterator[Fault]:
    """The first values of the axes for which a constraint raises, such as none in `window < 3`."""
    names = sorted(expression.names)
    if not all(name in spec.axes for name in names):
        return
    axes = [spec.axes[name] for name in names]
    combinations: Iterable[tuple[Value, ...]] = itertools.product(*axes)
    if math.prod(map(len, axes)) > _COMBINATIONS:
        combinations = itertools.chain(
            itertools.islice(combinations, _COMBINATIONS), _pairs_of_values(axes)
        )
    for values in combinations:
        try:
            expression.evaluate(dict(zip(names, values, strict=True)))
        except ExpressionError as problem:
            example = ", ".join(
                f"{name}={label(value)}" for name, value in zip(names, values, strict=True)
            )
            message = f"{expression.text!r} has no value for {example}: {problem.reason}"
            yield Fault(path, message, offset=problem.offset)
            return


def _pairs_of_values(axes: Sequence[Sequence[Value]]) -> Iterator[tuple[Value, ...]]:
    """Every pair of values of two axes once, beside the first and the last values of the others."""
    for one, other in itertools.combinations(range(len(axes)), 2):
        for number, (left, right) in enumerate(itertools.product(axes[one], axes[other])):
            row = [values[-(number % 2)] for values in axes]
            row[one], row[other] = left, right
            yield tuple(row)


def never_faults(
    expression: Expression, spec: Spec, path: KeyPath, explain: Callable[[object], str | None]
) -> Iterator[Fault]:
    """A fault if no values of the axes give the expression a valid value.

    `explain` returns why a value is invalid, or None. An expression that is invalid for some values
    only is accepted: constraints may exclude these.
    """
    names = sorted(expression.names)
    if not all(spec.axes.get(name) for name in names):
        return
    found: Fault | None = None
    combinations = itertools.product(*(spec.axes[name] for name in names))
    for values in itertools.islice(combinations, _COMBINATIONS):
        offset = 0
        try:
            reason = explain(expression.evaluate(dict(zip(names, values, strict=True))))
        except ExpressionError as problem:
            reason, offset = problem.reason, problem.offset
        if reason is None:
            return
        found = found or Fault(path, f"{expression.text!r}: {reason}", offset=offset)
    if found is not None:
        yield found
