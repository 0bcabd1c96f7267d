"""Values as one line of YAML in flow style; parsing it gives the same value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

import yaml

from tlmatrix.spec.yaml.scalars import scalar_meaning

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value


def flow(value: Value | date) -> str:
    """A value in flow style, `{q: [17, 64], k: same}`; ambiguous text is quoted."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _number(value)
        case date():
            return value.isoformat()
        case str():
            return _text(value)
        case Mapping():
            return "{" + ", ".join(f"{_text(k)}: {flow(each)}" for k, each in value.items()) + "}"
        case Sequence():
            return "[" + ", ".join(flow(each) for each in value) + "]"
    raise TypeError(f"cannot write {value!r} to a spec: expected plain data")


def _number(value: float) -> str:
    text = repr(value)
    return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)


def _text(value: str) -> str:
    if not value.isprintable():
        return f'"{"".join(map(_escaped, value))}"'
    if scalar_meaning(value) != (value, None):
        return f"'{value}'"
    dumped: str = yaml.safe_dump(
        [value], default_flow_style=True, width=1 << 30, allow_unicode=True
    )
    return dumped.strip()[1:-1]


def _escaped(character: str) -> str:
    """A character inside double quotes, escaped as in JSON, above U+FFFF as in YAML."""
    if character.isprintable() and character not in '"\\':
        return character
    return f"\\U{ord(character):08x}" if ord(character) > 0xFFFF else json.dumps(character)[1:-1]
