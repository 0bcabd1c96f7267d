"""What a TileLang factory makes: its kernel's parameters, learnt by tracing it with guesses.

The factory is called under the interpreter, with a made-up value for every argument that has no
default. Sizes get numbers that no other has, so that a dimension of a tensor tells which argument
it came from; a dtype argument is changed to see which tensors follow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.expressions import Expression, ExpressionError

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

__all__ = ["Argument", "Parameter", "Traced", "guesses", "trace"]

_DTYPE = re.compile(r"dtype|(^|_)(in|out|acc|accum)_?type$")
_TILE = re.compile(r"block|blk|tile|^b[mnkq]$", re.IGNORECASE)
_SETTINGS = {"threads": 128, "num_threads": 128, "num_stages": 2, "stages": 2}
_FLAG = re.compile(r"^(is|use|has|with|enable|need|return)_|causal|trans|accumulate$")
_PRIMES = (1, 3, 5, 7, 11, 13, 17, 19)
_SIZE = 128


@dataclass(frozen=True)
class Argument:
    """An argument of the factory: `kind` is dtype, tile, setting, flag, size or other."""

    name: str
    kind: str
    value: Any
    """What it was traced with."""
    default: bool
    """Whether the value is the author's own."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the kernel.

    `shape` holds numbers and expressions over the factory's arguments and the kernel's symbolic
    dimensions; None for a scalar. `dtype_of` is the argument that its dtype follows.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    read: bool
    written: bool
    dtype_of: str | None = None


@dataclass(frozen=True)
class Traced:
    """A kernel as its caller sees it; `outputs` are allocated by it, and no part of a call."""

    arguments: tuple[Argument, ...]
    parameters: tuple[Parameter, ...]
    outputs: tuple[str, ...]
    symbols: tuple[str, ...]


def trace(factory: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Traced:
    """Trace a factory with guessed arguments.

    Raises:
        Exception: whatever the factory raises; the guesses may not suit it.
    """
    arguments = guesses(parameters)
    values = {item.name: item.value for item in arguments}
    try:
        kernel = _kernel(factory, values)
    except Exception:
        same = {item.name: _SIZE for item in arguments if item.kind == "size" and not item.default}
        if not same:
            raise
        values |= same
        kernel = _kernel(factory, values)
    kinds = ("size", "tile")
    sizes = {item.name: values[item.name] for item in arguments if item.kind in kinds}
    sizes = {name: value for name, value in sizes.items() if isinstance(value, int) and value > 0}
    tiles = {sizes[item.name] for item in arguments if item.kind == "tile" and item.name in sizes}
    found = list(_parameters(kernel.prim_func, sizes, tiles))
    dtype_of = _followers(factory, arguments, values, found)
    found = [replace(item, dtype_of=dtype_of.get(item.name)) for item in found]
    outputs = tuple(found[index].name for index in kernel.out_idx)
    symbols = dict.fromkeys(name for item in found for name in _names(item) if name not in values)
    return Traced(arguments, tuple(found), outputs, tuple(symbols))


def guesses(parameters: Sequence[inspect.Parameter]) -> tuple[Argument, ...]:
    """What each argument seems to be; those whose default is an object are left out."""
    return tuple(_guesses(parameters))


def _guesses(parameters: Sequence[inspect.Parameter]) -> Iterator[Argument]:
    primes = iter(_PRIMES)
    for parameter in parameters:
        name, default = parameter.name, parameter.default
        given = default is not parameter.empty
        if given and not isinstance(default, bool | int | float | str):
            continue  # The factory's own object: left as it is.
        kind = _kind(name, default if given else None, parameter.annotation)
        guess: Any = {
            "dtype": "float32" if "acc" in name.lower() else "float16",
            "tile": 64,
            "setting": _SETTINGS.get(name),
            "flag": False,
            "other": "",
        }.get(kind)
        if not given and kind == "size":
            guess = _SIZE * next(primes, 1)
        yield Argument(name, kind, default if given else guess, given)


def _kind(name: str, default: object, annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if _DTYPE.search(name.lower()):
        return "dtype"
    if isinstance(default, bool) or text == "bool":
        return "flag"
    if isinstance(default, str | float) or text == "str":
        return "other"
    if name in _SETTINGS:
        return "setting"
    if _TILE.search(name):
        return "tile"
    if default is None and text != "int" and _FLAG.search(name):
        return "flag"
    return "size"


def _kernel(factory: Callable[..., Any], values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from tlmatrix.interpreter import InterpretedKernel, interpret

    with interpret():
        kernel = factory(**values)
    if not isinstance(kernel, InterpretedKernel):
        raise TypeError(f"it gave no kernel but a value of type {type(kernel).__name__}")
    return kernel


def _parameters(
    prim_func: Any,  # noqa: ANN401 - an IR node
    sizes: Mapping[str, int],
    tiles: Collection[int] = (),
) -> Iterator[Parameter]:
    read, written = _accessed(prim_func)
    for handle in prim_func.params:
        if handle not in prim_func.buffer_map:
            yield Parameter(str(handle.name), str(handle.dtype), None, read=True, written=False)
            continue
        buffer = prim_func.buffer_map[handle]
        shape = tuple(_dimension(size, sizes, tiles) for size in buffer.shape)
        yield Parameter(
            str(buffer.name), str(buffer.dtype), shape, buffer in read, buffer in written
        )


def _accessed(prim_func: Any) -> tuple[set[Any], set[Any]]:  # noqa: ANN401
    """The buffers that a kernel loads from, and those it stores to."""
    from tilelang import tvm

    loads: list[Any] = []
    in_regions: list[Any] = []
    read: set[Any] = set()
    written: set[Any] = set()

    def visit(node: Any) -> None:  # noqa: ANN401
        if isinstance(node, tvm.tirx.BufferStore):
            written.add(node.buffer)
        elif isinstance(node, tvm.tirx.BufferLoad):
            loads.append(node)
        elif isinstance(node, tvm.tirx.Call) and node.args:
            name = str(getattr(node.op, "name", ""))
            first = node.args[0]
            if not isinstance(first, tvm.tirx.BufferLoad):
                return
            if name in ("tl.region", "tl.tileop.region"):
                in_regions.append(first)
                mode = int(node.args[1])  # 1 reads, 2 writes, 3 both
                if mode & 1:
                    read.add(first.buffer)
                if mode & 2:
                    written.add(first.buffer)
            elif name in ("tl.access_ptr", "tirx.address_of"):
                written.add(first.buffer)  # An atomic's target.

    tvm.tirx.stmt_functor.post_order_visit(prim_func.body, visit)
    read |= {load.buffer for load in loads if not any(load.same_as(seen) for seen in in_regions)}
    return read, written


def _dimension(
    size: Any,  # noqa: ANN401 - an IR node
    sizes: Mapping[str, int],
    tiles: Collection[int],
) -> int | str:
    """A dimension as an expression: of the arguments it was made from, or of symbolic ones."""
    try:
        number = int(size)
    except TypeError:
        text = str(size)
        try:
            Expression(text)
        except ExpressionError:
            return 1
        return text
    return next((text for text, value in _made_of(sizes, tiles) if value == number), number)


def _made_of(sizes: Mapping[str, int], tiles: Collection[int]) -> Iterator[tuple[str, int]]:
    """What a dimension is usually made of, the simplest first."""
    yield from sizes.items()
    for (name, value), by in product(sizes.items(), sorted(tiles)):
        if value > by:
            yield f"ceildiv({name}, {by})", -(-value // by)
    for name, value in sizes.items():
        yield f"{name} + 1", value + 1
    for (name, value), (other, by) in permutations(sizes.items(), 2):
        yield f"{name} * {other}", value * by
        yield f"ceildiv({name}, {other})", -(-value // by)
    for (name, value), times in product(sizes.items(), (2, 3, 4, 8)):
        yield f"{times} * {name}", times * value
        if value % times == 0:
            yield f"{name} // {times}", value // times


def _followers(
    factory: Callable[..., Any],
    arguments: Sequence[Argument],
    values: Mapping[str, Any],
    parameters: Sequence[Parameter],
) -> dict[str, str]:
    """The dtype argument that each tensor's dtype follows."""
    dtypes = [item.name for item in arguments if item.kind == "dtype"]
    found: dict[str, str] = {}
    for name in dtypes:
        other = "float32" if values[name] != "float32" else "float16"
        try:
            changed = _kernel(factory, {**values, name: other}).prim_func
        except Exception:  # noqa: BLE001 - a kernel may take one dtype only
            alike = [item for item in parameters if item.dtype == str(values[name])]
            found |= {item.name: name for item in alike if len(dtypes) == 1}
            continue
        for before, after in zip(parameters, _parameters(changed, {}), strict=False):
            if before.dtype != after.dtype:
                found.setdefault(before.name, name)
    return found


def _names(parameter: Parameter) -> list[str]:
    """Names in the dimensions of a parameter, in order."""
    text = [size for size in parameter.shape or () if isinstance(size, str)]
    return [
        name for size in text for name in re.findall(r"[A-Za-z_]\w*", size) if name != "ceildiv"
    ]
