"""Finds the interface of a TileLang factory by tracing it with guessed arguments.

The interpreter calls the factory with a guess for every argument without a default. Sizes get
distinct numbers, so the dimensions of tensors show which argument they come from. A dtype argument
is changed to find the tensors that follow it.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.interface import (
    SETTINGS,
    Argument,
    Interface,
    Number,
    Tensor,
    annotation_text,
    argument_kind,
)
from tlmatrix.draft.sizes import COUNT, candidates
from tlmatrix.draft.targets import syntax_tree
from tlmatrix.draft.uses import uses_of
from tlmatrix.spec.expr.expression import Expression, ExpressionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.draft.calls import Call
    from tlmatrix.draft.targets import Target

_PRIMES = (1, 3, 5, 7, 11, 13, 17, 19)
_SMALL = (7, 5, 11, 13, 3, 17)
_LADDER: tuple[tuple[int, int], ...] = ((128, 4), (64, 2), (16, 8))
"""(sizes, counts) to try if the factory rejects distinct numbers."""

_Trial = tuple["dict[str, Any]", Any]
"""Values of the arguments, and the PrimFunc for them."""


def trace(
    factory: Callable[..., Any], target: str, parameters: Sequence[inspect.Parameter]
) -> Interface:
    """Trace a factory with guessed arguments.

    Raises:
        Exception: the factory raises; it may not accept the guesses.
    """
    arguments = guesses(parameters)
    values, kernel = _traced(factory, arguments)
    arguments = tuple(replace(item, value=values[item.name]) for item in arguments)
    trials: list[_Trial] = [(values, kernel.prim_func)]
    trials += _perturbed(factory, arguments, values)
    kinds = ("size", "tile")
    names = [item.name for item in arguments if item.kind in kinds and _positive(item.value)]
    tiles = {item.value for item in arguments if item.kind == "tile" and _positive(item.value)}
    found = list(_parameters(trials, names, tiles))
    dtype_of, dtypes = _dtype_arguments(factory, arguments, values, found)
    found = [
        replace(item, dtype_of=dtype_of.get(item.name)) if isinstance(item, Tensor) else item
        for item in found
    ]
    given = [item for k, item in enumerate(found) if k not in kernel.out_idx]
    results = [item for k, item in enumerate(found) if k in kernel.out_idx]
    used = uses_of(kernel.prim_func)
    symbols = dict.fromkeys(name for item in found for name in _names(item) if name not in values)
    return Interface(
        target,
        factory=True,
        parameters=tuple(given),
        results=tuple(item for item in results if isinstance(item, Tensor)),
        arguments=arguments,
        symbols=dict.fromkeys(symbols, ()),
        changed=used.written & {item.name for item in given},
        uses=used,
        dtypes=dtypes,
    )


def traced_sizes(target: Target, call: Call) -> dict[str, str]:
    """The dimensions, as `Call.names`, that follow a size which a call of a factory passes.

    Calls with M = N do not tell which of the two a dimension is; with one size doubled at a time,
    traces do.
    """
    given = call.constructed | call.given
    arguments = tuple(
        replace(item, value=call.construct[item.name], default=item.name not in given)
        if item.name in call.construct
        else item
        for item in guesses(target.parameters)
    )
    values = {item.name: item.value for item in arguments} | dict(call.construct)
    try:
        trials: list[_Trial] = [(values, _kernel(target.found, values).prim_func)]
    except Exception:  # noqa: BLE001 - as recorded it may need what a trace lacks
        return {}
    trials += _perturbed(target.found, arguments, values)
    moved = [name for name in values if any(each[name] != values[name] for each, _ in trials)]
    found = {}
    for item in _parameters(trials, moved, set()) if moved else ():
        shape = item.shape if isinstance(item, Tensor) else ()
        for dim, size in enumerate(shape):
            if isinstance(size, str) and {*_words(size)} & {*moved}:
                found[f"{item.name}.{dim}"] = size
    return found


def _traced(
    factory: Callable[..., Any], arguments: Sequence[Argument]
) -> tuple[dict[str, Any], Any]:
    """Accepted values of the arguments, and the kernel."""
    values = {item.name: item.value for item in arguments}
    free = [item.name for item in arguments if item.kind == "size" and not item.default]
    try:
        return values, _kernel(factory, values)
    except Exception:
        if not free:
            raise
        for size, count in _LADDER:
            alike = {name: count if COUNT.search(name) else size for name in free}
            try:
                return values | alike, _kernel(factory, values | alike)
            except Exception:  # noqa: BLE001, S112 - the first error is the one to show
                continue
        raise


def _perturbed(
    factory: Callable[..., Any], arguments: Sequence[Argument], values: Mapping[str, Any]
) -> Iterator[_Trial]:
    """Kernels with one size doubled at a time, to find the dimensions that change with it."""
    for item in arguments:
        if item.kind != "size" or item.default:
            continue
        changed = {**values, item.name: 2 * item.value}
        try:
            yield changed, _kernel(factory, changed).prim_func
        except Exception:  # noqa: BLE001, S112 - this size may be bound to another
            continue


def guesses(parameters: Sequence[inspect.Parameter]) -> tuple[Argument, ...]:
    """The kind and a value of each argument, without those whose default is an object."""
    return tuple(_guesses(parameters))


def _guesses(parameters: Sequence[inspect.Parameter]) -> Iterator[Argument]:
    primes, small = iter(_PRIMES), iter(_SMALL)
    for parameter in parameters:
        name, default = parameter.name, parameter.default
        given = default is not parameter.empty
        if given and not isinstance(default, bool | int | float | str):
            continue  # An object keeps its default.
        kind = argument_kind(name, default if given else None, parameter.annotation)
        guess: Any = {
            "dtype": "float32" if "acc" in name.lower() else "float16",
            "tile": 64,
            "setting": SETTINGS.get(name.lower()),
            "flag": False,
            "other": 1.0 if annotation_text(parameter.annotation) == "float" else "",
        }.get(kind)
        if not given and kind == "size":
            guess = next(small, 2) if COUNT.search(name) else 128 * next(primes, 1)
        yield Argument(name, kind, default if given else guess, given)


def _kernel(factory: Callable[..., Any], values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from tlmatrix.interpreter import InterpretedKernel, interpret

    with interpret():
        kernel = factory(**values)
    if not isinstance(kernel, InterpretedKernel):
        raise TypeError(f"the factory returned a {type(kernel).__name__}, not a kernel")
    return kernel


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _parameters(
    trials: Sequence[_Trial], names: Sequence[str], tiles: set[int]
) -> Iterator[Tensor | Number]:
    prim_func = trials[0][1]
    for position, handle in enumerate(prim_func.params):
        if handle not in prim_func.buffer_map:
            yield Number(str(handle.name), str(handle.dtype))
            continue
        buffer = prim_func.buffer_map[handle]
        shapes = [(values, func.buffer_map[func.params[position]].shape) for values, func in trials]
        shape = tuple(
            _dimension([(values, sizes[dim]) for values, sizes in shapes], names, tiles)
            for dim in range(len(buffer.shape))
        )
        yield Tensor(str(buffer.name), str(buffer.dtype), shape)


def _dimension(
    seen: Sequence[tuple[Mapping[str, Any], Any]], names: Sequence[str], tiles: set[int]
) -> int | str:
    """A dimension as an expression of arguments or of symbolic dimensions."""
    try:
        numbers = [(values, int(each)) for values, each in seen]
    except TypeError:
        return _symbolic([(values, str(each)) for values, each in seen], names, tiles)
    if all(number == 1 for _, number in numbers):
        return 1
    column = tuple(number for _, number in numbers)
    known = {name: tuple(values[name] for values, _ in numbers) for name in names}
    return next(candidates(column, known, tiles=sorted(tiles)), column[0])


def _symbolic(
    seen: Sequence[tuple[Mapping[str, Any], str]], names: Sequence[str], tiles: set[int]
) -> int | str:
    """A dimension with symbolic ones, whose numbers may be arguments: `tokens * heads`."""
    split = [(values, re.split(r"\b(\d+)\b", text)) for values, text in seen]
    parts = list(split[0][1])
    for at in range(1, len(parts), 2):
        column = [(values, int(each[at])) for values, each in split if len(each) == len(parts)]
        if len({number for _, number in column}) > 1:
            found = _dimension(column, names, tiles)
            parts[at] = str(found) if str(found).isidentifier() else f"({found})"
    text = "".join(parts)
    try:
        Expression(text)
    except ExpressionError:
        return 1
    return text


def _dtype_arguments(
    factory: Callable[..., Any],
    arguments: Sequence[Argument],
    values: Mapping[str, Any],
    parameters: Sequence[Tensor | Number],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The dtype argument of each tensor, and the dtypes that it supports."""
    dtypes = [item.name for item in arguments if item.kind == "dtype"]
    found: dict[str, str] = {}
    fine: tuple[str, ...] = ()
    for name in dtypes:
        other = "float32" if values[name] != "float32" else "float16"
        try:
            changed = _kernel(factory, {**values, name: other}).prim_func
        except Exception:  # noqa: BLE001 - it may support one dtype only
            alike = [item for item in parameters if item.dtype == str(values[name])]
            found |= {item.name: name for item in alike if len(dtypes) == 1}
            continue
        for before, handle in zip(parameters, changed.params, strict=False):
            buffer = changed.buffer_map.get(handle, handle)
            if before.dtype != str(buffer.dtype):
                found.setdefault(before.name, name)
                fine = (str(values[name]), *_other_half_dtype(factory, values, name))
    return found, fine if len(set(found.values())) == 1 else ()


def _other_half_dtype(
    factory: Callable[..., Any], values: Mapping[str, Any], name: str
) -> Iterator[str]:
    """The other half-precision dtype, if the factory supports it."""
    other = {"float16": "bfloat16", "bfloat16": "float16"}.get(str(values[name]))
    if other is not None:
        try:
            _kernel(factory, {**values, name: other})
        except Exception:  # noqa: BLE001 - it may support one dtype only
            return
        yield other


def _names(parameter: Tensor | Number) -> list[str]:
    """Names in the dimensions of a parameter, in order."""
    shape = parameter.shape if isinstance(parameter, Tensor) else ()
    return [name for size in shape if isinstance(size, str) for name in _words(size)]


def _words(size: str) -> list[str]:
    return [name for name in re.findall(r"[A-Za-z_]\w*", size) if name != "ceildiv"]


# Eager kernels -----------------------------------------------------------------------------------
#
# An eager `@tilelang.jit` function takes tensors as arguments, and declares their shapes in its
# body: `X: T.Tensor[[rows, cols], dtype]`.

_SIZES = (13, 200, 24, 40, 72, 56)


def eager_example(target: Target) -> Mapping[str, Any] | None:
    """Tensors for the annotated parameters, and guesses for others; None if there are none."""
    tree = list(ast.walk(syntax_tree(target.written)))
    parameters = {each.name: each.default for each in target.parameters}
    declared = dict(_declared(target))
    if not declared:
        return None
    free = iter(_SIZES)
    guessed = {each.name: each.value for each in guesses(target.parameters)}
    found = {
        name: guessed[name]
        for name, default in parameters.items()
        if default is inspect.Parameter.empty and name not in declared
    }
    values = {n: v for n, v in {**parameters, **found}.items() if n not in declared}
    for node in tree:  # such as `dtype = T.float16` or `n = cols`
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = getattr(node.value, "attr", getattr(node.value, "value", None))
            value = values.get(node.value.id) if isinstance(node.value, ast.Name) else value
            values.setdefault(node.targets[0].id, value)
    sizes = {name: value for name, value in values.items() if type(value) is int}
    for name, annotation in declared.items():
        made = _example_tensor(annotation, sizes, values, free)
        if made is None:
            return None
        found[name] = made
    return found


def declared_sizes(target: Target) -> dict[str, str]:
    """The names of dimensions, as `Call.names`, in the annotations of an eager kernel's body."""
    return {
        f"{name}.{dim}": size.id
        for name, annotation in _declared(target)
        for dim, size in enumerate(getattr(_annotated(annotation)[0], "elts", ()))
        if isinstance(size, ast.Name)
    }


def _declared(target: Target) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that the body annotates, as `X: T.Tensor[[rows, cols], dtype]`."""
    parameters = {each.name for each in target.parameters}
    for node in ast.walk(syntax_tree(target.written)):
        match node:
            case ast.AnnAssign(target=ast.Name(name)) if name in parameters:
                yield name, node.annotation


def _annotated(annotation: ast.expr) -> tuple[ast.List | ast.Tuple | None, ast.expr]:
    """The shape and the dtype of an annotation; no shape if it is of another form."""
    parts: Sequence[ast.expr] = ()
    if isinstance(annotation, ast.Call):
        parts = annotation.args
    elif isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        parts = annotation.slice.elts
    shape, dtype = (*parts, None, None)[:2]
    return (
        shape if isinstance(shape, ast.List | ast.Tuple) else None,
        dtype or ast.Constant("float32"),
    )


def _example_tensor(
    annotation: ast.expr, sizes: dict[str, int], values: Mapping[str, Any], free: Iterator[int]
) -> Any:  # noqa: ANN401 - a tensor
    import torch

    shape, dtype = _annotated(annotation)
    if shape is None:
        return None
    found = []
    for size in shape.elts:
        for node in ast.walk(size):
            if isinstance(node, ast.Name) and node.id not in sizes:
                sizes[node.id] = next(free, 16)
        code = compile(ast.Expression(size), "<shape>", "eval")
        found.append(int(eval(code, {"__builtins__": {}}, dict(sizes))))  # noqa: S307 - sizes only
    name = values.get(dtype.id) if isinstance(dtype, ast.Name) else ast.unparse(dtype)
    kind = getattr(torch, str(name).strip("'").rpartition(".")[2], None)
    if not isinstance(kind, torch.dtype):
        return None
    if kind.is_floating_point:
        return torch.randn(found, generator=torch.Generator().manual_seed(0)).to(kind)
    return torch.zeros(found, dtype=kind)
