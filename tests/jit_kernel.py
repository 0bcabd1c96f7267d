"""A TileLang kernel of a test: the function alone, in place of a factory around a PrimFunc."""

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import tilelang
import tilelang.language as T
from tilelang.language.eager import builder

from tlmatrix.interpreter.frontend.intercept import keeping_parsed
from tlmatrix.interpreter.patching import replaced

_LETTERS = {"f": "float", "i": "int", "u": "uint", "b": "bfloat"}
_SHORT = re.compile(r"([fiub])(\d+)")


def jit_kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The factory of a kernel, as `tilelang.jit` gives it: `copy(16)(X, Y)` runs the kernel.

        @jit_kernel(X="f32[rows, 8]", n="i32")
        def copy(X, n, rows): ...

    Args:
        function: its parameters are those of the kernel, annotated as in a `T.prim_func` or given
            in `options`. The others are parameters of the factory.
        options: parameters of the kernel by name: a dtype (f16, i32, u8, b16, another by its name,
            or a parameter of the factory) and a shape, of expressions over the factory's
            parameters, where other names are symbolic sizes; `threads`, of a kernel of one block
            without a `T.Kernel` of its own; `name`, of the kernel if it is another than that of the
            function; and what `tilelang.jit` takes.
    """
    if function is None:
        return lambda decorated: jit_kernel(decorated, **options)
    parameters = inspect.signature(function).parameters
    name = options.pop("name", function.__name__)
    threads = 0 if "threads" in parameters else options.pop("threads", 0)
    spelled = {each: options.pop(each) for each in parameters if each in options}
    static = [
        each
        for each in parameters.values()
        if each.name not in {**spelled, **function.__annotations__}
    ]
    signature = inspect.Signature(static)

    def build(*args: Any, **kwargs: Any) -> Any:  # a kernel may close over what follows it
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        known = _Names({**function.__globals__, **_closed_over(function), **bound.arguments})
        given = {each: _parameter(text, known) for each, text in spelled.items()}
        values = {**_parameters(function), **given, **bound.arguments}
        return _traced(function, name, values, threads)

    build.__name__, build.__signature__, build.__wrapped__ = name, signature, function
    with replaced([(builder, "mutate", keeping_parsed(builder.mutate))]):  # `build` once for all
        return tilelang.jit(build, **options)


class _Names(dict):
    """The names of a shape; those that are not known are symbolic sizes."""

    def __missing__(self, name: str) -> Any:
        return self.setdefault(name, T.dynamic(name))


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotated parameters; `T.int32` makes one."""
    found = function.__annotations__.items()
    return {each: made() if callable(made) else made for each, made in found}


def _closed_over(function: Callable[..., Any]) -> Mapping[str, Any]:
    return inspect.getclosurevars(function).nonlocals


def _parameter(text: str, known: Mapping[str, Any]) -> Any:
    """The parameter `f32[16, 8]` or `i32`."""
    dtype, _, shape = text.partition("[")
    short = _SHORT.fullmatch(dtype)
    if short:
        dtype = _LETTERS[short[1]] + short[2]
    elif isinstance(known.get(dtype), str):
        dtype = known[dtype]
    if not shape:
        return getattr(T, dtype)()
    return T.Tensor(eval(f"({shape.removesuffix(']')},)", {}, known), getattr(T, dtype, dtype))


class _Builder(builder.Builder):
    """Opens one block of `threads` once the last parameter is bound; 0: the function does."""

    def __init__(self, last: str, threads: int) -> None:
        super().__init__()
        self._last, self._threads = last, threads
        self.opened = ExitStack()

    def prim_func_arg(self, name: str, value: Any) -> Any:
        bound = super().prim_func_arg(name, value)
        if name == self._last and self._threads:
            self.opened.enter_context(self.with_frame(T.Kernel(1, threads=self._threads)))
        return bound


def _traced(
    function: Callable[..., Any], name: str, values: Mapping[str, Any], threads: int
) -> Any:
    """`T.prim_func`, with values of the factory's parameters beside the kernel's."""
    ordered = {each: values[each] for each in inspect.signature(function).parameters}
    made = _Builder(list(ordered)[-1], threads)
    generate = builder.mutate(function).gen
    with made.prim_func(name), made.opened:
        generate(made)(**ordered)
    found = builder._patch_prim_func_attrs(made.get(), made)
    found.orig_func = function
    return found
