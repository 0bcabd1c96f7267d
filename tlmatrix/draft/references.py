"""The reference of a target: where it is found, and how it is called.

In this order: the function that made what a caller compared a result with, a function beside the
target (`reference`, `NAME_reference`, `NAME_torch`), PyTorch's function of the same name.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.calling import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.draft.calls import Call
    from tlmatrix.draft.targets import Target

_SUFFIXES = re.compile(
    r"_(kernel|factory|fwd|forward|op|func|tl|tilelang|interface)$|^(make|build|get|tl|tilelang)_"
)
_WORDS = ("reference", "ref", "torch", "naive", "eager", "ref_program", "torch_ref")
_REFERENCE_MODULES = ("reference", "references", "ref")


@dataclass(frozen=True)
class Found:
    """A function that may be the reference.

    Attributes:
        target: `package.module:function`.
        passed: arguments that a caller passed: `$name` of an argument of the call, or a constant.
    """

    target: str
    function: Callable[..., Any]
    passed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """A reference with the name or expression for each of its parameters.

    `call` is None if the names are those of the problem; its names are "" for positions. `missing`
    are parameters without a value.
    """

    target: str
    call: tuple[tuple[str, str], ...] | None
    missing: tuple[str, ...]

    @property
    def difference(self) -> str:
        """How its names differ, as text; empty if they do not."""
        if self.missing:
            return f"{self.target} also takes {', '.join(self.missing)}: give each a value"
        if self.call is None:
            return ""
        renamed = [f"{name} gets {value}" for name, value in self.call if name not in ("", value)]
        if not any(name for name, _ in self.call):
            return ""
        called = ", ".join(renamed) or "it takes only " + ", ".join(name for name, _ in self.call)
        return f"{self.target} is called by its own names: {called}"


def alike(name: str, other: str) -> bool:
    """Whether two names are equal except for case and underscores."""
    return name.replace("_", "").lower() == other.replace("_", "").lower()


def matched(parameters: Sequence[str], names: Iterable[str]) -> dict[str, str]:
    """The name for each parameter that is equal to it except for case and underscores."""
    known = list(names)
    found = {}
    for parameter in parameters:
        same = [name for name in known if name == parameter] or [
            name for name in known if alike(name, parameter)
        ]
        if same:
            found[parameter] = same[0]
            known.remove(same[0])
    return found


def reference_of(
    source: Found,
    *,
    tensors: Sequence[str],
    axes: Sequence[str],
    numbers: dict[str, str],
) -> Reference:
    """How to call a reference with the inputs and axes of a problem.

    Args:
        source: the function.
        tensors: the problem's inputs, floating-point tensors first.
        axes: the problem's axes.
        numbers: expressions for other arguments of the code under test.
    """
    target = source.target
    if target.startswith("torch"):
        axes = [axis for axis in axes if axis != "dtype"]  # that of its result
    known_parameters = parameters_of(source.function)
    if known_parameters is None:
        return Reference(target, _of_builtin(target, tensors, axes, numbers), ())
    parameters = list(known_parameters.values())
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return Reference(target, None, ())
    required = [each.name for each in parameters if each.default is each.empty]
    names = [each.name for each in parameters]
    known = {*tensors, *numbers, *axes}
    passed = {
        name: value[1:]
        for name, value in source.passed.items()
        if isinstance(value, str) and value[:1] == "$" and value[1:] in known
    }
    constants = {
        name: str(value).lower() if value is None or isinstance(value, bool) else value
        for name, value in source.passed.items()
        if name in names and isinstance(value, bool | int | float | None)
    }
    left_over = [each for each in (*tensors, *numbers, *axes) if each not in passed.values()]
    found = matched([name for name in names if name not in passed], left_over) | passed
    left = [name for name in tensors if name not in found.values()]
    for name in required:
        if name not in found and left:
            found[name] = left.pop(0)
    missing = tuple(name for name in required if name not in found and name not in constants)
    given = {name: numbers.get(of, of) for name, of in found.items()}
    given = {name: str(each) for name, each in constants.items() if name not in given} | given
    values = tuple((name, given[name]) for name in names if name in given)
    plain = all(name == value for name, value in values)
    if plain and not missing and {*tensors} <= {*names}:
        return Reference(target, None, ())
    return Reference(target, values, missing)


def _of_builtin(
    target: str, tensors: Sequence[str], axes: Sequence[str], numbers: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The call of a function of PyTorch without a signature, by the schema that takes the most."""
    values = {name: name for name in axes} | dict(numbers)
    best: tuple[tuple[str, str], ...] = ()
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{target.partition(':')[2]}"):  # noqa: SLF001
        left, found = list(tensors), []
        for argument in schema.arguments:
            name = "input" if argument.name == "self" else argument.name
            if str(argument.type) == "Tensor" and left:
                found.append((name, left.pop(0)))
            elif argument.name in values:
                found.append((name, values[argument.name]))
            elif not argument.has_default_value():
                break
        else:
            if not left and len(found) > len(best):
                best = tuple(found)
    return best or tuple(("", name) for name in tensors)


def find_reference(target: Target, calls: Iterable[Call] = ()) -> Found | None:
    """The reference of a target; None if there is none."""
    return _compared(target, calls) or _beside(target)


def named_reference(name: str) -> Found | None:
    """A reference by its name; None if there is no such function."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception:  # noqa: BLE001 - the module may not be importable
        return None
    return Found(name, function) if callable(function) else None


def _compared(target: Target, calls: Iterable[Call]) -> Found | None:
    """The function whose results a target's were compared with most often."""
    made = [each for call in calls for each in call.compared if each.function]
    for name, _ in Counter(each.function for each in made).most_common():
        found = named_reference(name)  # None of methods
        if found is not None and name != target.text:
            each = next(each for each in made if each.function == name)
            return replace(found, passed=each.arguments)
    return None


def _beside(target: Target) -> Found | None:
    """In the target's module, in `reference.py` beside it, or in PyTorch."""
    own = target.name.split(".")[0]
    modules = [(target.module.__name__, target.module)]
    package = target.module.__name__.rpartition(".")[0]
    folder = Path(inspect.getfile(target.module)).parent
    for each in _REFERENCE_MODULES:
        if (folder / f"{each}.py").is_file():
            full = f"{package}.{each}" if package else each
            try:
                modules.append((full, importlib.import_module(full)))
            except Exception:  # noqa: BLE001, S112 - it may not be importable
                continue
    for position, (module_name, module) in enumerate(modules):
        # In a module of references a function may have the operator's own name.
        bare = [_stem(own)] if position else []
        for name in [*_reference_names(own), *bare]:
            function = getattr(module, name, None)
            if inspect.isfunction(function) and function is not target.found:
                return Found(f"{module_name}:{name}", function)
    for module_name in ("torch.nn.functional", "torch"):
        function = getattr(sys.modules.get(module_name), _stem(own), None)
        if callable(function) and not inspect.isclass(function):
            return Found(f"{module_name}:{_stem(own)}", function)
    return None


def _stem(name: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    while (shorter := _SUFFIXES.sub("", name)) != name:
        name = shorter
    return name.rstrip("_")


def _reference_names(name: str) -> Iterator[str]:
    for stem in dict.fromkeys((name, _stem(name))):
        for word in _WORDS:
            yield f"{stem}_{word}"
            yield f"{word}_{stem}"
    yield from ("reference", "ref", "ref_program", "reference_program")
