"""The JSON Schema of a spec, for completion and validation in editors.

`python -m tlmatrix.spec.schema` generates `tlmatrix/spec/schema.json` from the models. Specs of a
checkout name it in their first line; others name a copy, as `EDITOR_COMMENT` says. The loader also
checks what a schema cannot express, such as names in expressions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from tlmatrix.spec.model.spec import Spec

SCHEMA_PATH = Path(__file__).with_name("schema.json")
"""The installed schema file."""
MODELINE = "# yaml-language-server: $schema="
"""The first line of a spec, up to the path of the schema, which is relative to the spec."""
EDITOR_COMMENT = f"# Editors: `tlmatrix schema > schema.json`, then here: {MODELINE}schema.json\n"
"""The first line of a written spec. A path of the schema would be wrong on other machines."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 7, which editors read best) of a spec file."""
    schema = _tidy(Spec.model_json_schema(schema_generator=_WithoutTitles))
    rules = {
        "oneOf": [{"required": ["entry"]}, {"required": ["factory"]}],
        "dependencies": {
            "factory": ["call"],
            "constructor_args": ["entry"],
            "factory_args": ["factory"],
        },
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, **rules}


def json_schema_text() -> str:
    """The text of `schema.json`, with one line for each key of a model."""
    return _text(json_schema(), "") + "\n"


def _text(part: Any, indent: str, *, opened: bool = False) -> str:  # noqa: ANN401 - any part
    """A part as JSON: one line, or a line for each entry if `opened` or if a model is inside."""
    line = json.dumps(part, ensure_ascii=False)
    if not opened and '"properties": {' not in line:
        return line
    inner = f"{indent}  "
    if isinstance(part, list):
        entries = [_text(each, inner) for each in part]
    else:
        entries = [
            f"{json.dumps(key)}: {_text(each, inner, opened=key == 'properties')}"
            for key, each in part.items()
        ]
    body = ",\n".join(inner + entry for entry in entries)
    return f"{line[0]}\n{body}\n{indent}{line[-1]}"


_NAMED = ("properties", "patternProperties", "$defs")
"""Keys of a schema whose values are schemas by name."""
_DATA = ("examples", "enum", "const", "required")
"""Keys whose values are data."""


class _WithoutTitles(GenerateJsonSchema):
    """Omits titles, which would repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401, ARG002 - pydantic's
        return False


def _tidy(schema: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """The schema adapted to editors, recursively.

    Keys that match no pattern are errors; `$ref` stands alone, because draft 7 ignores its
    siblings; defaults that mean "absent" are omitted.
    """
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tidied: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED:
            tidied[key] = {name: _tidy(part) for name, part in value.items()}
        elif key in _DATA:
            tidied[key] = value
        elif key != "default":
            tidied[key] = _tidy(value)
        elif isinstance(value, str | bool | int | float):
            tidied[key] = value
    if "patternProperties" in tidied:
        tidied.setdefault("additionalProperties", False)
    if "$ref" in tidied and len(tidied) > 1:
        tidied["allOf"] = [{"$ref": tidied.pop("$ref")}]
    return tidied


if __name__ == "__main__":
    SCHEMA_PATH.write_text(json_schema_text(), encoding="utf-8")
