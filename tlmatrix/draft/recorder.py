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
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from dis import opname
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import torch

from tlmatrix.draft.calls import (
    MOST_CALLS,
    Call,
    Opaque,
    flattened,
    seen,
    seen_tensor,
    set_of_traced,
    signature,
    write_call,
)
from tlmatrix.draft.comparisons import Comparisons, Result, Returned
from tlmatrix.draft.launches import Launch, launch_of
from tlmatrix.draft.probes import Live
from tlmatrix.draft.slices import Slicer
from tlmatrix.draft.targets import is_test_file, target_of
from tlmatrix.draft.uses import Uses, merged, uses_of
from tlmatrix.interpreter.patching import replace_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType


_COMPARES = re.compile(r"assert|close|equal|compare|diff|similar|(^|_)err", re.IGNORECASE)
"""Names of a program's own functions that compare two results."""


class _Open:
    """A call that has not returned; with `clone`, its tensors are copied before."""

    def __init__(self, code: CodeType, arguments: dict[str, Any], *, clone: bool) -> None:
        self.code = code
        self.arguments = arguments
        self.seen = {name: seen(value) for name, value in arguments.items()}
        self.launches: list[Launch] = []
        self.inner = 0
        self._tensors = {n: e for n, e in arguments.items() if isinstance(e, torch.Tensor)}
        tensors = self._tensors.items()
        self.before = {n: e.detach().clone() for n, e in tensors} if clone else {}
        self._versions = {n: e._version for n, e in tensors if not e.is_inference()}  # noqa: SLF001

    @property
    def has_tensors(self) -> bool:
        """Whether there are tensors among the arguments, or a module with its own."""
        kinds = (torch.nn.Module, torch.autograd.function.FunctionCtx)
        return any(flattened(a) or isinstance(a, kinds) for a in self.arguments.values())

    def changed(self) -> frozenset[str]:
        """Arguments whose values are others now, or that PyTorch wrote if none is copied."""
        if self.before:
            pairs = ((name, before, self._tensors[name]) for name, before in self.before.items())
            return frozenset(n for n, a, b in pairs if not torch.equal(_bytes(a), _bytes(b)))
        versions = self._versions.items()
        return frozenset(n for n, v in versions if self._tensors[n]._version != v)  # noqa: SLF001


class _Factory(NamedTuple):
    """The jitted function that made a kernel; `name` is "" if callers cannot import it.

    A kernel of an eager function is called like the function.
    """

    kernel: object
    name: str
    parameters: list[str]
    arguments: Mapping[str, Any]
    eager: bool


class Recorder:
    """Records calls.

    Args:
        keep: called with each call.
        root: the folder whose functions are recorded.
        wanted: the code of functions that are recorded though no kernel runs in them.
        agree: whether comparisons hold, as where kernels are only traced.

    Attributes:
        live: the first call of each wanted function, with its values.
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
        self._root = str(root.resolve()) + os.sep
        self._slicer = Slicer(lambda frame: self._is_below(frame.f_code), self._module)
        self._comparisons = Comparisons(keep, self._slicer, agree=agree)
        self._wanted = dict(wanted or {})
        self._codes: dict[CodeType, bool] = {}
        self._stack: list[_Open] = []
        self._kernels: dict[int, _Factory] = {}
        self._uses: dict[int, tuple[Any, Uses]] = {}
        self._constructed: dict[int, tuple[Any, dict[str, Any], bool]] = {}
        self.live: dict[str, Live] = {}
        self._thread = threading.get_ident()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, calls of this thread are recorded."""
        with ExitStack() as stack:
            replace_in(stack, self._entry_points())
            replace_in(stack, self._comparisons.functions())
            stack.enter_context(self._comparisons.conversions)
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
        return (
            self._is_below(code)
            and (code.co_name[0] != "<" or code.co_name == "<lambda>")
            and not code.co_flags & inspect.CO_GENERATOR
        )

    def _is_below(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._root) and "site-packages" not in code.co_filename

    def _enter(self, frame: FrameType) -> None:
        code = frame.f_code
        if self._stack and self._stack[-1].code is code:
            self._stack[-1].inner += 1  # it calls itself, or it is an eager kernel
            return
        arguments = {name: frame.f_locals[name] for name in _parameters(code, frame)}
        if code.co_name == "__init__" and arguments:
            owner = next(iter(arguments.values()))
            given = dict(list(arguments.items())[1:])
            _, known, passed_on = self._constructed.get(id(owner), (owner, {}, True))
            if passed_on:  # not those of the bases of a class that takes its own alone
                takes_all = bool(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
                self._constructed[id(owner)] = (owner, given | known, takes_all)
        if _COMPARES.search(code.co_name):
            tensors = [each for each in arguments.values() if flattened(each)]
            if len(tensors) == 2:
                self._comparisons.note(tensors[0], tensors[1])
        self._stack.append(_Open(code, arguments, clone=code in self._wanted))

    def _leave(self, opened: _Open, frame: FrameType, results: object) -> None:
        made = flattened(results) if results is not None else {}
        if opened.launches or opened.code in self._wanted:
            if self._stack:
                self._stack[-1].launches += opened.launches
            target = self._wanted.get(opened.code) or self._target_of(opened, frame)
            if target and (made or opened.has_tensors):
                self._record_operator(target, opened, results, made)
            return
        written = opened.changed() if results is None else frozenset()
        made |= {name: opened.arguments[name] for name in written}  # a reference may, in place
        if not made or opened.code.co_name.startswith("test"):
            return
        name = f"{self._module(frame)}:{opened.code.co_qualname}"
        arguments, construct, source = dict(opened.arguments), {}, ""
        if "<locals>" in name and (part := self._slicer.local_function(frame)) is not None:
            source = part.source
            arguments |= part.arguments
        if (owner := next(iter(arguments), "")) == "self":
            instance = arguments.pop(owner)
            construct = self._constructed.get(id(instance), (None, {}))[1]
            name = f"{self._class_name(type(instance), frame)}.{opened.code.co_name}"
        others = (value for name, value in arguments.items() if name not in written)
        given = {id(each) for value in others for each in flattened(value).values()}
        objects = any(isinstance(seen(each), Opaque) for each in arguments.values())
        for tensor in made.values():
            if id(tensor) not in given:  # it is not passed on
                found = Returned(tensor, name, arguments, construct, source)
                plain = bool(source) or not (objects or "<locals>" in name)
                self._comparisons.remember(found, again=plain)

    def _is_operator(self, code: CodeType) -> bool:
        """Whether callers can import a function, and it is not part of a test."""
        path, file = code.co_qualname, code.co_filename.removeprefix(self._root)
        if "<locals>" in path or is_test_file(file):
            return False
        owner, _, method = path.rpartition(".")
        return method in ("forward", "__call__") if owner else method[0] not in "_<"

    def _is_inside(self) -> bool:
        """Whether an operator is open, which is that of a method below `__call__`.

        So is the backward pass of one, while other threads run it, too. A program's main function
        takes no tensors.
        """
        return threading.get_ident() != self._thread or any(
            each.code.co_qualname.endswith(".backward")
            or (self._is_operator(each.code) and each.code.co_name != "__call__")
            for each in self._stack
            if each.has_tensors
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
        instance = next(iter(opened.arguments.values()), None)
        kind = type(instance)  # of a base class's method
        overrides = (
            e for e in self._stack if e.code.co_name == method and e.code is not opened.code
        )
        if any(next(iter(each.arguments.values()), None) is instance for each in overrides):
            return ""  # the method of a subclass calls that of its base
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

    def _record_operator(
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
        call = self._record(target, arguments, noted, made, opened.launches, construct, opened)
        if opened.before:
            live = Live(call, {**arguments, **opened.before}, results, instance)
            self.live.setdefault(target, live)

    def _record_kernel(self, factory: _Factory, launch: Launch) -> None:
        """Record the call of a kernel that callers get from a factory that they can import."""
        arguments, construct = dict(launch.given), dict(factory.arguments)
        if factory.eager:
            known = construct | arguments
            arguments = {name: known[name] for name in factory.parameters if name in known}
            construct = {}
        noted = {name: seen(value) for name, value in arguments.items()}
        self._record(factory.name, arguments, noted, launch.made, [launch], construct)

    def _record(
        self,
        target: str,
        arguments: Mapping[str, Any],
        noted: Mapping[str, Any],
        made: Mapping[str, torch.Tensor],
        launches: Sequence[Launch],
        construct: Mapping[str, Any],
        opened: _Open | None = None,
    ) -> Call:
        """Record a call, and remember its results and changed arguments."""
        tensors = {name: each for name, each in arguments.items() if isinstance(each, torch.Tensor)}
        given = [id(each) for each in tensors.values()]
        results = {path: each for path, each in made.items() if id(each) not in given}
        uses = Uses()
        names: dict[str, str] = {}
        for launch in launches:
            mapped = launch.places({**tensors, **results})
            names = launch.dimension_names(mapped) | names
            uses = merged(uses, self._uses_of(launch).renamed(mapped))
        changed = opened.changed() if opened else frozenset()
        if opened and not opened.before:  # nothing else tells whether it reads what it changes
            uses = replace(uses, updated=uses.updated | (changed - uses.written))
        grad = any(each.requires_grad for each in results.values())
        call = Call(
            target,
            noted,
            {path: seen_tensor(each, values=False) for path, each in results.items()},
            construct={name: seen(each) for name, each in construct.items()},
            passed=tuple(made.keys() - results),
            changed=changed | (uses.written & {*tensors}),
            grads=frozenset(name for name, each in tensors.items() if noted[name].grad and grad),
            names=names,
            uses=uses,
            inner=self._is_inside(),
        )
        for path, tensor in (*results.items(), *((n, tensors[n]) for n in call.changed)):
            self._comparisons.remember(Result(tensor, call, path, arguments, set()))
        # Of one that returns a kernel, as of a benchmark, nothing can be judged.
        if results or call.changed or not all(self._uses_of(each).written for each in launches):
            self._keep(call)
        return call

    def _uses_of(self, launch: Launch) -> Uses:
        known = self._uses.get(id(launch.prim_func))
        if known is None:
            try:
                found = uses_of(launch.prim_func)
            except Exception:  # noqa: BLE001 - the kernel may use what is not modelled
                found = Uses()
            known = self._uses[id(launch.prim_func)] = (launch.prim_func, found)
        return known[1]

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
            made = original(jit, *args, **keywords)
            if hasattr(made, "prim_func"):
                self._kernels[id(made)] = self._factory_of(jit, made, args, keywords)
            return made

        return make

    def _factory_of(
        self, jit: Any, kernel: object, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> _Factory:
        func = getattr(jit, "jit_impl", jit).func
        func = getattr(func, "orig_func", func)
        importable = "<" not in func.__qualname__
        module = self._module_of(func.__module__, func.__code__.co_filename)
        name = f"{module}:{func.__qualname__}" if importable else ""
        signature = inspect.signature(func)
        try:
            bound = dict(signature.bind(*args, **keywords).arguments)
            eager = any(isinstance(each, torch.Tensor) for each in bound.values())
        except (TypeError, ValueError):
            # An eager function compiled ahead: its symbolic sizes are passed for its tensors.
            bound = {n: each for n, each in keywords.items() if n in signature.parameters}
            eager = True
        return _Factory(kernel, name, list(signature.parameters), bound, eager)

    def _launching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(kernel: Any, *args: Any, **keywords: Any) -> Any:
            self._watch_again()
            self._slicer.note_launch()
            profile = sys.getprofile()
            sys.setprofile(None)
            try:
                results = original(kernel, *args, **keywords)
                factory = self._kernels.get(id(kernel))
                noted = launch_of(kernel, args, results, factory.arguments if factory else {})
                if self._stack:
                    self._stack[-1].launches.append(noted)
                if factory is not None and factory.name:
                    self._record_kernel(factory, noted)
                if self._comparisons.agree:
                    for name in self._uses_of(noted).written & {*noted.tensors}:
                        set_of_traced(noted.tensors[name], True)
            finally:
                sys.setprofile(profile)
            return results

        return launch


def _returns(frame: FrameType) -> bool:
    """Whether a frame ends by `return`, and not by an exception."""
    return opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def _parameters(code: CodeType, frame: FrameType) -> list[str]:
    count = code.co_argcount + code.co_kwonlyargcount
    return [name for name in code.co_varnames[:count] if name in frame.f_locals]


def _is_function_class(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.autograd.Function)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, of which NaNs are equal to themselves."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def codes_of(functions: Sequence[str]) -> dict[CodeType, str]:
    """The code of functions that are recorded though no kernel runs in them, with their names.

    Raises:
        UsageError: a function does not exist.
    """
    targets = [target_of(name) for name in functions]
    found = [each for each in targets if not each.is_factory]  # kernels are recorded anyway
    return {t.written.__code__: t.text for t in found if hasattr(t.written, "__code__")}


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
            # Nothing is executed for each of the multiprocessors of a whole GPU.
            traced: dict[str, Any] = {"launched": [], "sms": 132} if trace_only else {}
            run_program(program, arguments, module=module, **traced)
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
