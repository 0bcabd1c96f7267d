"""How a reference is called, and how its names differ from those of the kernel."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any


@dataclass(frozen=True)
class Reference:
    """A reference with the name or expression for each of its parameters.

    `call` is None if the names are those of the problem. `missing` are parameters without a value.
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
        renamed = [f"{name} gets {value}" for name, value in self.call if name != value]
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
    target: str,
    function: Callable[..., Any],
    *,
    tensors: Sequence[str],
    axes: Sequence[str],
    numbers: dict[str, str],
) -> Reference:
    """How to call a reference with the inputs and axes of a problem.

    Args:
        target: `package.module:function`.
        function: the function.
        tensors: the problem's inputs, floating-point tensors first.
        axes: the problem's axes.
        numbers: expressions for other arguments of the code under test.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return Reference(target, None, ())
    required = [each.name for each in parameters if each.default is each.empty]
    names = [each.name for each in parameters]
    found = matched(names, [*tensors, *numbers, *axes])
    left = [name for name in tensors if name not in found.values()]
    for name in required:
        if name not in found and left:
            found[name] = left.pop(0)
    missing = tuple(name for name in required if name not in found)
    values = tuple((name, numbers.get(found[name], found[name])) for name in names if name in found)
    plain = all(name == value for name, value in values)
    if plain and not missing and {*tensors} <= {*names}:
        return Reference(target, None, ())
    return Reference(target, values, missing)
