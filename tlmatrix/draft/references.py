"""The reference of a target: where it is found, and how it is called.

In this order: the function that made what a caller compared a result with, one in the target's
module (`reference`, `NAME_reference`, `NAME_torch`), PyTorch's function of the same name, and one
of the module with another target's name, if it agrees. A method,
as of a class of tests, is called by a function in a module of its own beside the spec.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.draft.interface import argument_kind
from tlmatrix.draft.sizes import BATCH, candidates
from tlmatrix.draft.slices import is_dtype
from tlmatrix.draft.targets import syntax_tree
from tlmatrix.draft.text import Reference, constant, written
from tlmatrix.problem import calling
from tlmatrix.spec.importing import import_named

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.draft.calls import Call
    from tlmatrix.draft.targets import Target

_SUFFIXES = re.compile(
    r"_(kernel|factory|fwd|forward|op|func|tl|tilelang|interface)$|^(make|build|get|tl|tilelang)_"
)
_WORDS = ("reference", "ref", "torch", "naive", "eager", "ref_program", "torch_ref")
_MOST_ALIKE = 3
"""Most functions of a module that are tried, as they have the name of a reference."""


@dataclass(frozen=True)
class Found:
    """A function that may be the reference.

    Attributes:
        target: `package.module:function`.
        passed: what callers passed in each recorded call: `$name` of an argument of the call, or a
            constant; `...` where they called another function.
        method: the method that it calls, `package.module:Class.method`; "" for a function.
        module: the text of the module that calls the method.
        updates: whether it changes in place what the code under test changes.
        same_dtype: whether it refuses float64.
        part: whether it is only one if it agrees in a recorded case, as it is a part of a function,
            or was not compared with the whole result.
    """

    target: str
    function: Callable[..., Any]
    passed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    method: str = ""
    module: str = ""
    updates: bool = False
    same_dtype: bool = False
    part: bool = False


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Parameters by name, also of PyTorch's builtins; None if they are unknown."""
    known = torch.overrides.get_testing_overrides()
    return (
        calling.parameters_of(function)
        or (_documented(function) if function in known else None)
        or calling.parameters_of(known.get(function, function))
    )


def _documented(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters in the docstring of a builtin; those that a form lacks are optional."""
    name = re.escape(function.__name__)
    calls = rf"^(?:\.\. function:: )?(?:[\w.]+\.)?{name}\(((?!self).*)\)"
    forms = []
    for text in re.findall(calls, function.__doc__ or "", re.MULTILINE):
        names: dict[str, Any] = {"torch": torch}
        with suppress(SyntaxError, NameError):
            exec(f"from __future__ import annotations\ndef f({text}): ...", names)  # noqa: S102
            forms.append(inspect.signature(names["f"]).parameters)
    found = {name: each for form in reversed(forms) for name, each in form.items()}

    def needed(name: str) -> bool:
        by_position = found[name].kind is not inspect.Parameter.KEYWORD_ONLY
        return by_position and all(
            name in form and form[name].default is form[name].empty for form in forms
        )

    return {
        n: each if needed(n) or each.default is not each.empty else each.replace(default=None)
        for n, each in found.items()
    }


def parameters_read(function: Callable[..., Any]) -> set[str] | None:
    """The parameters that the body of a function reads; None if there is no source of it."""
    tree = syntax_tree(function)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names & {*(parameters_of(function) or ())} if names else None


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
    numbers: Mapping[str, Any],
    symbols: Mapping[str, Sequence[int]],
    arguments: Mapping[str, Sequence[Any]],
    updated: Mapping[str, str],
    scratch: Collection[str] = (),
) -> Reference:
    """How to call a reference with the inputs and axes of a problem.

    Args:
        source: the function.
        tensors: the problem's inputs, floating-point tensors first.
        axes: the problem's axes.
        numbers: expressions for other arguments of the code under test.
        symbols: the size of each dimension in each recorded call.
        arguments: the value of each other axis in each recorded call.
        updated: the inputs that it changes in place, with the outputs that these then are.
        scratch: the inputs that it gets by name alone.
    """
    target = source.target
    if target.startswith("torch"):
        axes = [axis for axis in axes if axis != "dtype"]  # that of its result
    parameters = list((parameters_of(source.function) or {}).values())
    if not parameters or any(each.kind is each.VAR_KEYWORD for each in parameters):
        return Reference(target, None, same_dtype=source.same_dtype)
    required = [each.name for each in parameters if each.default is each.empty]
    names = [each.name for each in parameters]
    known = {*tensors, *numbers, *axes}
    first = {name: _first(column) for name, column in source.passed.items()}
    passed = {
        name: value[1:]
        for name, value in first.items()
        if isinstance(value, str) and value[:1] == "$" and value[1:] in known
    }
    left_over = [each for each in (*tensors, *numbers, *axes) if each not in passed.values()]
    found = matched([name for name in names if name not in passed], left_over) | passed
    given = {name: numbers.get(of, of) for name, of in found.items()}
    taken: set[str] = set()
    for name, column in source.passed.items():
        value = _written(name, column, symbols, arguments, numbers, taken)
        if name in names and value is not None:
            given.setdefault(name, value)
    left = [name for name in tensors if name not in {*found.values(), *scratch}]
    for name in required:
        if name not in given and left:
            given[name] = left.pop(0)
    missing = tuple(name for name in required if name not in given)
    in_place = {name: {"inout": name, "output": output} for name, output in updated.items()}
    call = {name: in_place.get(given[name], given[name]) for name in names if name in given}
    own = all(name == value for name, value in call.items())
    whole = own and not missing and {*tensors} <= {*names}
    called = None if whole else call
    return Reference(target, called, missing, source.method, source.module, source.same_dtype)


def _first(column: Sequence[Any]) -> Any:  # noqa: ANN401 - an argument
    return next(each for each in column if each is not ...)


def _written(
    name: str,
    column: Sequence[Any],
    symbols: Mapping[str, Sequence[int]],
    arguments: Mapping[str, Sequence[Any]],
    numbers: Mapping[str, Any],
    taken: set[str],
) -> Any:  # noqa: ANN401 - a value of YAML
    """A parameter as a spec writes it: the size or argument that it is in all calls, or a constant.

    None if it is another value in each call, and none of these. Of two equal parameters the second
    is another size, if there is one, than those `taken`.
    """
    value = _first(column)
    if isinstance(value, list):
        rows = [[...] * len(value) if each is ... else each for each in column]
        columns = zip(*rows, strict=False)
        parts = [_written(name, each, symbols, arguments, numbers, taken) for each in columns]
        return None if None in parts else f"[{', '.join(map(written, parts))}]"
    if isinstance(value, str) and (value[:1] in ("", "$") or is_dtype(value)):
        return None
    varied = any(each not in (..., value) for each in column)
    every = [each for each, sizes in symbols.items() if _equal(column, sizes)]
    named = [e for e in every if alike(e, name) or (BATCH.search(e) and BATCH.search(name))]
    tile = argument_kind(name, value, None) == "tile"  # a constant, though a size may be equal
    if varied or (type(value) is int and (value > 2 or named) and not tile):
        equal = named if len(every) > 1 or value in (1, 2) else every
        if not equal and varied:
            equal = [each for each, values in arguments.items() if _equal(column, values)]
        # Of several equal sizes it may be one, and is no part of another.
        found = [*equal, *(() if len(every) > 1 else _derived(column, symbols))]
        equal = [each for each in found if each not in taken][:1] or found[:1]
        taken.update(equal)
        if equal or varied:
            return numbers.get(equal[0], equal[0]) if equal else None
    if isinstance(value, float):
        roots = {name: [n and n**-0.5 for n in sizes] for name, sizes in symbols.items()}
        scales = [name for name, found in roots.items() if _equal(column, found)]
        scales = [name for name in scales if "d" in name.lower()] or scales  # of dimensions
        if value < 1 and len(scales) == 1:
            return f"{scales[0]} ** -0.5"
    known = value is None or isinstance(value, bool | int | float | str)
    return constant(value) if known else None


def _derived(column: Sequence[Any], symbols: Mapping[str, Sequence[int]]) -> list[str]:
    """Expressions of sizes that a number is in all calls; of one size only halves and doubles."""
    known = [k for k, each in enumerate(column) if each is not ...]
    own = tuple(column[k] for k in known)
    if any(type(each) is not int for each in own):
        return []
    sizes = {n: tuple(e[k] for k in known) for n, e in symbols.items() if len(e) == len(column)}
    moving = len({*own}) > 1
    found = candidates(own, sizes)
    return [e for e in found if moving or (own[0] > 8 and re.search(r"// 2$|^2 \*", e))]


def _equal(column: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two columns are equal in all calls in which the first one is known."""
    pairs = zip(column, other, strict=False)
    return len(column) == len(other) and all(a in (..., b) for a, b in pairs)


def find_references(target: Target, calls: Sequence[Call] = (), name: str = "") -> list[Found]:
    """The functions that may be the reference of a target, the most probable first.

    Args:
        target: the code under test.
        calls: its calls, with what their results were compared with.
        name: `package.module:function`, if the repository names one.
    """
    found = [*_compared(target, calls), named_reference(name), _beside(target)]
    known: dict[object, Found] = {}
    for each in filter(None, found):
        first = known.setdefault(each.function, each)
        known[each.function] = replace(first, part=first.part and each.part)
    for each in _in_module(target):
        known.setdefault(each.function, each)
    return [*known.values()]


def named_reference(name: str, construct: Mapping[str, Any] | None = None) -> Found | None:
    """A reference by its name; None if there is no such function.

    Args:
        name: `package.module:function` or `package.module:Class.method`.
        construct: arguments of the constructor.
    """
    module, _, path = name.partition(":")
    owner_path, _, last = path.rpartition(".")
    try:
        owner: Any = import_named(module)
        owner = getattr(owner, owner_path) if owner_path else owner
        function = getattr(owner, last)
        if inspect.isclass(owner) and inspect.isfunction(inspect.getattr_static(owner, last)):
            return _of_method(name, function, construct or {})
    except Exception:  # noqa: BLE001 - the module may not be importable
        return None
    return Found(name, function) if callable(function) else None


def _of_method(name: str, method: Callable[..., Any], construct: Mapping[str, Any]) -> Found | None:
    """A function that calls a method of a new object; None if it takes more than a spec writes."""
    module, _, path = name.partition(":")
    kind, _, last = path.partition(".")
    own = list(inspect.signature(method).parameters.values())[1:]
    plain = (bool, int, float, str, type(None))
    named = own and all(each.kind is each.POSITIONAL_OR_KEYWORD for each in own)
    if not named or not all(isinstance(value, (*plain, list)) for value in construct.values()):
        return None
    declared = [
        each.name if type(each.default) not in plain else f"{each.name}={each.default!r}"
        for each in own
    ]
    taken = {each.name for each in own}
    dtypes = {key for key, value in construct.items() if is_dtype(value)}
    more = [key for key in construct if key not in taken | dtypes]
    made = [f"{key}={f'{own[0].name}.dtype' if key in dtypes else key}" for key in construct]
    called = ", ".join(f"{each.name}={each.name}" for each in own)
    text = (
        f'"""Calls `{path}`, the reference of a spec."""\n\nfrom {module} import {kind}\n\n\n'
        f"def reference({', '.join([*more, *declared])}):\n"
        f"    return {kind}({', '.join(made)}).{last}({called})\n"
    )
    return _of_source(name, name, text)


def _of_source(module: str, name: str, text: str) -> Found:
    """The function `reference` of a module that calls or copies a part of the repository."""
    namespace: dict[str, Any] = {}
    exec(text, namespace)  # noqa: S102 - of the repository's own code
    beside = re.sub(r"[^0-9A-Za-z]+", "_", module)
    return Found(f"{beside}:reference", namespace["reference"], method=name, module=text)


def _part_of(name: str, text: str) -> Found | None:
    """A part of a function, from its text; None if its names cannot be imported."""
    try:
        import_named(name.partition(":")[0])
        # A function may have several parts.
        found = _of_source(f"{name}_{sha256(text.encode()).hexdigest()[:6]}", name, text)
        return replace(found, part=True)
    except Exception:  # noqa: BLE001 - the module may not be importable
        return None


def _compared(target: Target, calls: Sequence[Call]) -> Iterator[Found]:
    """The functions whose results a target's were compared with, the most frequent first."""
    every = [(e.guessed, e.function, e.source) for c in calls for e in c.compared if e.function]
    ways = Counter(sorted(every))  # of one found in two ways the surer
    whole = sorted(ways.most_common(), key=lambda each: (each[0][0], bool(each[0][2])))
    for name, text in dict.fromkeys(each[1:] for each, _ in whole):
        made = [
            next((e for e in call.compared if (e.function, e.source) == (name, text)), None)
            for call in calls
        ]
        first = next(each for each in made if each is not None)
        taken = [v for v in first.arguments.values() if isinstance(v, str) and v[:1] == "$"]
        if not taken and calls[0].tensors:
            continue  # it makes what the reference changes in place
        found = _part_of(name, text) if text else named_reference(name, first.construct)
        if found is not None and name != target.text:
            given = [{**each.construct, **each.arguments} if each else {} for each in made]
            names = {**first.construct, **first.arguments}
            passed = {key: [each.get(key, ...) for each in given] for key in names}
            guessed = all(each is None or each.guessed for each in made)
            yield replace(found, passed=passed, part=found.part or guessed)


def _beside(target: Target) -> Found | None:
    """In the target's module, or in PyTorch."""
    own = target.name.split(".")[0]
    for name in _reference_names(own):
        function = getattr(target.module, name, None)
        if inspect.isfunction(function) and function is not target.found:
            return Found(f"{target.module.__name__}:{name}", function)
    for module in (torch.nn.functional, torch):
        function = getattr(module, _stem(own), None)
        if callable(function) and not inspect.isclass(function):
            return Found(f"{module.__name__}:{_stem(own)}", function)
    return None


def _in_module(target: Target) -> list[Found]:
    """The functions of the target's module that are called references, those with like names first.

    They are only its own if they agree.
    """

    def likeness(name: str) -> float:
        words = (word for word in name.lower().split("_") if word not in _WORDS)
        return SequenceMatcher(None, own, "_".join(words)).ratio()

    own = _stem(target.name.split(".")[0])
    functions = {
        name: each
        for name, each in vars(target.module).items()
        if inspect.isfunction(each) and each.__module__ == target.module.__name__
        if {*name.lower().split("_")} & {*_WORDS} and each is not target.found
    }
    names = sorted(functions, key=likeness, reverse=True)
    module = target.text.partition(":")[0]
    return [Found(f"{module}:{n}", functions[n], part=True) for n in names[:_MOST_ALIKE]]


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
