"""Finds the interface of an operator by recording one call."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.commands.new.accesses import Accesses, accesses, merged
from tlmatrix.commands.new.calls import (
    Call,
    dtype_arguments,
    evaluate,
    flattened,
    record_first_call,
    run_script,
)
from tlmatrix.commands.new.factories import argument_kind
from tlmatrix.commands.new.interface import Argument, Interface, Tensor
from tlmatrix.commands.new.references import matched
from tlmatrix.commands.new.source import dimension_names, returned_names
from tlmatrix.commands.new.targets import find_reference
from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.commands.new.targets import Target

_SMALL = 4096
"""Most elements of an integer tensor whose values are kept."""


def record(target: Target, *, call: str | None, script: Path | None) -> Interface:
    """The interface of an operator in an example call on the interpreter.

    Args:
        target: the operator.
        call: an expression that calls it, over the names of its module and of the script.
        script: a program that calls it once, or makes the tensors of `call`.

    Raises:
        UsageError: the example raises, or does not call the operator.
    """

    def example() -> None:
        names = {} if script is None else run_script(script)
        if call is not None:
            evaluate(call, target, names)

    recorded = record_first_call(target, example)
    if not recorded.calls:
        remedy = "; give the call with --call" if call is None else ""
        raise UsageError(f"the example does not call {target.name}{remedy}")
    return _described(target, recorded)


def record_call(target: Target, arguments: Mapping[str, Any]) -> Interface:
    """The interface of an operator in a call with `arguments`, whose exceptions propagate."""

    def example() -> None:
        getattr(target.owner, target.attribute)(**arguments)

    recorded = record_first_call(target, example)
    return _described(target, recorded)


def _described(target: Target, recorded: Call) -> Interface:
    given = {n: v for n, v in recorded.arguments.items() if isinstance(v, torch.Tensor)}
    used, kernel_dims = _launched(recorded, given)
    mutated = frozenset(
        name for name, value in given.items() if not _same(value.detach(), recorded.before[name])
    )
    names = dict(kernel_dims)
    for function in reversed(target.sources):
        names |= dimension_names(function)
    shapes, sizes = _symbols(given, names)
    own = recorded.dtype[0] if recorded.dtype else ""
    axis = next(iter(dtype_arguments(recorded, own)), "dtype")
    tensors = tuple(
        _tensor(name, value, shapes[name], own, axis, grad=name in recorded.differentiable)
        for name, value in given.items()
    )
    returned = {
        path: each
        for path, each in flattened(recorded.results).items()
        if not any(each is value for value in given.values())
    }
    titles = dict(
        zip(returned, _result_names(target, recorded.results, list(returned), given), strict=True)
    )
    by_name = {titles[path]: each for path, each in returned.items()}
    paths = {title: path for path, title in titles.items()}
    order = _reference_order(target, recorded, by_name, {n: given[n] for n in mutated})
    results = tuple(
        Tensor(
            title,
            str(by_name[title].dtype)[6:],
            tuple(_known_size(size, sizes, near=False) or size for size in by_name[title].shape),
            dtype_of=axis if _follows(recorded, paths[title], by_name[title]) else None,
            sizes=tuple(by_name[title].shape),
        )
        for title in (each for each in order if each in by_name)
    )
    free = frozenset(
        str(shapes[name][dim]) for name, dim in kernel_dims if isinstance(shapes[name][dim], str)
    )
    return Interface(
        target.text,
        factory=target.is_factory,
        parameters=tensors,
        results=results,
        arguments=tuple(_arguments(target, recorded, given)),
        construct=tuple(_construct(recorded)),
        module=frozenset(set(given) - {each.name for each in target.parameters}),
        symbols=tuple(sizes),
        mutated=mutated,
        accesses=used,
        sizes=tuple(sizes.items()),
        free=free,
        dtypes=recorded.dtype,
        paths=tuple((titles[path], path) for path in returned if titles[path] in order),
        order=tuple(order),
    )


def _arguments(
    target: Target, recorded: Call, given: Mapping[str, torch.Tensor]
) -> Iterator[Argument]:
    parameters = inspect.signature(target.written).parameters
    for name, value in recorded.arguments.items():
        default = name not in recorded.given
        if name in given or (value is None and default):
            continue
        if isinstance(value, torch.dtype):
            yield Argument(name, "dtype", str(value)[6:], default)
        elif value is None or isinstance(value, bool | int | float | str):
            kind = argument_kind(name, value, parameters[name].annotation)
            yield Argument(name, kind, value, default)


def _construct(recorded: Call) -> Iterator[Argument]:
    for name, (value, given) in recorded.construct.items():
        if isinstance(value, bool | int | float | str):
            yield Argument(name, argument_kind(name, value, None), value, not given)


def _follows(recorded: Call, path: str, result: torch.Tensor) -> bool:
    """Whether a result's dtype changes with that of the inputs."""
    if not recorded.dtype or str(result.dtype)[6:] != recorded.dtype[0]:
        return False
    again = recorded.with_other.get(path)
    return again is None or str(again.dtype)[6:] == recorded.dtype[-1]


def _reference_order(
    target: Target,
    recorded: Call,
    results: Mapping[str, torch.Tensor],
    mutated: Mapping[str, torch.Tensor],
) -> list[str]:
    """The outputs of the reference in its order, matched by their values.

    In the order of the call if there is no reference, or if it does not accept the arguments.
    """
    mine = {**mutated, **results}
    found = find_reference(target)
    if found is None:
        return list(mine)
    function = found[1]
    known = {**recorded.arguments, **recorded.before}
    parameters = inspect.signature(function).parameters
    values = {name: known[of] for name, of in matched(list(parameters), known).items()}
    try:
        theirs = list(flattened(function(**values)).values())
    except Exception:  # noqa: BLE001 - its parameters may differ
        return list(mine)
    order = []
    for wanted in theirs:
        alike = [
            name
            for name, each in mine.items()
            if name not in order
            and each.shape == wanted.shape
            and torch.allclose(each.detach().double(), wanted.detach().double(), 0.05, 0.05)
        ]
        if not alike:
            return list(mine)
        order.append(alike[0])
    return order


def _tensor(
    name: str, value: torch.Tensor, shape: tuple[int | str, ...], own: str, axis: str, *, grad: bool
) -> Tensor:
    dtype = str(value.dtype)[6:]
    kept = dtype in ("int32", "int64") and value.numel() <= _SMALL
    return Tensor(
        name,
        dtype,
        shape,
        dtype_of=axis if dtype == own else None,
        sizes=tuple(value.shape),
        values=tuple(value.flatten().tolist()) if kept else None,
        grad=grad or value.requires_grad,
    )


def _same(value: torch.Tensor, before: torch.Tensor) -> bool:
    return bool(torch.equal(value.nan_to_num(), before.nan_to_num()))


def _launched(
    recorded: Call, given: Mapping[str, torch.Tensor]
) -> tuple[Accesses, dict[tuple[str, int], str]]:
    """The accesses of the kernels to the arguments, and the names of dimensions."""
    used = Accesses()
    dims: dict[tuple[str, int], str] = {}
    kernels = {id(launch.kernel): launch for launch in recorded.launches}
    for launch in kernels.values():
        names = {
            parameter: name
            for parameter, value in launch.live.items()
            for name, tensor in given.items()
            if isinstance(value, torch.Tensor)
            and value.data_ptr() == tensor.data_ptr()
            and value.numel() == tensor.numel() > 0
            and value.dtype == tensor.dtype
        }
        used = merged(used, accesses(launch.kernel.prim_func).renamed(names))
        func = launch.kernel.prim_func
        for buffer in func.buffer_map.values():
            name = names.get(str(buffer.name))
            if name is None or len(buffer.shape) != given[name].ndim:
                continue
            for dim, size in enumerate(buffer.shape):
                if re.fullmatch(r"[A-Za-z_]\w*( \+ \d+)?", str(size)):
                    dims.setdefault((name, dim), str(size))
    return used, dims


def _symbols(
    given: Mapping[str, torch.Tensor], names: Mapping[tuple[str, int], str]
) -> tuple[dict[str, tuple[int | str, ...]], dict[str, int]]:
    """Shapes in symbols, and the sizes of symbols; equal sizes without a name share a symbol."""
    shapes = {name: tuple(value.shape) for name, value in given.items()}
    vectors = {n for n, v in given.items() if v.dtype in (torch.int32, torch.int64) and v.ndim == 1}
    offsets = {name for name in vectors if _may_be_offsets(given[name])}
    sizes: dict[str, int] = {}
    symbols: dict[tuple[str, int], str] = {}
    for key, text in names.items():
        tensor, dim = key
        if tensor not in shapes or dim >= len(shapes[tensor]):
            continue
        name, _, more = text.partition(" + ")
        size = shapes[tensor][dim] - int(more or 0)
        if name in shapes:
            name = f"{name}_size"
        if sizes.setdefault(name, size) == size:
            symbols[key] = f"{name} + {more}" if more else name
    # Other dimensions may equal the length of an integer vector, but not be a multiple of it.
    whole = {
        str(symbol).partition(" ")[0] for (name, _), symbol in symbols.items() if name in vectors
    }
    spare = iter(("rows", "cols", *(f"size{k}" for k in range(3, 40))))
    found: dict[str, tuple[int | str, ...]] = {}
    for tensor, shape in shapes.items():
        row: list[int | str] = []
        for dim, size in enumerate(shape):
            symbol = symbols.get((tensor, dim))
            if symbol is None and size == 1:
                row.append(1)
                continue
            if symbol is None and tensor in offsets:
                symbol = "bounds" if sizes.setdefault("bounds", size) == size else None
            elif symbol is None:
                symbol = _known_size(size, {n: v for n, v in sizes.items() if n not in whole})
            if symbol is None and size in sizes.values() and tensor not in offsets:
                symbol = _known_size(size, sizes, near=False)
            if symbol is None:
                symbol = next(name for name in spare if name not in sizes and name not in shapes)
                sizes[symbol] = size
            row.append(symbol)
        found[tensor] = tuple(row)
    return found, sizes


def _may_be_offsets(vector: torch.Tensor) -> bool:
    """Whether a vector may have offsets, whose number is not that of another dimension."""
    values = vector.tolist()
    return values[:1] == [0] and values == sorted(values) and values[-1] >= len(values)


def _known_size(size: int, sizes: Mapping[str, int], *, near: bool = True) -> str | None:
    """An expression over known symbols for a dimension without a name in the code."""
    for name, other in sizes.items():
        if other == size:
            return name
    if not near:
        return None
    for name, other in sizes.items():
        if other > 2 and size == other + 1:
            return f"{name} + 1"
    for name, other in sizes.items():
        if other > 2 and other == 2 * size:
            return f"{name} // 2"
        if other > 2 and size in (2 * other, 3 * other):
            return f"{size // other} * {name}"
    return None


def _result_names(
    target: Target, results: object, paths: Sequence[str], taken: Mapping[str, Any]
) -> Sequence[str]:
    count = len(paths)
    fields = getattr(results, "_fields", ())
    if len(fields) == count > 0:
        return list(fields)
    if any(not path.isdigit() for path in paths):
        return [path.rpartition(".")[2] for path in paths]
    for function in target.sources:
        names = returned_names(function)
        if names is not None and len(names) == count == len({*names} - {*taken}):
            return names
    return ["out"] if count == 1 else [f"out{k}" for k in range(count)]
