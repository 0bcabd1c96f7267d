"""Checks of the key `problem`: its name, or the tensors that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.dtypes import DTYPES, dtype_meant
from tlmatrix.spec.expr.expression import WORDS, Expression
from tlmatrix.spec.issues import Fault
from tlmatrix.spec.lengths import explain_lengths
from tlmatrix.spec.lint.expressions import never_faults, unknown_names
from tlmatrix.spec.lint.messages import show
from tlmatrix.spec.model.calling import call_faults, output_faults, results_of, written_by
from tlmatrix.spec.model.packed import is_packed, packed_axes, packed_lists
from tlmatrix.spec.model.parts import DERIVED
from tlmatrix.spec.model.spec import FAMILIES, DeclaredProblem
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tlmatrix.spec.model.spec import InputDecl, OutputDecl, Spec


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
        path: tuple[str | int, ...] = ("problem", "inputs", name)
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
    tensor: InputDecl, axes: Collection[str], spec: Spec, path: tuple[str | int, ...]
) -> Iterator[Fault]:
    """Faults of an input: it has a shape and a dtype, or is derived from a packed axis."""
    for index, bound in enumerate(tensor.between or ()):
        if isinstance(bound, Expression):
            yield from unknown_names(bound, axes, spec, (*path, "between", index))
    if tensor.between is not None and len(tensor.between) != 2:
        count = len(tensor.between)
        message = f"'between' needs two bounds, the least and the largest value; got {count}"
        yield Fault((*path, "between"), message)
    if tensor.between is not None and tensor.fill is not None:
        message = "'fill' and 'between' both define the values; remove one"
        yield Fault((*path, "fill"), message)
    written = [key for key in DERIVED if getattr(tensor, key) is not None]
    if not written:
        if tensor.page_size is not None:
            yield Fault((*path, "page_size"), "page_size belongs to an input with pages_of")
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
    of: Expression = getattr(tensor, key)
    place = (*path, key)
    unknown = list(unknown_names(of, axes, spec, place))
    yield from unknown
    if isinstance(tensor.page_size, Expression):
        yield from unknown_names(tensor.page_size, axes, spec, (*path, "page_size"))
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
    tensor: InputDecl | OutputDecl,
    axes: Collection[str],
    spec: Spec,
    path: tuple[str | int, ...],
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


def _dtype_faults(
    dtype: str, axes: Collection[str], spec: Spec, place: tuple[str | int, ...]
) -> Iterator[Fault]:
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
