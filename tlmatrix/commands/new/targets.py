"""The callable that a spec is written for, and its reference."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.signature import is_tilelang_factory, undecorated
from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

_SUFFIXES = re.compile(r"_(kernel|factory|fwd|forward|op|func|tl|tilelang)$|^(make|build|get)_")
_REFERENCE_MODULES = ("reference", "references", "ref")


@dataclass(frozen=True)
class Target:
    """A callable by its name, `package.module:name` or `package.module:Class.apply`.

    Attributes:
        text: the name.
        module: the module.
        owner: the module or class with the attribute.
        attribute: the name of the attribute.
        found: the callable.
        raw: the attribute without descriptors applied.
        written: the function with the author's signature and source.
        hidden: parameters of `written` that callers do not pass.
    """

    text: str
    module: ModuleType
    owner: Any
    attribute: str
    found: Callable[..., Any]
    raw: Any
    written: Callable[..., Any]
    hidden: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name in its module."""
        return self.text.partition(":")[2]

    @property
    def is_factory(self) -> bool:
        """Whether it is a TileLang kernel factory."""
        return is_tilelang_factory(self.found)

    @property
    def positional(self) -> bool:
        """Whether it accepts no keywords, as `apply` of an autograd function."""
        return self.attribute == "apply" and inspect.isclass(self.owner)

    @property
    def is_module(self) -> bool:
        """Whether it is an `nn.Module` class, whose `forward` runs."""
        return self.owner is self.found

    @property
    def shown(self) -> Any:
        """The value of its first name in the module, for example calls."""
        return getattr(self.module, self.name.split(".")[0])

    @property
    def parameters(self) -> Sequence[inspect.Parameter]:
        """The parameters that callers pass by name.

        Raises:
            UsageError: there are none, or Python cannot read the signature.
        """
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        try:
            parameters = inspect.signature(self.written).parameters.values()
        except (TypeError, ValueError):
            parameters = ()  # type: ignore[assignment]
        named = [each for each in parameters if each.kind in kinds and each.name not in self.hidden]
        if named:
            return named
        raise UsageError(f"{self.text!r} has no parameters, or its signature cannot be read")

    @property
    def sources(self) -> tuple[Callable[..., Any], ...]:
        """Functions whose source may name its dimensions: its own, then those of its module."""
        own = [
            each
            for each in vars(self.module).values()
            if getattr(each, "__module__", None) == self.module.__name__
        ]
        forwards = [
            inspect.getattr_static(each, "forward").__func__
            for each in own
            if inspect.isclass(each)
            and isinstance(inspect.getattr_static(each, "forward", None), staticmethod)
        ]
        functions = [each for each in own if inspect.isfunction(each)]
        return (self.written, *forwards, *functions)


def target_of(text: str) -> Target:
    """Import `package.module:name`.

    Raises:
        UsageError: it does not exist, or is not callable.
    """
    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        raise UsageError(f'{text!r} is not a name; write "package.module:name"')
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
        owner: Any = module
        *path, last = attribute.split(".")
        for name in path:
            owner = getattr(owner, name)
        found: Any = getattr(owner, last)
    except Exception as error:
        raise UsageError(f"{text!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UsageError(f"{text!r} is not callable; its type is {type(found).__name__}")
    if inspect.isclass(found) and any(_is_module_class(base) for base in found.__mro__):
        forward = inspect.getattr_static(found, "forward")
        hidden = frozenset(list(inspect.signature(forward).parameters)[:1])
        return Target(text, module, found, "forward", found, forward, forward, hidden)
    raw = inspect.getattr_static(owner, last)
    if last == "apply" and inspect.isclass(owner) and hasattr(owner, "forward"):
        forward = inspect.getattr_static(owner, "forward")
        function = getattr(forward, "__func__", forward)
        parameters = list(inspect.signature(function).parameters)
        separate = "setup_context" in vars(owner)
        hidden = frozenset() if separate else frozenset(parameters[:1])
        return Target(text, module, owner, last, found, raw, function, hidden)
    # A custom operator of torch.library keeps its function.
    function = getattr(found, "_init_fn", None) or undecorated(found)
    return Target(text, module, owner, last, found, raw, function)


def _is_module_class(base: type) -> bool:
    return (base.__module__, base.__name__) == ("torch.nn.modules.module", "Module")


def find_reference(target: Target) -> tuple[str, Callable[..., Any]] | None:
    """The reference of a target, in its module, in `reference.py` beside it, or in PyTorch."""
    names = list(_reference_names(target.name.split(".")[0]))
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
        bare = [_stem(target.name.split(".")[0])] if position else []
        for name in [*names, *bare]:
            function = getattr(module, name, None)
            if inspect.isfunction(function):
                return f"{module_name}:{name}", function
    functional = importlib.import_module("torch.nn.functional")
    function = getattr(functional, _stem(target.name.split(".")[0]), None)
    if inspect.isfunction(function):
        return f"{functional.__name__}:{function.__name__}", function
    return None


def _stem(name: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    while (shorter := _SUFFIXES.sub("", name)) != name:
        name = shorter
    return name.rstrip("_")


def _reference_names(name: str) -> Iterator[str]:
    for stem in dict.fromkeys((name, _stem(name))):
        for word in ("reference", "ref", "torch", "naive", "eager"):
            yield f"{stem}_{word}"
            yield f"{word}_{stem}"
    yield "reference"
    yield "ref"
