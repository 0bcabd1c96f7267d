"""Watches a program, and records the calls of kernels and operators that it makes.

A profile function sees the calls of the program's own functions. A call in which a TileLang kernel
runs is one of an operator; functions that return tensors without one may be references, which a
comparison of a result shows. It works on a GPU and on the interpreter alike.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from dis import opname
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from tlmatrix.draft.calls import (
    MOST_CALLS,
    Call,
    Comparison,
    Seen,
    flattened,
    seen,
    signature,
    strides_of,
    write_call,
)
from tlmatrix.draft.interface import argument_kind
from tlmatrix.draft.probes import Live, probed
from tlmatrix.draft.targets import is_test_file, target_of
from tlmatrix.draft.uses import Uses, merged, uses_of
from tlmatrix.interpreter.patching import replace_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import CodeType, FrameType

    from tlmatrix.draft.targets import Target

_COMPARES = re.compile(r"assert|close|equal|compare|diff|similar|error", re.IGNORECASE)
"""Names of a program's own functions that compare two results."""
_COMPARED_NAMES = ("actual", "input", "expected", "other")
"""Of what PyTorch's functions compare."""
_CONVERSIONS = frozenset({
    "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "half", "int",
    "long", "to", "type", "type_as",
})  # fmt: skip
"""Methods whose result has the same elements in another dtype or memory."""
_MOST_RESULTS = 4096
"""Most recent results of operators, and of other functions, that are remembered."""


@dataclass(eq=False)
class _Open:
    """A call that has not returned."""

    code: CodeType
    arguments: dict[str, Any]
    seen: dict[str, Any]
    start: float
    before: dict[str, torch.Tensor]
    versions: dict[str, int]
    launches: list[_Launch] = field(default_factory=list)
    inner: int = 0


@dataclass(frozen=True, eq=False)
class _Launch:
    """A launch of a kernel: its PrimFunc, its tensors by parameter, and how it was made."""

    prim_func: Any
    tensors: Mapping[str, torch.Tensor]
    factory: Mapping[str, Any]


class _Conversions(TorchFunctionMode):
    """Inside, it is noted which tensor each converted one has its elements from."""

    def __init__(self) -> None:
        super().__init__()
        self._sources = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """See `torch.overrides`."""
        found = func(*args, **(kwargs or {}))
        named = getattr(func, "__name__", "") in _CONVERSIONS
        if named and isinstance(found, torch.Tensor) and found is not args[0]:
            self._sources[found] = args[0]
        return found

    def chain(self, tensor: Any) -> Iterator[Any]:
        """A tensor, the one that it was converted from, and so on."""
        yield tensor
        while isinstance(tensor, torch.Tensor) and tensor in self._sources:
            tensor = self._sources[tensor]
            yield tensor

    def root(self, tensor: Any) -> Any:
        """The tensor at the start of all conversions."""
        *_, first = self.chain(tensor)
        return first


class Recorder:
    """Records calls.

    Args:
        keep: called with each call.
        root: the folder whose functions are recorded.
        wanted: the code of functions that are recorded though no kernel runs in them.
        agree: whether comparisons hold, as where kernels are only traced.
    """

    def __init__(
        self,
        keep: Callable[[Call], None],
        root: Path,
        wanted: Mapping[CodeType, str] | None = None,
        *,
        agree: bool = False,
    ) -> None:
        self._keep = keep
        self._agree = agree
        self._root = str(root.resolve()) + os.sep
        self._wanted = dict(wanted or {})
        self._codes: dict[CodeType, bool] = {}
        self._stack: list[_Open] = []
        self._made: dict[int, tuple[Any, str, dict[str, Any]]] = {}
        self._ahead: dict[int, tuple[Any, str, Callable[..., Any], dict[str, Any]]] = {}
        self._uses: dict[int, tuple[Any, Uses]] = {}
        self._constructed: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._returned: dict[int, tuple[torch.Tensor, str, dict[str, Any], dict[str, Any]]] = {}
        self._results: dict[int, tuple[torch.Tensor, Call, str, dict[str, Any]]] = {}
        self._live: dict[str, Live] = {}
        self._conversions = _Conversions()
        self._thread = threading.get_ident()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, calls of this thread are recorded."""
        with ExitStack() as stack:
            replace_in(stack, self._entry_points())
            replace_in(stack, self._comparisons())
            stack.enter_context(self._conversions)
            before = sys.getprofile()
            sys.setprofile(self._event)
            try:
                yield
            finally:
                sys.setprofile(before)

    def _watch_again(self) -> None:
        """Go on after a signal's exception, such as a timeout's, has ended the profile function."""
        if sys.getprofile() is None and threading.get_ident() == self._thread:
            self._stack.clear()
            sys.setprofile(self._event)

    # Calls of Python functions ---------------------------------------------------------------

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            known = self._codes.get(code)
            if known is None:
                known = self._codes[code] = self._is_of_program(code)
            if known:
                self._enter(frame)
        elif event == "return" and self._stack and self._codes.get(frame.f_code):
            if self._stack[-1].code is frame.f_code and self._stack[-1].inner:
                self._stack[-1].inner -= 1
                return
            while self._stack:
                opened = self._stack.pop()
                if opened.code is frame.f_code:
                    if arg is not None or _returns(frame):
                        self._leave(opened, frame, arg)
                    break

    def _is_of_program(self, code: CodeType) -> bool:
        if code in self._wanted:
            return True
        inside = code.co_filename.startswith(self._root) and "site-packages" not in code.co_filename
        return inside and code.co_name[0] != "<" and not code.co_flags & inspect.CO_GENERATOR

    def _enter(self, frame: FrameType) -> None:
        code = frame.f_code
        if self._stack and self._stack[-1].code is code:
            self._stack[-1].inner += 1  # it calls itself, or it is an eager kernel
            return
        arguments = {name: frame.f_locals[name] for name in _parameters(code, frame)}
        if code.co_name == "__init__" and arguments:
            owner = next(iter(arguments.values()))
            given = dict(list(arguments.items())[1:])
            # That of the class itself, not those of its bases.
            self._constructed.setdefault(id(owner), (owner, given))
        if _COMPARES.search(code.co_name):
            tensors = [each for each in arguments.values() if flattened(each)]
            if len(tensors) == 2:
                self._compared(tensors[0], tensors[1], arguments)
        self._stack.append(_opened(code, arguments, clone=code in self._wanted))

    def _leave(self, opened: _Open, frame: FrameType, results: object) -> None:
        made = flattened(results) if results is not None else {}
        if opened.launches or opened.code in self._wanted:
            if self._stack:
                self._stack[-1].launches += opened.launches
            target = self._wanted.get(opened.code) or self._target_of(opened, frame)
            if target and (made or _has_tensors(opened)):
                self._record(target, opened, results, made)
            return
        if not made or opened.code.co_name.startswith("test"):
            return
        name = f"{self._module(frame)}:{opened.code.co_qualname}"
        arguments, construct = dict(opened.arguments), {}
        if (owner := next(iter(arguments), "")) == "self":
            instance = arguments.pop(owner)
            construct = self._constructed.get(id(instance), (None, {}))[1]
            name = f"{self._class_name(type(instance), frame)}.{opened.code.co_name}"
        given = {id(each) for value in arguments.values() for each in flattened(value).values()}
        for tensor in made.values():
            if id(tensor) in given:
                continue  # it is passed on
            # The last function that returns it is the one that its user calls.
            _remember(self._returned, (tensor, name, arguments, construct))

    def _is_operator(self, code: CodeType) -> bool:
        """Whether callers can import a function, and it is not part of a test."""
        path, file = code.co_qualname, code.co_filename.removeprefix(self._root)
        if "<locals>" in path or is_test_file(file):
            return False
        owner, _, method = path.rpartition(".")
        return method in ("forward", "__call__") if owner else not method.startswith("_")

    def _is_inside(self) -> bool:
        """Whether an operator is open, which is that of a method below `__call__`.

        So is the backward pass of one, while other threads run it, too. A program's main function
        takes no tensors.
        """
        return threading.get_ident() != self._thread or any(
            each.code.co_qualname.endswith(".backward")
            or (self._is_operator(each.code) and each.code.co_name != "__call__")
            for each in self._stack
            if _has_tensors(each)
        )

    def _target_of(self, opened: _Open, frame: FrameType) -> str:
        """The name of an operator; "" if it is none."""
        if not self._is_operator(opened.code):
            return ""
        owner, _, method = opened.code.co_qualname.rpartition(".")
        if not owner:
            return f"{self._module(frame)}:{method}"
        if _is_function_class(frame.f_globals.get(owner)):
            return f"{self._module(frame)}:{owner}.apply"
        kind = type(next(iter(opened.arguments.values()), None))  # of a base class's method
        if kind.__qualname__[0] == "_" or "." in kind.__qualname__:
            return ""
        if method == "__call__" and hasattr(kind, "forward"):
            return ""
        return self._class_name(kind, frame)

    def _class_name(self, kind: type, frame: FrameType) -> str:
        """The name of a class, of which a method may be that of a base class in another module."""
        code = frame.f_code.co_filename
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or code
        return f"{self._module_of(kind.__module__, file)}:{kind.__qualname__}"

    def _module(self, frame: FrameType) -> str:
        return self._module_of(frame.f_globals.get("__name__"), frame.f_code.co_filename)

    def _module_of(self, name: object, path: str) -> str:
        """The name by which a module of the program is imported from its root."""
        file = Path(path)
        if not path.startswith(self._root):
            return str(name)
        parts = file.with_suffix("").relative_to(self._root).parts
        # A test's folder is on the path while pytest runs, and a script is `__main__`.
        known = str(name).split(".") == list(parts[-len(str(name).split(".")) :])
        inside = name != "__main__" and known and (file.parent / "__init__.py").is_file()
        return str(name) if inside or parts[:1] == ("src",) else ".".join(parts)

    def _record(
        self, target: str, opened: _Open, results: object, made: Mapping[str, torch.Tensor]
    ) -> None:
        arguments, noted, construct = dict(opened.arguments), dict(opened.seen), {}
        instance = None
        if "." in opened.code.co_qualname and arguments:
            owner = next(iter(arguments))
            instance = arguments.pop(owner)
            noted.pop(owner)
            if target.endswith(".apply"):
                instance = None  # the context of a function
            construct = self._constructed.get(id(instance), (None, {}))[1]
            if isinstance(instance, torch.nn.Module):
                state = {n.replace(".", "_"): p for n, p in instance.named_parameters()}
                arguments |= state
                noted |= {name: seen(value) for name, value in state.items()}
        tensors = {name: each for name, each in arguments.items() if isinstance(each, torch.Tensor)}
        returned = {
            path: each
            for path, each in made.items()
            if not any(each is a for a in tensors.values())
        }
        places = {**tensors, **returned}
        uses, written = Uses(), set()
        names: dict[str, str] = {}
        for launch in opened.launches:
            mapped = _places(launch, places)
            own = self._uses_of(launch)
            names = _dimension_names(launch, mapped) | names
            uses = merged(uses, own.renamed(mapped))
            written |= {mapped[each][0] for each in own.written if each in mapped}
        changed = _changed(opened, tensors)
        if not opened.before:  # nothing else tells whether it reads what it changes
            uses = replace(uses, updated=uses.updated | (changed - written))
        call = Call(
            target,
            noted,
            frozenset(arguments),
            {path: _plain(each) for path, each in returned.items()},
            construct={name: seen(each) for name, each in construct.items()},
            constructed=frozenset(construct),
            changed=changed | (written & {*tensors}),
            grads=frozenset(
                name
                for name, each in noted.items()
                if isinstance(each, Seen) and each.grad
                if any(tensor.requires_grad for tensor in returned.values())
            ),
            names=names,
            uses=uses,
            inner=self._is_inside(),
            seconds=time.perf_counter() - opened.start,
        )
        for path, tensor in returned.items():
            _remember(self._results, (tensor, call, path, arguments))
        if opened.before:
            live = Live(call, {**arguments, **opened.before}, results, instance)
            self._live.setdefault(target, live)
        self._keep(call)

    def _uses_of(self, launch: _Launch) -> Uses:
        known = self._uses.get(id(launch.prim_func))
        if known is None:
            try:
                found = uses_of(launch.prim_func)
            except Exception:  # noqa: BLE001 - the kernel may use what is not modelled
                found = Uses()
            known = self._uses[id(launch.prim_func)] = (launch.prim_func, found)
        return known[1]

    def probed(self, target: Target) -> Call | None:
        """The first call of a target, with what calls with its values show; None without one."""
        live = self._live.get(target.text)
        return None if live is None else probed(target, live)

    # Kernels ---------------------------------------------------------------------------------

    def _entry_points(self) -> Iterator[tuple[Any, str, Any]]:
        from tilelang.autotuner.tuner import AutoTuneImpl
        from tilelang.jit import JITImpl
        from tilelang.jit.kernel import JITKernel

        from tlmatrix.interpreter import InterpretedKernel, TracedKernel

        for kind, name in ((JITImpl, "__call__"), (JITImpl, "compile"), (AutoTuneImpl, "__call__")):
            yield kind, name, self._making(vars(kind)[name])
        for kernel in (JITKernel, InterpretedKernel, TracedKernel):
            yield kernel, "__call__", self._launching(vars(kernel)["__call__"])

    def _making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def make(jit: Any, *args: Any, **keywords: Any) -> Any:
            self._watch_again()
            func = getattr(jit, "jit_impl", jit).func
            func = getattr(func, "orig_func", func)
            importable = "<locals>" not in func.__qualname__ and func.__name__[0] != "_"
            module = self._module_of(func.__module__, func.__code__.co_filename)
            name = f"{module}:{func.__qualname__}" if importable else ""
            signature = inspect.signature(func)
            try:
                bound = dict(signature.bind(*args, **keywords).arguments)
            except (TypeError, ValueError):
                kernel = original(jit, *args, **keywords)
                # An eager function compiled ahead: its symbolic sizes are passed for its tensors.
                bound = {n: each for n, each in keywords.items() if n in signature.parameters}
                if name:
                    self._ahead[id(kernel)] = (kernel, name, func, bound)
                return kernel
            with self._eager(name, func.__code__, bound) as results:
                results.append(original(jit, *args, **keywords))
            if hasattr(results[0], "prim_func"):
                self._made[id(results[0])] = (results[0], name, bound)
            return results[0]

        return make

    def _launching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(kernel: Any, *args: Any, **keywords: Any) -> Any:
            self._watch_again()
            profile = sys.getprofile()
            sys.setprofile(None)
            try:
                results = original(kernel, *args, **keywords)
                names = _parameter_names(kernel.prim_func)
                count = len(names)
                out = [k % count for k in kernel.out_idx or ()]
                given = (name for k, name in enumerate(names) if k not in out)
                live = dict(zip(given, args, strict=False))
                made = results if isinstance(results, tuple | list) else [results]
                live |= dict(zip((names[k] for k in out), made, strict=False))
                tensors = {n: t for n, t in live.items() if isinstance(t, torch.Tensor)}
                factory, arguments = self._made.get(id(kernel), (None, "", {}))[1:]
                noted = _Launch(kernel.prim_func, tensors, arguments)
                if self._stack:
                    self._stack[-1].launches.append(noted)
                self._called(noted, factory, live, [names[k] for k in out])
                if id(kernel) in self._ahead:
                    self._called_ahead(*self._ahead[id(kernel)][1:], noted, results)
            finally:
                sys.setprofile(profile)
            return results

        return launch

    @contextmanager
    def _eager(self, name: str, code: CodeType, arguments: dict[str, Any]) -> Iterator[list[Any]]:
        """Inside, an eager kernel runs; records the call with what is appended as its result."""
        results: list[Any] = []
        opened = _opened(code, arguments, clone=name in self._wanted.values())
        self._stack.append(opened)
        try:
            yield results
        finally:
            self._stack.remove(opened)
        if opened.launches and name and not hasattr(results[0], "prim_func"):
            if self._stack:
                self._stack[-1].launches += opened.launches
            self._record(name, opened, results[0], flattened(results[0]))

    def _called_ahead(
        self,
        name: str,
        func: Callable[..., Any],
        passed: Mapping[str, Any],
        launch: _Launch,
        results: object,
    ) -> None:
        """Record a launch as the call of the eager function that its kernel was compiled from."""
        order = inspect.signature(func).parameters
        known = {**passed, **launch.tensors}
        arguments = {each: known[each] for each in order if each in known}
        opened = _opened(func.__code__, arguments, clone=name in self._wanted.values())
        opened.launches.append(launch)
        self._record(name, opened, results, flattened(results))

    def _called(
        self, launch: _Launch, factory: str, live: Mapping[str, Any], out: Collection[str]
    ) -> None:
        """Record the call of a kernel that callers get from a factory that they can import."""
        if not factory:
            return
        noted = {name: seen(value) for name, value in live.items() if name not in out}
        uses = self._uses_of(launch)
        own: Mapping[str, Any] = {
            name: (name, {dim: dim for dim in range(each.dim())})
            for name, each in launch.tensors.items()
        }
        call = Call(
            factory,
            noted,
            frozenset(noted),
            {name: _plain(launch.tensors[name]) for name in live if name in out},
            construct={name: seen(each) for name, each in launch.factory.items()},
            constructed=frozenset(launch.factory),
            changed=uses.written & {*noted},
            names=_dimension_names(launch, own),
            uses=uses,
            inner=self._is_inside(),
        )
        for name in (*out, *call.changed):
            _remember(self._results, (launch.tensors[name], call, name, dict(launch.tensors)))
        self._keep(call)

    # Comparisons -----------------------------------------------------------------------------

    def _comparisons(self) -> Iterator[tuple[Any, str, Any]]:
        for module, name in (
            ("torch.testing", "assert_close"),
            ("torch", "allclose"),
            ("torch", "equal"),
            ("torch.testing._comparison", "assert_close"),
            ("tilelang.testing", "torch_assert_close"),
            ("tilelang.utils.tensor", "torch_assert_close"),
            ("tilelang.profiler", "torch_assert_close"),
        ):
            owner = import_module(module)
            original = getattr(owner, name, None)
            if original is not None:
                yield owner, name, self._noting(original)

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def comparing(*args: Any, **keywords: Any) -> Any:
            named = (keywords[name] for name in _COMPARED_NAMES if name in keywords)
            one, other, *_ = [*args, *named, None, None]
            self._compared(one, other, keywords)
            return self._agree or original(*args, **keywords)

        return comparing

    def _compared(self, one: object, other: object, options: Mapping[str, Any]) -> None:
        """Note a comparison if it is one of a result."""
        for result, expected in ((one, other), (other, one)):
            pairs = list(
                zip(flattened(result).values(), flattened(expected).values(), strict=False)
            )
            if any(mine.numel() != theirs.numel() for mine, theirs in pairs):
                continue  # it compares parts of them
            for mine, theirs in pairs:
                found = self._source(mine)
                if found is None or self._source(theirs) is not None:
                    continue
                call, path, arguments = found
                returned = (self._returned.get(id(t)) for t in self._conversions.chain(theirs))
                function, *given = next(filter(None, returned), (None, "", {}, {}))[1:]
                passed, construct = (
                    {name: self._named(value, arguments) for name, value in each.items()}
                    for each in given
                )
                noted = Comparison(
                    path,
                    function,
                    passed,
                    construct,
                    options.get("rtol"),
                    options.get("atol"),
                )
                if noted not in call.compared:
                    self._keep(replace(call, compared=(noted,)))

    def _named(self, value: object, arguments: Mapping[str, Any]) -> object:
        """An argument of a reference: `$name` for an argument of the call, or a constant."""
        if isinstance(value, torch.Tensor):
            root = self._conversions.root(value)
            same = (n for n, each in arguments.items() if self._conversions.root(each) is root)
            return next((f"${name}" for name in same), "")
        noted = seen(value)
        return noted if not isinstance(noted, Seen) else ""

    def _source(self, tensor: torch.Tensor) -> tuple[Call, str, dict[str, Any]] | None:
        """The call that made a tensor, or that of the same size which made the last one."""
        for each in self._conversions.chain(tensor):
            if found := self._results.get(id(each)):
                return found[1:]
            if id(each) in self._returned:
                return None
        for made, call, path, arguments in reversed(self._results.values()):
            shared = made.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            if shared and made.numel() == tensor.numel():
                return call, path, arguments
        return None


def _remember(table: dict[int, Any], result: tuple[torch.Tensor, *tuple[Any, ...]]) -> None:
    """Add a result to a table by the identity of its tensor, and drop the oldest one."""
    table[id(result[0])] = result
    if len(table) > _MOST_RESULTS:
        del table[next(iter(table))]


def _places(
    launch: _Launch, tensors: Mapping[str, torch.Tensor]
) -> dict[str, tuple[str, dict[int, int]]]:
    """The tensor of each parameter that is one or a view of all of it, with its dimensions."""
    found = {}
    for parameter, value in launch.tensors.items():
        for name, tensor in tensors.items():
            same = value.data_ptr() == tensor.data_ptr() and value.dtype == tensor.dtype
            if same and value.numel() == tensor.numel() > 0:
                found[parameter] = (name, _matched_dims(value, tensor))
                break
    return found


def _matched_dims(one: torch.Tensor, other: torch.Tensor) -> dict[int, int]:
    """The dimensions of a tensor that are dimensions of another view of its memory."""
    if one.shape == other.shape:
        return {dim: dim for dim in range(one.dim())}
    steps = {(n, step): dim for dim, (n, step) in enumerate(_steps(other))}
    return {
        dim: steps[n, step]
        for dim, (n, step) in enumerate(_steps(one))
        if n > 1 and (n, step) in steps
    }


def _steps(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The size and the stride of each dimension."""
    return zip(tensor.shape, tensor.stride(), strict=True)


def _dimension_names(
    launch: _Launch, mapped: Mapping[str, tuple[str, Mapping[int, int]]]
) -> dict[str, str]:
    """Names of dimensions: arguments of the factory with their value, and symbolic dims."""
    sizes: dict[str, str] = {}
    for name, value in launch.factory.items():
        sized = type(value) is int and argument_kind(name, value, None) == "size"
        if sized and value > 1:
            sizes.setdefault(str(value), name)
    found = {}
    for buffer in launch.prim_func.buffer_map.values():
        name, dims = mapped.get(str(buffer.name), ("", {}))
        for dim, size in enumerate(buffer.shape):
            text = str(size)
            named = re.fullmatch(r"[A-Za-z_]\w*( \+ \d+)?", sizes.get(text, text))
            if dim in dims and named is not None:
                found[f"{name}.{dims[dim]}"] = named.group()  # a plain string, as TVM's are not
    return found


def _has_tensors(opened: _Open) -> bool:
    """Whether a call has tensors among its arguments, or a module with its own."""
    kinds = (torch.nn.Module, torch.autograd.function.FunctionCtx)
    return any(flattened(a) or isinstance(a, kinds) for a in opened.arguments.values())


def _returns(frame: FrameType) -> bool:
    """Whether a frame ends by `return`, and not by an exception."""
    return opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def _opened(code: CodeType, arguments: dict[str, Any], *, clone: bool) -> _Open:
    noted = {each: seen(value) for each, value in arguments.items()}
    tensors = {n: each for n, each in arguments.items() if isinstance(each, torch.Tensor)}
    before = {n: each.detach().clone() for n, each in tensors.items()} if clone else {}
    versions = {n: each._version for n, each in tensors.items() if not each.is_inference()}  # noqa: SLF001
    return _Open(code, arguments, noted, time.perf_counter(), before, versions)


def _parameter_names(prim_func: Any) -> list[str]:
    buffers = prim_func.buffer_map
    return [str(buffers[p].name if p in buffers else p.name) for p in prim_func.params]


def _parameters(code: CodeType, frame: FrameType) -> list[str]:
    count = code.co_argcount + code.co_kwonlyargcount
    return [name for name in code.co_varnames[:count] if name in frame.f_locals]


def _is_function_class(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.autograd.Function)


def _plain(tensor: torch.Tensor) -> Seen:
    dtype = str(tensor.dtype)[6:]
    return Seen(tuple(tensor.shape), dtype, strides_of(tensor), tensor.requires_grad)


def _changed(opened: _Open, tensors: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Arguments whose values are others after the call, or that PyTorch wrote if none is copied."""
    if opened.before:
        pairs = ((name, before, tensors[name]) for name, before in opened.before.items())
        return frozenset(n for n, a, b in pairs if not torch.equal(_bytes(a), _bytes(b)))
    versions = opened.versions.items()
    return frozenset(n for n, version in versions if tensors[n]._version != version)  # noqa: SLF001


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, of which NaNs are equal to themselves."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def codes_of(functions: Sequence[str]) -> dict[CodeType, str]:
    """The code of functions that are recorded though no kernel runs in them, with their names.

    Raises:
        UsageError: a function does not exist.
    """
    targets = [target_of(name) for name in functions]
    return {t.written.__code__: t.text for t in targets if hasattr(t.written, "__code__")}


def record_program(
    program: str,
    arguments: Sequence[str],
    file: TextIO,
    *,
    module: bool,
    wanted: Mapping[CodeType, str] | None = None,
    trace_only: bool = False,
) -> None:
    """Run a program, on a GPU if there is one and else interpreted, and write its calls to a file.

    Args:
        program: the script, or with `module` the module.
        arguments: its own arguments.
        file: gets each call as soon as it has returned.
        module: whether it is run as by `python -m`.
        wanted: the code of functions that are recorded though no kernel runs in them.
        trace_only: whether kernels are traced and not run, so that results are zeros.

    Raises:
        SystemExit: raised by the program.
    """
    from tlmatrix.interpreter.frontend.scripts import run_as_main, run_program

    if not module:
        program = str(Path(program).resolve())  # its functions are seen to be below the root
    with Recorder(_writing(file), Path.cwd(), wanted, agree=trace_only).recording():
        if trace_only or not torch.cuda.is_available():
            launched: list[Any] | None = [] if trace_only else None
            run_program(program, arguments, module=module, launched=launched)
        else:
            run_as_main(program, arguments, module=module)


def _writing(file: TextIO) -> Callable[[Call], None]:
    """A function that writes different calls, and what their results are compared with."""
    known: dict[str, set[str]] = {}
    compared: dict[str, int] = {}

    def keep(call: Call) -> None:
        of_target = known.setdefault(call.target, set())
        if call.compared:
            compared[call.target] = compared.get(call.target, 0) + 1
            if compared[call.target] <= MOST_CALLS:
                write_call(file, call)
            return
        key = signature(call)
        if key not in of_target and len(of_target) < MOST_CALLS:
            of_target.add(key)
            write_call(file, call)

    return keep
