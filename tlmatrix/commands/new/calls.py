"""Runs an example on the interpreter and keeps the one call of the operator that it makes."""

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

__all__ = ["Call", "dtype_arguments", "evaluate", "flattened", "recorded", "run_script"]

_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Call:
    """The call that was recorded, and what other calls like it gave.

    Attributes:
        arguments: by parameter; of a module its parameters too.
        given: the parameters that the call names, the others have their defaults.
        before: copies of the tensors as they were.
        construct: what the module was made with, and which of that was given.
        results: what came back.
        launches: the kernels that ran.
        again: calls it with other arguments.
        calls: how often the example called it.
        differentiable: the inputs to which gradients flow back.
        dtype: of the inputs, and another that the operator takes in its place.
        with_other: what came back with that other dtype, by path.
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


def recorded(target: Target, example: Callable[[], object]) -> Call:
    """The first call of an operator that an example makes."""
    from tlmatrix.interpreter import interpret
    from tlmatrix.interpreter.device import stand_in

    seen = Call()
    with interpret(trace=True) as session, stand_in():
        with _watched(target, seen, session):
            example()
        if seen.calls:
            seen.differentiable = _differentiable(seen)
            _with_other_dtype(seen)
    return seen


@contextmanager
def _watched(target: Target, seen: Call, session: Any) -> Iterator[None]:
    """Note the first call of the operator, wherever its module's name is used."""
    original = target.raw if target.is_module else target.found
    signature = inspect.signature(target.written)
    shown = [each for name, each in signature.parameters.items() if name not in target.hidden]
    signature = signature.replace(parameters=shown)
    made: dict[int, dict[str, tuple[Any, bool]]] = {}

    def watched(*args: Any, **keywords: Any) -> Any:
        seen.calls += 1
        if seen.calls > 1:
            return original(*args, **keywords)
        module = args[0] if target.is_module else None
        bound = signature.bind(*(args[1:] if target.is_module else args), **keywords)
        seen.given = frozenset(bound.arguments)
        bound.apply_defaults()
        seen.arguments = dict(bound.arguments)
        own: dict[str, str] = {}
        if module is not None:
            own = {name.replace(".", "_"): name for name, _ in module.named_parameters()}
            seen.arguments |= {name: module.get_parameter(path) for name, path in own.items()}
            seen.construct = made.get(id(module), {})
        seen.before = {
            name: value.detach().clone()
            for name, value in seen.arguments.items()
            if isinstance(value, torch.Tensor)
        }

        def again(arguments: Mapping[str, Any]) -> object:
            passed = {name: value for name, value in arguments.items() if name not in own}
            if module is not None:
                state = {path: arguments[name] for name, path in own.items()}
                return torch.func.functional_call(module, state, kwargs=passed)
            return original(*passed.values()) if target.positional else original(**passed)

        seen.again = again
        first = len(session.log.launches)
        results = original(*args, **keywords)
        seen.launches = session.log.launches[first:]
        seen.results = results
        return results

    with _constructed(target, made):
        setattr(target.owner, target.attribute, watched)
        try:
            yield
        finally:
            setattr(target.owner, target.attribute, target.raw)


@contextmanager
def _constructed(target: Target, made: dict[int, dict[str, tuple[Any, bool]]]) -> Iterator[None]:
    """Note what modules are made with, by identity: each argument, and whether it was given."""
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
    """The names that a program leaves; what it prints goes to stderr.

    Raises:
        UsageError: it is not there, or raises.
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
    """Evaluate an example call; `f` is the operator, too.

    Raises:
        UsageError: it raises.
    """
    namespace = {"torch": torch, **vars(target.module), **names}
    operator = target.owner if target.is_module else getattr(target.owner, target.attribute)
    namespace |= {"f": namespace.get("f", operator), target.name.split(".")[0]: target.shown}
    try:
        eval(call, namespace)  # noqa: S307 - the user's own words on their own command line
    except Exception as error:
        raise UsageError(f"--call {call!r}: {type(error).__name__}: {error}") from error


def _once_more(seen: Call, changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Call it once more, on copies with some arguments changed; what came back, by path."""
    assert seen.again is not None
    fresh = {name: value.clone() for name, value in seen.before.items()}
    return flattened(seen.again({**seen.arguments, **fresh, **changed}))


def _differentiable(seen: Call) -> frozenset[str]:
    """The inputs to which gradients flow back; none where nothing comes back that has one."""
    leaves = {
        name: value.clone().requires_grad_()
        for name, value in seen.before.items()
        if value.is_floating_point()
    }
    try:
        with torch.enable_grad():
            results = _once_more(seen, leaves)
        outputs = [each for each in results.values() if each.requires_grad]
        if not outputs or not leaves:
            return frozenset()
        ones = [torch.ones_like(each) for each in outputs]
        grads = torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)
    except Exception:  # noqa: BLE001 - an operator without a backward may raise anything
        return frozenset()
    return frozenset(name for name, grad in zip(leaves, grads, strict=True) if grad is not None)


def dtype_arguments(seen: Call, dtype: str) -> list[str]:
    """The arguments that name this dtype."""
    given = seen.arguments.items()
    return [name for name, value in given if isinstance(value, str) and value == dtype]


def _with_other_dtype(seen: Call) -> None:
    """Try another dtype for the inputs: half precision, or the other half precision."""
    floats = {n: v for n, v in seen.before.items() if v.dtype in (*_HALVES, torch.float32)}
    halves = {name: value for name, value in floats.items() if value.dtype in _HALVES}
    following = halves or floats
    if not following:
        return
    own = next(iter(following.values())).dtype
    other = torch.bfloat16 if own == torch.float16 else torch.float16
    name = str(own)[6:]
    changed: dict[str, Any] = {n: v.to(other) for n, v in following.items() if v.dtype == own}
    changed |= dict.fromkeys(dtype_arguments(seen, name), str(other)[6:])
    try:
        seen.with_other = _once_more(seen, changed)
        seen.dtype = (name, str(other)[6:])
    except Exception:  # noqa: BLE001 - it takes one dtype only
        seen.dtype = (name,)


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
