"""The first spec of a TileLang factory, from what tracing it shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tlmatrix.commands.tracing import Traced, guesses, trace

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.commands.tracing import Argument, Parameter

__all__ = ["factory_lines"]

_COUNT = re.compile(r"batch|heads?$|groups?$|experts?$|^[bh]$", re.IGNORECASE)
"""Dimensions that only say how often the same is done."""
_TILE = 64
"""The edge of a tile where the factory does not say."""


def factory_lines(
    found: Callable[..., Any], target: str, parameters: Sequence[inspect.Parameter]
) -> list[str]:
    """The body of a spec for a factory; a text to fill in where it cannot be traced."""
    try:
        traced = trace(found, parameters)
    except Exception as error:  # noqa: BLE001 - the guesses need not suit the factory
        first = (str(error).strip().splitlines() or [""])[0]
        why = f"{type(error).__name__}: {first}"[:160]
        # An eager kernel takes its tensors among its arguments, and asks them for their shape.
        eager = isinstance(error, AttributeError) and isinstance(error.obj, int)
        return [
            "# It could not be traced with made-up arguments, so that its tensors are guesses:",
            f"# {why}",
            *_untraced(target, guesses(parameters), eager=eager),
        ]
    return _traced(target, traced)


def _traced(target: str, traced: Traced) -> list[str]:
    module = target.partition(":")[0]
    tensors = [item for item in traced.parameters if item.shape is not None]
    results = [item for item in tensors if item.written or item.name in traced.outputs]
    inputs = [item for item in tensors if item not in results]
    called = [item.name for item in traced.parameters if item.name not in traced.outputs]
    names = [item.name for item in results]
    return [
        "problem:",
        "  inputs:                          # what the kernel only reads",
        *(f"    {item.name}: {_declaration(item)}" for item in inputs),
        "  outputs:                         # what it stores to",
        *(f"    {item.name}: {_declaration(item)}{_remark(item)}" for item in results),
        "  # The same in plain PyTorch, called in float64. It may also take any axis by name:",
        *_stub(inputs, results),
        f"  reference: {module}:reference",
        f"factory: {target}",
        *_compile(traced),
        f"call: [{', '.join(called)}]",
        f"returns: [{', '.join(names)}]",
        "",
        "axes:                              # edges of the tiles, where kernels break",
        *_axes(traced),
    ]


def _declaration(parameter: Parameter) -> str:
    # Unquoted, the comma of a call would part two dimensions.
    sizes = (f'"{size}"' if "," in str(size) else str(size) for size in parameter.shape or ())
    shape = ", ".join(sizes)
    dtype = f"${parameter.dtype_of}" if parameter.dtype_of else parameter.dtype
    return f"{{shape: [{shape}], dtype: {dtype}}}"


def _remark(parameter: Parameter) -> str:
    return "  # also read: starts as NaN" if parameter.read and parameter.written else ""


def _stub(inputs: Sequence[Parameter], results: Sequence[Parameter]) -> Iterator[str]:
    yield f"  #     def reference({', '.join(item.name for item in inputs)}):"
    for item in inputs:
        yield f"  #         # {item.name}: [{', '.join(map(str, item.shape or ()))}]"
    yield f"  #         return {', '.join(item.name for item in results)}"


def _compile(traced: Traced) -> Iterator[str]:
    axes = _axis_names(traced)
    if not traced.arguments:
        return
    yield "compile:                           # the factory's arguments; text is an expression"
    for item in traced.arguments:
        yield f"  {item.name}: {item.name if item.name in axes else _constant(item.value)}"


def _axis_names(traced: Traced) -> list[str]:
    """Arguments that vary from case to case; tiles, threads and stages are settings."""
    followed = {item.dtype_of for item in traced.parameters}
    kept = {"size", "flag"}
    return [
        item.name
        for item in traced.arguments
        if item.name in followed or (item.kind in kept and not _is_setting(item, traced))
    ]


def _is_setting(argument: Argument, traced: Traced) -> bool:
    """Whether a number with a default is no dimension of a tensor."""
    used = {word for item in traced.parameters for word in _words(item)}
    return argument.kind == "size" and argument.default and argument.name not in used


def _words(parameter: Parameter) -> set[str]:
    text = " ".join(str(size) for size in parameter.shape or ())
    return set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())


def _axes(traced: Traced) -> Iterator[str]:
    by_name = {item.name: item for item in traced.arguments}
    dimensions = {word for item in traced.parameters for word in _words(item)}
    for name in _axis_names(traced):
        item = by_name[name]
        if item.kind == "dtype":
            yield f"  {name}: [{item.value}]"
        elif item.kind == "flag":
            other = str(not item.value).lower()
            yield f"  {name}: [{_constant(item.value)}]  # {other}: if tensors stay as they are"
        elif name in dimensions:
            yield f"  {name}: {_edges(name, traced)}"
        else:
            yield f"  {name}: [{item.value}]"
    for name in traced.symbols:
        yield f"  {name}: {_edges(name, traced)}"
    taken = {*by_name, *traced.symbols, *(item.name for item in traced.parameters)}
    floats = any("float" in item.dtype and item.shape for item in traced.parameters)
    if floats and "values" not in taken:
        yield "  values: [normal, large, zero_rows, rising]  # see docs/own-problems.md"
    for scalar in traced.parameters:
        if scalar.shape is None:
            value = "0.5" if "float" in scalar.dtype else "1"
            yield f"  {scalar.name}: [{value}]  # a number that the kernel takes"


def _edges(name: str, traced: Traced) -> str:
    if _COUNT.search(name):
        return "[1, 3]"
    tiles = {item.name.lower(): item.value for item in traced.arguments if item.kind == "tile"}
    own = [value for tile, value in tiles.items() if tile.endswith(name.lower())]
    tile = own[0] if own else max(tiles.values(), default=_TILE)
    # The last makes a second turn of what goes over tiles, and a block's second of several.
    near = (1, tile - 1, tile, tile + 1, 2 * tile + 1)
    edges = dict.fromkeys(edge for edge in near if edge > 0)
    return f"[{', '.join(map(str, edges))}]"


def _untraced(target: str, arguments: Sequence[Argument], *, eager: bool) -> list[str]:
    module = target.partition(":")[0]
    sizes = [item.name for item in arguments if item.kind == "size" and not item.default]
    tensors = sizes if eager else ["x"]
    axes = {"dtype": "dtype", "size": "rows"}
    compiled = [
        f"  {item.name}: {_constant(item.value)}"
        if item.default or item.kind not in axes
        else f"  {item.name}: {axes[item.kind]}"
        for item in arguments
        if item.name not in tensors
    ]
    return [
        "problem:",
        "  inputs:                          # what the kernel is called with",
        *(f"    {name}: {{shape: [rows, cols], dtype: $dtype}}" for name in tensors),
        "  outputs: [out]",
        "  # The same in plain PyTorch; called in float64.",
        f"  reference: {module}:reference",
        f"factory: {target}",
        *(
            ["compile:                           # its arguments; text is an expression"]
            * bool(compiled)
        ),
        *compiled,
        f"call: [{', '.join(tensors)}]  # the kernel's arguments, in order",
        "returns: [out]                     # a name that is in call too is written by the kernel",
        "",
        "axes:",
        "  dtype: [float16]",
        "  rows: [64, 65]",
        "  cols: [64]",
    ]


def _constant(value: Any) -> str:  # noqa: ANN401 - a default of the user's
    """A constant as an expression in YAML."""
    return f"\"'{value}'\"" if isinstance(value, str) else str(value).lower()
