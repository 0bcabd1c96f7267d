"""A validator for the subset of JSON Schema (draft 7) that the schema of specs uses."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str, date),  # an editor's YAML reader may leave dates as text
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "examples", "default", "format"),
    *("type", "enum", "const", "pattern", "anyOf", "oneOf", "allOf", "required", "dependencies"),
    *("properties", "patternProperties", "additionalProperties", "minProperties"),
    *("items", "minItems", "maxItems", "minLength", "minimum", "exclusiveMinimum"),
}


def accepts(schema: Any, value: Any, root: dict[str, Any]) -> bool:
    """Whether the schema, a part of `root`, accepts a value."""
    if isinstance(schema, bool):
        return schema
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    if "$ref" in schema:
        return accepts(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root)
    return (
        accepts_type(schema, value)
        and value in schema.get("enum", [value])
        and ("const" not in schema or value == schema["const"])
        and all(accepts(part, value, root) for part in schema.get("allOf", ()))
        and any(accepts(part, value, root) for part in schema.get("anyOf", (True,)))
        and sum(accepts(part, value, root) for part in schema.get("oneOf", (True,))) == 1
        and (not isinstance(value, str) or accepts_text(schema, value))
        and (not is_number(value) or accepts_number(schema, value))
        and (not isinstance(value, list) or accepts_list(schema, value, root))
        and (not isinstance(value, dict) or accepts_mapping(schema, value, root))
    )


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def accepts_type(schema: dict[str, Any], value: object) -> bool:
    names = schema.get("type", list(TYPES))
    names = [names] if isinstance(names, str) else names
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names)


def accepts_text(schema: dict[str, Any], value: str) -> bool:
    return len(value) >= schema.get("minLength", 0) and bool(
        re.search(schema.get("pattern", ""), value)
    )


def accepts_number(schema: dict[str, Any], value: float) -> bool:
    minimum, bound = schema.get("minimum"), schema.get("exclusiveMinimum")
    return (minimum is None or value >= minimum) and (bound is None or value > bound)


def accepts_list(schema: dict[str, Any], value: list[Any], root: dict[str, Any]) -> bool:
    most = schema.get("maxItems", len(value))
    return schema.get("minItems", 0) <= len(value) <= most and all(
        accepts(schema.get("items", True), item, root) for item in value
    )


def accepts_mapping(schema: dict[str, Any], value: dict[str, Any], root: dict[str, Any]) -> bool:
    if len(value) < schema.get("minProperties", 0):
        return False
    if not set(schema.get("required", ())) <= value.keys():
        return False
    for key, needed in schema.get("dependencies", {}).items():
        if key in value and not set(needed) <= value.keys():
            return False
    for key, item in value.items():
        parts = [schema["properties"][key]] if key in schema.get("properties", {}) else []
        patterns = schema.get("patternProperties", {})
        parts += [part for pattern, part in patterns.items() if re.search(pattern, key)]
        for part in parts or [schema.get("additionalProperties", True)]:
            if not accepts(part, item, root):
                return False
    return True
