"""Parsed kernels kept: TileLang parses the source of a PrimFunc each time a factory is called.

What it makes of the source depends on the code, and on the objects that some names in it stand
for (`T.Tensor`, `T.Kernel`); where both are those of an earlier call, the parsed function is used
again with the new closure.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MOST = 4096
_MISSING = object()


@dataclass(frozen=True)
class _Parsed:
    """A parsed function.

    Attributes:
        names: the dotted names that TileLang looked up, and the objects they stood for.
        make_closure: makes the function of the values of its free variables.
        source: TileLang's rendering of it.
        hints: types of arguments that it found in the body.
    """

    names: tuple[tuple[str, Any], ...]
    make_closure: Callable[..., Any]
    source: str
    hints: dict[str, Any]


_kept: dict[tuple[Any, ...], _Parsed] = {}


@cache
def keeping_parsed(mutate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """TileLang's `mutate` (`language/eager/ast.py`), which parses a function, with a memory.

    Where TileLang's internals are not those that this relies on, `mutate` itself.
    """
    from tilelang.language.eager import ast as eager
    from tilelang.language.eager import utils

    needed = ("_try_eval", "IRGenerator")
    if not all(hasattr(eager, name) for name in needed) or not hasattr(
        utils, "get_compiled_object"
    ):
        return mutate

    def parsed(func: Any) -> Any:
        code = getattr(func, "__code__", None)
        if code is None:
            return mutate(func)
        values = utils.get_func_nonlocals(func)
        key = (code, id(func.__globals__), tuple(values))
        known = _kept.get(key)
        if known is not None and all(
            _resolved(name, values, func.__globals__) is found for name, found in known.names
        ):
            function = known.make_closure(**values)
            return eager.IRGenerator(
                gen=function, source=known.source, extra_type_hints=dict(known.hints)
            )
        made, names, make_closure = _observed(mutate, func, eager, utils)
        if make_closure is not None and len(_kept) < _MOST:
            hints = dict(made.extra_type_hints)
            _kept[key] = _Parsed(names, make_closure, made.source, hints)
        return made

    return parsed


def _observed(
    mutate: Callable[[Any], Any], func: Any, eager: Any, utils: Any
) -> tuple[Any, tuple[tuple[str, Any], ...], Callable[..., Any] | None]:
    """Parse a function; with the names that were looked up, and the maker of its closure.

    The maker is None where something else than a dotted name was evaluated.
    """
    looked_up: dict[str, Any] = {}
    made: list[Any] = []
    plain = True
    evaluate, compiled = eager._try_eval, utils.get_compiled_object  # noqa: SLF001

    def watched(node: Any, nonlocals: Any, global_names: Any) -> Any:
        nonlocal plain
        name = ast.unparse(node)
        if all(part.isidentifier() for part in name.split(".")):
            looked_up[name] = _resolved(name, nonlocals, global_names)
        else:
            plain = False
        return evaluate(node, nonlocals, global_names)

    def kept(*args: Any, **options: Any) -> Any:
        made.append(compiled(*args, **options))
        return made[-1]

    # TileLang looks both up when it is called; the caller holds the lock of tracing.
    eager._try_eval, utils.get_compiled_object = watched, kept  # noqa: SLF001
    try:
        result = mutate(func)
    finally:
        eager._try_eval, utils.get_compiled_object = evaluate, compiled  # noqa: SLF001
    maker = made[-1] if plain and len(made) == 1 else None
    return result, tuple(looked_up.items()), maker


def _resolved(name: str, nonlocals: Mapping[str, Any], global_names: Mapping[str, Any]) -> Any:
    """The object that a dotted name stands for."""
    first, *rest = name.split(".")
    found = nonlocals.get(first, global_names.get(first, _MISSING))
    for part in rest:
        found = getattr(found, part, _MISSING)
    return found
