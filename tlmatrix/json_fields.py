"""Reads dataclasses from JSON, and checks the types of their fields."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

Check = Callable[[object], bool]


class _Names(dict[str, Any]):
    """The names of annotations; those that a module imports for type checkers alone are `Any`."""

    def __missing__(self, name: str) -> object:
        if hasattr(builtins, name):
            raise KeyError(name)
        return Any


def fields_of(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `data` that are fields of the dataclass `cls`; others are of later versions.

    Raises:
        TypeError: a value does not have the type of its field. Values of other classes, such as
            enumerations, are not checked.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"a {cls.__name__} is {_shown(data)}, not an object")
    found = {name: data[name] for name in _checks(cls) if name in data}
    for name, value in found.items():
        wanted, fits = _checks(cls)[name]
        if not fits(value):
            raise TypeError(f"its {name} is {_shown(value)}, not {wanted}")
    return found


@cache
def _checks(cls: type) -> dict[str, tuple[str, Check]]:
    """The type of each field in words, and whether a value has it."""
    names = _Names({**vars(sys.modules[cls.__module__]), "Mapping": Mapping, "Any": Any})
    hints = get_type_hints(cls, None, names)
    return {name: (_words(hints[name]), _check(hints[name])) for name in cls.__dataclass_fields__}  # type: ignore[attr-defined]


def _check(hint: Any) -> Check:  # noqa: ANN401 - any annotation
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        checks = [_check(each) for each in inside]
        return lambda value: any(check(value) for check in checks)
    if origin is Mapping:
        of_value = _check(inside[1])
        return lambda value: isinstance(value, dict) and all(map(of_value, value.values()))
    if origin is tuple:
        of_item = _check(inside[0])
        return lambda value: isinstance(value, list | tuple) and all(map(of_item, value))
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if hint in (str, bool, NoneType):
        return lambda value: isinstance(value, hint)
    return lambda _value: True


def _words(hint: Any) -> str:  # noqa: ANN401 - any annotation
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _words(inside[0])
    words = {
        str: "a text", int: "a whole number", float: "a number", bool: "true or false",
        Mapping: "an object", tuple: "a list",
    }  # fmt: skip
    wanted = words.get(origin or hint, "a value")
    return (
        f"{wanted} of which each is {_words(inside[-1 if origin is Mapping else 0])}"
        if (inside and inside[0] is not Any and inside[-1] is not Any)
        else wanted
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
