"""Runs an example on the interpreter, and records its first call of an operator."""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tlmatrix.commands.new.targets import Target

_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Call:
    """A recorded call, and the results of similar calls.

    Attributes:
        arguments: the arguments by parameter; for a module also its parameters.
        given: the parameters that are passed; the others have their defaults.
        before: copies of the tensors before the call.
        construct: the arguments of the module's constructor, and whether each is passed.
        results: the returned value.
        launches: the kernels that ran.
        again: calls the operator with other arguments.
        calls: the number of calls in the example.
        differentiable: the inputs that get gradients.
        dtype: the dtype of the inputs, and another one that the operator supports.
        with_other: the results with that other dtype, by path.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    before: dict[str, Any] = field(default_factory=dict)
    construct: dict[str, tuple[Any, bool]] = field(default_factory=dict)
    results: Any = None
    launches: list[Any] = field(default_factory=list)
    again: Callable[[Mapping[str, Any]], object] | None = None
    calls: int = 0
    differentiable: frozenset[str] = frozenset()
    dtype: tuple[str, ...] = ()
    with_other: Mapping[str, Any] = field(default_factory=dict)


def record_first_call(target: Target, example: Callable[[], object]) -> Call:
    """The first call of an operator that an example makes."""
    from tlmatrix.interpreter import interpret
    from tlmatrix.interpreter.frontend.device import stand_in

    recorded = Call()
    with interpret(trace=True) as session, stand_in():
        with _record_call(target, recorded, session):
            example()
        if recorded.calls:
            recorded.differentiable = _differentiable(recorded)
            _with_other_dtype(recorded)
    return recorded


@contextmanager
def _record_call(target: Target, recorded: Call, session: Any) -> Iterator[None]:
    """Replace the operator in its module by a function that records the first call."""
    original = target.raw if target.is_module else target.found
    signature = inspect.signature(target.written)
    shown = [each for name, each in signature.parameters.items() if name not in target.hidden]
    signature = signature.replace(parameters=shown)
    made: dict[int, dict[str, tuple[Any, bool]]] = {}

    def wrapper(*args: Any, **keywords: Any) -> Any:
        recorded.calls += 1
        if recorded.calls > 1:
            return original(*args, **keywords)
        module = args[0] if target.is_module else None
        bound = signature.bind(*(args[1:] if target.is_module else args), **keywords)
        recorded.given = frozenset(bound.arguments)
        bound.apply_defaults()
        recorded.arguments = dict(bound.arguments)
        own: dict[str, str] = {}
        if module is not None:
            own = {name.replace(".", "_"): name for name, _ in module.named_parameters()}
            recorded.arguments |= {name: module.get_parameter(path) for name, path in own.items()}
            recorded.construct = made.get(id(module), {})
        recorded.before = {
            name: value.detach().clone()
            for name, value in recorded.arguments.items()
            if isinstance(value, torch.Tensor)
        }

        def again(arguments: Mapping[str, Any]) -> object:
            passed = {name: value for name, value in arguments.items() if name not in own}
            if module is not None:
                state = {path: arguments[name] for name, path in own.items()}
                return torch.func.functional_call(module, state, kwargs=passed)
            return original(*passed.values()) if target.positional else original(**passed)

        recorded.again = again
        first = len(session.log.launches)
        results = original(*args, **keywords)
        recorded.launches = session.log.launches[first:]
        recorded.results = results
        return results

    with _record_construction(target, made):
        setattr(target.owner, target.attribute, wrapper)
        try:
            yield
        finally:
            setattr(target.owner, target.attribute, target.raw)


@contextmanager
def _record_construction(
    target: Target, made: dict[int, dict[str, tuple[Any, bool]]]
) -> Iterator[None]:
    """Record the arguments of a module's constructor by the identity of the module."""
    if not target.is_module:
        yield
        return
    original = target.owner.__init__
    signature = inspect.signature(original)

    def init(self: Any, *args: Any, **keywords: Any) -> None:
        bound = signature.bind(self, *args, **keywords)
        given = set(bound.arguments)
        bound.apply_defaults()
        items = list(bound.arguments.items())[1:]
        made[id(self)] = {name: (value, name in given) for name, value in items}
        original(self, *args, **keywords)

    target.owner.__init__ = init
    try:
        yield
    finally:
        target.owner.__init__ = original


def run_script(script: Path) -> dict[str, Any]:
    """Run a program with its output on stderr, and return its global names.

    Raises:
        UsageError: the program does not exist, or raises.
    """
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


def evaluate(call: str, target: Target, names: Mapping[str, Any]) -> None:
    """Evaluate an example call, in which `f` is also the operator.

    Raises:
        UsageError: the call raises.
    """
    namespace = {"torch": torch, **vars(target.module), **names}
    operator = target.owner if target.is_module else getattr(target.owner, target.attribute)
    namespace |= {"f": namespace.get("f", operator), target.name.split(".")[0]: target.shown}
    try:
        eval(call, namespace)  # noqa: S307 - the user's own command line
    except Exception as error:
        raise UsageError(f"--call {call!r}: {type(error).__name__}: {error}") from error


def _call_again(recorded: Call, changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Call the operator on copies with changed arguments; return the results by path."""
    assert recorded.again is not None
    fresh = {name: value.clone() for name, value in recorded.before.items()}
    return flattened(recorded.again({**recorded.arguments, **fresh, **changed}))


def _differentiable(recorded: Call) -> frozenset[str]:
    """The inputs that get gradients; empty if no result is differentiable."""
    leaves = {
        name: value.clone().requires_grad_()
        for name, value in recorded.before.items()
        if value.is_floating_point()
    }
    try:
        with torch.enable_grad():
            results = _call_again(recorded, leaves)
        outputs = [each for each in results.values() if each.requires_grad]
        if not outputs or not leaves:
            return frozenset()
        ones = [torch.ones_like(each) for each in outputs]
        grads = torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)
    except Exception:  # noqa: BLE001 - an operator without a backward may raise anything
        return frozenset()
    return frozenset(name for name, grad in zip(leaves, grads, strict=True) if grad is not None)


def dtype_arguments(recorded: Call, dtype: str) -> list[str]:
    """The arguments whose value is the name of this dtype."""
    given = recorded.arguments.items()
    return [name for name, value in given if isinstance(value, str) and value == dtype]


def _with_other_dtype(recorded: Call) -> None:
    """Call the operator with another half-precision dtype of its inputs."""
    floats = {n: v for n, v in recorded.before.items() if v.dtype in (*_HALVES, torch.float32)}
    halves = {name: value for name, value in floats.items() if value.dtype in _HALVES}
    following = halves or floats
    if not following:
        return
    own = next(iter(following.values())).dtype
    other = torch.bfloat16 if own == torch.float16 else torch.float16
    name = str(own)[6:]
    changed: dict[str, Any] = {n: v.to(other) for n, v in following.items() if v.dtype == own}
    changed |= dict.fromkeys(dtype_arguments(recorded, name), str(other)[6:])
    try:
        recorded.with_other = _call_again(recorded, changed)
        recorded.dtype = (name, str(other)[6:])
    except Exception:  # noqa: BLE001 - it may support one dtype only
        recorded.dtype = (name,)


def flattened(results: object) -> dict[str, Any]:
    """The tensors in a returned value by path: `0`, `1`, `lse`, `aux.counts`."""
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
