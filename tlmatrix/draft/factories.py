"""Traces a TileLang factory with guessed arguments, as calls from which its interface is inferred.

Sizes get distinct numbers. In further calls one of them is another, or one dtype is, so that the
dimensions and dtypes of tensors show which argument they come from. The function of an eager kernel
is traced like a factory: the sizes that it declares by `T.const` are guessed, too.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.calls import Call, Seen, seen
from tlmatrix.draft.interface import (
    SETTINGS,
    Argument,
    annotation_text,
    argument_kind,
    interface_of,
)
from tlmatrix.draft.sizes import COUNT, NAME
from tlmatrix.draft.targets import syntax_tree
from tlmatrix.draft.uses import Uses, uses_of
from tlmatrix.dtypes import dtype_of
from tlmatrix.processes import ForkError, in_fork
from tlmatrix.spec.expr.expression import Expression, ExpressionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.draft.interface import Interface
    from tlmatrix.draft.targets import Target

_PRIMES = (1, 3, 5, 7, 11, 13, 17, 19)
_SMALL = (7, 5, 11, 13, 3, 17)
_SYMBOLIC = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051)
"""Sizes of symbolic dimensions."""
_LADDER: tuple[tuple[int, int], ...] = ((128, 4), (64, 2), (16, 8), (64, 64), (128, 1))
"""(sizes, counts) to try if the factory rejects distinct numbers."""


def trace(target: Target) -> Interface:
    """The interface of a factory, without the sizes of its traces.

    Raises:
        ForkError: the factory raises, as it may not accept the guesses, or ends its process.
    """
    return interface_of(target, in_fork(_Tracer(target, {}).calls)).of_calls()


def traced_sizes(target: Target, call: Call) -> dict[str, str]:
    """The dimensions, as `Call.names`, that follow a size which a call of a factory passes.

    Calls with M = N do not tell which of the two a dimension is; traces with other sizes do. What
    is the same in all of them is a number.
    """
    own = {each.name for each in target.parameters} - call.tensors.keys()
    given = {n: value for n, value in {**call.arguments, **call.construct}.items() if n in own}
    tracer = _Tracer(target, given)
    try:
        calls = in_fork(tracer.calls)
    except ForkError:  # as recorded it may need what a trace lacks
        return dict(_declared_dims(target))
    interface = interface_of(target, calls)
    first = {**calls[0].construct, **(calls[0].sizes or {})}
    moved = {
        name
        for each in calls
        for name, value in {**each.construct, **(each.sizes or {})}.items()
        if value != first[name]
    }
    still = {1, *(first.get(name) for name in {*tracer.free} - moved)}
    found: dict[str, str] = {}
    for each in (*interface.tensors, *interface.results):
        for dim, size in enumerate(each.shape):
            numbers = {*each.sizes(dim)}
            if len(numbers) == 1 and not numbers & still:
                found[f"{each.name}.{dim}"] = str(*numbers)
            elif isinstance(size, str) and moved & Expression(size).names:
                found[f"{each.name}.{dim}"] = size
    return found


def guesses(target: Target) -> list[Argument]:
    """The kind and a value of each argument, without tensors and those with an object as default.

    Their last are the sizes that an eager kernel declares.
    """
    consts, tensors = _declared(target)
    parameters = [each for each in target.parameters if each.name not in tensors]
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters += [inspect.Parameter(name, kind, annotation=int) for name in consts]
    return list(_guesses(parameters))


def _guesses(parameters: list[inspect.Parameter]) -> Iterator[Argument]:
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
            "other": "" if annotation_text(parameter.annotation) == "str" else 1.0,
        }.get(kind)
        if not given and kind == "size":
            guess = next(small, 2) if COUNT.search(name) else 128 * next(primes, 1)
        yield Argument(name, kind, default if given else guess, given)


def _declared(target: Target) -> tuple[list[str], list[str]]:
    """The sizes and the tensors that an eager kernel declares: `T.const("M")`, `X: T.Tensor[…]`."""
    consts: list[str] = []
    tensors = []
    parameters = {each.name for each in target.parameters}
    for node in ast.walk(syntax_tree(target.written)):
        match node:
            case ast.AnnAssign(target=ast.Name(name)) if name in parameters:
                tensors.append(name)
            case ast.Call(func=ast.Attribute(attr="const"), args=[ast.Constant(str(names))]):
                consts += [name.strip() for name in names.split(",")]
    return (consts, tensors) if tensors else ([], [])


def _declared_dims(target: Target) -> Iterator[tuple[str, str]]:
    """The sizes in the shapes that an eager kernel declares, as `Call.names`."""
    consts, _ = _declared(target)
    for node in ast.walk(syntax_tree(target.written)):
        match node:
            case ast.AnnAssign(
                target=ast.Name(name),
                annotation=ast.Subscript(slice=ast.Tuple([ast.List(dims) | ast.Tuple(dims), *_]))
                | ast.Call(args=[ast.List(dims) | ast.Tuple(dims), *_]),
            ):
                named = ((k, ast.unparse(each)) for k, each in enumerate(dims))
                yield from ((f"{name}.{k}", text) for k, text in named if text in consts)


class _Tracer:
    """Traces a factory.

    Args:
        target: the factory.
        given: arguments that are known.
    """

    def __init__(self, target: Target, given: Mapping[str, Any]) -> None:
        self._target = target
        self._given = given
        self._consts, self._tensors = _declared(target)
        self._arguments = guesses(target)
        self._symbolic: dict[str, int] = defaultdict(iter(_SYMBOLIC).__next__)

    def calls(self) -> list[Call]:
        """A call with the guesses, and those in which a size or dtypes are others.

        Raises:
            Exception: the factory raises.
        """
        values, kernel = self._first()
        uses = uses_of(kernel.prim_func)
        found = [self._call(values, kernel, uses, factor) for factor in (1, 2)]
        for factor, change in enumerate(self._changes(values), 3):
            try:
                kernel = self._kernel(values | change)
                found.append(self._call(values | change, kernel, Uses(), factor))
            except Exception:  # noqa: BLE001, S112 - a size may be bound to another
                continue
        return [call for call in found if call.form() == found[0].form()]

    def _first(self) -> tuple[dict[str, Any], Any]:
        """Accepted values of the arguments, and the kernel."""
        values = {each.name: each.value for each in self._arguments} | dict(self._given)
        free = [name for name in self.free if name not in self._given]
        try:
            return values, self._kernel(values)
        except Exception:
            for size, count in _LADDER if free else ():
                alike = {name: count if COUNT.search(name) else size for name in free}
                try:
                    return values | alike, self._kernel(values | alike)
                except Exception:  # noqa: BLE001, S112 - the first error is the one to show
                    continue
            raise

    @property
    def free(self) -> list[str]:
        """The sizes that are passed, declared, or have no default."""
        declared = {*self._consts}  # of a tensor, also if one has the name of a tile
        sizes = [e for e in self._arguments if e.kind == "size" or e.name in declared]
        return [each.name for each in sizes if each.name in self._given or not each.default]

    def _changes(self, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for name in self.free:
            if type(values[name]) is int:
                yield {name: 2 * values[name]}
                yield {name: values[name] + 1}  # a quotient is rounded then
        alike: dict[str, list[str]] = {}
        for each in self._arguments:
            if each.kind == "dtype":
                alike.setdefault(str(values[each.name]), []).append(each.name)
        for dtype, names in alike.items():
            other = {"float16": "bfloat16", "float32": "float16"}.get(dtype, "float16")
            yield dict.fromkeys(names, other)

    def _kernel(self, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
        from tilelang import tvm

        from tlmatrix.interpreter import InterpretedKernel, interpret, interpreted
        from tlmatrix.interpreter.frontend.device import stand_in

        factory: Any = self._target.found
        with interpret(), stand_in():
            kernel = factory.compile(**values) if self._tensors else factory(**values)
        if isinstance(kernel, tvm.tirx.PrimFunc):
            kernel = interpreted(kernel)
        if not isinstance(kernel, InterpretedKernel):
            raise TypeError(f"the factory returned a {type(kernel).__name__}, not a kernel")
        return kernel

    def _call(self, values: Mapping[str, Any], kernel: Any, uses: Uses, factor: int) -> Call:  # noqa: ANN401
        """The call of a kernel; symbolic dimensions have sizes of their own, times a factor."""
        func = kernel.prim_func
        out = [k % len(func.params) for k in kernel.out_idx or ()]
        given: dict[str, Any] = {}
        results: dict[str, Seen] = {}
        names: dict[str, str] = {}
        for position, handle in enumerate(func.params):
            if handle not in func.buffer_map:
                given[str(handle.name)] = 1.0 if "float" in str(handle.dtype) else 1
                continue
            buffer = func.buffer_map[handle]
            name = str(buffer.name)
            texts = [str(size) for size in buffer.shape]
            known = dtype_of(str(buffer.dtype))  # by PyTorch's name
            dtype = str(buffer.dtype) if known is None else known.name
            noted = Seen(tuple(self._size(text, factor) for text in texts), dtype)
            (results if position in out else given)[name] = noted
            named = ((k, NAME.fullmatch(text)) for k, text in enumerate(texts))
            names |= {
                f"{name}.{dim}": match.group()  # a plain string, as TVM's are not
                for dim, match in named
                if match is not None and not match.group().isdigit()
            }
        # As a call has them: a dtype of TileLang is no value of a spec.
        construct = {n: seen(value) for n, value in values.items() if n not in self._consts}
        return Call(
            self._target.text,
            given,
            results,
            construct=construct,
            changed=uses.written & {*given},
            names=names,
            uses=uses,
            sizes={
                **{name: values[name] for name in self._consts},
                **{name: factor * size for name, size in self._symbolic.items()},
            },
        )

    def _size(self, text: str, factor: int) -> int:
        try:
            expression = Expression(text)
            sizes = {name: factor * self._symbolic[name] for name in expression.names}
            return int(expression.evaluate(sizes))
        except (ExpressionError, TypeError):
            return 1
