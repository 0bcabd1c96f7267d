"""One call of an operator, recorded on the interpreter: what it was given, and what came back."""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.commands.new.accesses import Accesses, accesses, joined
from tlmatrix.commands.new.factories import argument_kind
from tlmatrix.commands.new.observed import Argument, Observed, Tensor
from tlmatrix.commands.new.references import matched
from tlmatrix.commands.new.source import dimension_names, returned_names
from tlmatrix.commands.new.targets import find_reference
from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.commands.new.targets import Target

__all__ = ["flattened", "record", "record_call"]

_HALVES = (torch.float16, torch.bfloat16)
_SMALL = 4096
"""Elements of an integer tensor whose values are kept."""


@dataclass
class _Call:
    """The call that was recorded."""

    arguments: dict[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    before: dict[str, Any] = field(default_factory=dict)
    results: Any = None
    launches: list[Any] = field(default_factory=list)
    calls: int = 0


def record(target: Target, *, call: str | None, script: Path | None) -> Observed:
    """Run an example call on the interpreter and describe it.

    Args:
        target: the operator.
        call: an expression that calls it, over the names of its module and of the script.
        script: a program that calls it once, or that makes the tensors of `call`.

    Raises:
        UsageError: the example raises, or calls no such operator.
    """

    def example() -> None:
        names = {} if script is None else _run(script)
        if call is not None:
            _evaluate(call, target, names)

    seen, differentiable, other = _recorded(target, example)
    if not seen.calls:
        remedy = " (give the call with --call)" if call is None else ""
        raise UsageError(f"the example never calls {target.name}{remedy}")
    return _described(target, seen, differentiable, other)


def record_call(target: Target, arguments: Mapping[str, Any]) -> Observed:
    """Call it with these arguments, and describe the call; whatever it raises is its own."""
    seen, differentiable, other = _recorded(
        target, lambda: getattr(target.owner, target.attribute)(**arguments)
    )
    return _described(target, seen, differentiable, other)


def _recorded(
    target: Target, example: Callable[[], object]
) -> tuple[_Call, frozenset[str], tuple[str, str, Mapping[str, Any]] | None]:
    """The call that an example makes, its gradients, and the same with another dtype."""
    from tlmatrix.interpreter import interpret
    from tlmatrix.interpreter.device import stand_in

    seen = _Call()
    with interpret(trace=True) as session, stand_in():
        with _watched(target, seen, session):
            example()
        if not seen.calls:
            return seen, frozenset(), None
        return seen, _differentiable(target, seen), _other_dtype(target, seen)


# The call ------------------------------------------------------------------------------------


@contextmanager
def _watched(target: Target, seen: _Call, session: Any) -> Iterator[None]:
    """Note the first call of the operator, wherever its module's name is used."""
    original = target.found
    signature = inspect.signature(target.written)
    names = [name for name in signature.parameters if name not in target.hidden]
    signature = signature.replace(parameters=[signature.parameters[name] for name in names])

    def watched(*args: Any, **keywords: Any) -> Any:
        seen.calls += 1
        if seen.calls > 1:
            return original(*args, **keywords)
        bound = signature.bind(*args, **keywords)
        seen.given = frozenset(bound.arguments)
        bound.apply_defaults()
        seen.arguments = dict(bound.arguments)
        seen.before = {
            name: value.detach().clone()
            for name, value in seen.arguments.items()
            if isinstance(value, torch.Tensor)
        }
        first = len(session.log.launches)
        results = original(*args, **keywords)
        seen.launches = session.log.launches[first:]
        seen.results = results
        return results

    setattr(target.owner, target.attribute, watched)
    try:
        yield
    finally:
        setattr(target.owner, target.attribute, target.raw)


def _run(script: Path) -> dict[str, Any]:
    import runpy

    if not script.is_file():
        raise UsageError(f"no such script: {script}")
    sys.path.insert(0, str(script.resolve().parent))
    argv, sys.argv = sys.argv, [str(script)]
    try:
        with redirect_stdout(sys.stderr):
            return runpy.run_path(str(script), run_name="__main__")
    except Exception as error:
        raise UsageError(f"--script {script}: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = argv
        sys.path.pop(0)


def _evaluate(call: str, target: Target, names: Mapping[str, Any]) -> None:
    namespace = {"torch": torch, **vars(target.module), **names}
    operator = getattr(target.owner, target.attribute)
    namespace |= {"f": namespace.get("f", operator), target.attribute: operator}
    try:
        eval(call, namespace)  # noqa: S307 - the user's own words on their own command line
    except Exception as error:
        raise UsageError(f"--call {call!r}: {type(error).__name__}: {error}") from error


def _again(target: Target, seen: _Call, changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Call it once more, on copies with some arguments changed; what came back, by path."""
    fresh = {name: value.clone() for name, value in seen.before.items()}
    arguments = {**seen.arguments, **fresh, **changed}
    if target.positional:
        return flattened(target.found(*arguments.values()))
    return flattened(target.found(**arguments))


def _differentiable(target: Target, seen: _Call) -> frozenset[str]:
    """The inputs to which gradients flow back; none where nothing comes back that has one."""
    leaves = {
        name: value.clone().requires_grad_()
        for name, value in seen.before.items()
        if value.is_floating_point()
    }
    try:
        with torch.enable_grad():
            results = _again(target, seen, leaves)
        outputs = [each for each in results.values() if each.requires_grad]
        if not outputs or not leaves:
            return frozenset()
        ones = [torch.ones_like(each) for each in outputs]
        grads = torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)
    except Exception:  # noqa: BLE001 - an operator without a backward may raise anything
        return frozenset()
    return frozenset(name for name, grad in zip(leaves, grads, strict=True) if grad is not None)


def _dtype_arguments(seen: _Call, dtype: str) -> list[str]:
    """The arguments that name this dtype."""
    given = seen.arguments.items()
    return [name for name, value in given if isinstance(value, str) and value == dtype]


def _other_dtype(target: Target, seen: _Call) -> tuple[str, str, Mapping[str, Any]] | None:
    """The dtype of the inputs, another that the operator takes in its place, and what came back."""
    floats = {n: v for n, v in seen.before.items() if v.dtype in (*_HALVES, torch.float32)}
    halves = {name: value for name, value in floats.items() if value.dtype in _HALVES}
    following = halves or floats
    if not following:
        return None
    own = next(iter(following.values())).dtype
    other = torch.float16 if own == torch.float32 else torch.float32
    changed: dict[str, Any] = {
        name: value.to(other) for name, value in following.items() if value.dtype == own
    }
    changed |= {name: str(other)[6:] for name in _dtype_arguments(seen, str(own)[6:])}
    try:
        results = _again(target, seen, changed)
    except Exception:  # noqa: BLE001 - it takes one dtype only
        return str(own)[6:], str(own)[6:], {}
    return str(own)[6:], str(other)[6:], results


# What it says --------------------------------------------------------------------------------


def flattened(results: object) -> dict[str, Any]:
    """The tensors of what a call gave back, by path: `0`, `1`, `lse`, `aux.counts`."""
    if isinstance(results, torch.Tensor):
        return {"0": results}
    if isinstance(results, tuple | list):
        items: list[tuple[str, Any]] = [(str(k), each) for k, each in enumerate(results)]
    elif isinstance(results, dict):
        items = [(str(key), each) for key, each in results.items()]
    elif results is not None and hasattr(results, "__dict__"):
        items = list(vars(results).items())
    else:
        items = []
    found = {}
    for key, each in items:
        if isinstance(each, torch.Tensor):
            found[key] = each
        elif isinstance(each, tuple | list | dict):
            found |= {f"{key}.{path}": tensor for path, tensor in flattened(each).items()}
    return found


def _described(
    target: Target,
    seen: _Call,
    differentiable: frozenset[str],
    other: tuple[str, str, Mapping[str, Any]] | None,
) -> Observed:
    given = {n: v for n, v in seen.arguments.items() if isinstance(v, torch.Tensor)}
    used, kernel_dims = _launched(seen, given)
    mutated = frozenset(
        name for name, value in given.items() if not _same(value.detach(), seen.before[name])
    )
    names = dict(kernel_dims)
    for function in reversed(target.sources):
        names |= dimension_names(function)
    shapes, sizes = _symbols(given, names)
    own, changed, again = other or ("", "", {})
    axis = next(iter(_dtype_arguments(seen, own)), "dtype")
    tensors = tuple(
        _tensor(name, value, shapes[name], own, axis, grad=name in differentiable)
        for name, value in given.items()
    )
    returned = {
        path: each
        for path, each in flattened(seen.results).items()
        if not any(each is value for value in given.values())
    }
    titles = dict(
        zip(returned, _result_names(target, seen.results, list(returned), given), strict=True)
    )
    by_name = {titles[path]: each for path, each in returned.items()}
    order = _reference_order(target, seen, by_name, {n: given[n] for n in mutated})
    results = tuple(
        Tensor(
            title,
            str(by_name[title].dtype)[6:],
            tuple(_size_like(size, sizes, near=False) or size for size in by_name[title].shape),
            dtype_of=axis if _follows(by_name[title], own, changed, again, titles, title) else None,
            sizes=tuple(by_name[title].shape),
        )
        for title in (each for each in order if each in by_name)
    )
    free = frozenset(
        str(shapes[name][dim]) for name, dim in kernel_dims if isinstance(shapes[name][dim], str)
    )
    return Observed(
        target.text,
        factory=target.is_factory,
        parameters=tensors,
        results=results,
        arguments=tuple(_arguments(target, seen, given)),
        symbols=tuple(sizes),
        mutated=mutated,
        accesses=used,
        sizes=tuple(sizes.items()),
        free=free,
        dtypes=tuple(dict.fromkeys((own, changed))) if own else (),
        paths=tuple((titles[path], path) for path in returned if titles[path] in order),
        order=tuple(order),
    )


def _arguments(
    target: Target, seen: _Call, given: Mapping[str, torch.Tensor]
) -> Iterator[Argument]:
    parameters = inspect.signature(target.written).parameters
    for name, value in seen.arguments.items():
        default = name not in seen.given
        if name in given or (value is None and default):
            continue
        if isinstance(value, torch.dtype):
            yield Argument(name, "dtype", str(value)[6:], default)
        elif value is None or isinstance(value, bool | int | float | str):
            kind = argument_kind(name, value, parameters[name].annotation)
            yield Argument(name, kind, value, default)


def _follows(
    result: torch.Tensor,
    own: str,
    changed: str,
    again: Mapping[str, Any],
    titles: Mapping[str, str],
    title: str,
) -> bool:
    """Whether a result's dtype changes with that of the inputs."""
    path = next(path for path, name in titles.items() if name == title)
    if str(result.dtype)[6:] != own:
        return False
    return path not in again or str(again[path].dtype)[6:] == changed


def _reference_order(
    target: Target,
    seen: _Call,
    results: Mapping[str, torch.Tensor],
    mutated: Mapping[str, torch.Tensor],
) -> list[str]:
    """The outputs in the order of the reference, found by their values; those that it has not go.

    Without a reference, or one that the recorded call does not suit: as they came.
    """
    mine = {**mutated, **results}
    found = find_reference(target)
    if found is None:
        return list(mine)
    function = found[1]
    known = {**seen.arguments, **seen.before}
    parameters = inspect.signature(function).parameters
    values = {name: known[of] for name, of in matched(list(parameters), known).items()}
    try:
        theirs = list(flattened(function(**values)).values())
    except Exception:  # noqa: BLE001 - its own names; the run will tell
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
    seen: _Call, given: Mapping[str, torch.Tensor]
) -> tuple[Accesses, dict[tuple[str, int], str]]:
    """What the kernels do with the arguments, and what they call their dimensions."""
    used, dims = Accesses(), {}
    kernels = {id(launch.kernel): launch for launch in seen.launches}
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
        used = joined(used, accesses(launch.kernel.prim_func).renamed(names))
        func = launch.kernel.prim_func
        for buffer in func.buffer_map.values():
            name = names.get(str(buffer.name))
            if name is None or len(buffer.shape) != given[name].ndim:
                continue
            for dim, size in enumerate(buffer.shape):
                if type(size).__name__ in ("Var", "SizeVar"):
                    dims.setdefault((name, dim), str(size))
    return used, dims


def _symbols(
    given: Mapping[str, torch.Tensor], names: Mapping[tuple[str, int], str]
) -> tuple[dict[str, tuple[int | str, ...]], dict[str, int]]:
    """Shapes in symbols; equal sizes share one where the code names none. And their sizes."""
    shapes = {name: tuple(value.shape) for name, value in given.items()}
    vectors = {n for n, v in given.items() if v.dtype in (torch.int32, torch.int64) and v.ndim == 1}
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
    # Only equal to the length of a vector of integers can another dimension be, no multiple of it.
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
            if symbol is None:
                symbol = _size_like(size, {n: v for n, v in sizes.items() if n not in whole})
            if symbol is None and size in sizes.values():
                symbol = _size_like(size, sizes, near=False)
            if symbol is None:
                symbol = next(name for name in spare if name not in sizes and name not in shapes)
                sizes[symbol] = size
            row.append(symbol)
        found[tensor] = tuple(row)
    return found, sizes


def _size_like(size: int, sizes: Mapping[str, int], *, near: bool = True) -> str | None:
    """An expression over the symbols that are known, for a dimension that the code names not."""
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
