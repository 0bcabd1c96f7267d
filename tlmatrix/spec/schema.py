"""The JSON Schema of a spec, for completion and validation in editors, and the page of its keys.

The models have the types of the keys; `docs/reference/spec-keys.md` says what they mean, with
examples. In a checkout, `python -m tlmatrix.spec.schema` writes `tlmatrix/spec/schema.json` from
both, and the types into the page. Specs of a checkout name the schema in their first line; others
name a copy, as `EDITOR_COMMENT` says. The loader also checks what a schema cannot express, such as
names in expressions.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

from tlmatrix.spec.model import spec as models
from tlmatrix.spec.model.spec import Spec
from tlmatrix.spec.yaml.tree import plain, read_document

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

SCHEMA_PATH = Path(__file__).with_name("schema.json")
"""The installed schema file."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spec-keys.md"
"""What the keys mean, in a checkout."""
MODELINE = "# yaml-language-server: $schema="
"""The first line of a spec, up to the path of the schema, which is relative to the spec."""
EDITOR_COMMENT = f"# Editors: `tlmatrix schema > schema.json`, then here: {MODELINE}schema.json\n"
"""The first line of a written spec. A path of the schema would be wrong on other machines."""


SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The keys of a spec", models.Spec),
    ("A declared problem", models.DeclaredProblem),
    ("An input", models.InputDecl),
    ("An output", models.OutputDecl),
    ("A reference", models.Reference),
    ("A buffer", models.OutputBuffer),
    ("An argument in place", models.Inout),
    ("Shards", models.Shard),
    ("A constraint", models.ConstraintDecl),
    ("A tier", models.Tier),
    ("Checks without some", models.ChecksWithout),
    ("Tolerances", models.Tolerance),
    ("An allowance", models.AllowanceChange),
    ("A relation", models.RelationDecl),
    ("An agreement", models.Agreement),
    ("Sanitizers", models.SanitizerOptions),
    ("Packed rows", models.PackedRows),
    ("A determinism rule", models.DeterminismRule),
    ("CUDA graphs", models.CudaGraph),
    ("A refusal", models.Refusal),
    ("A codegen rule", models.CodegenRule),
    ("Proofs", models.Prove),
    ("Fuzzing", models.Fuzz),
    ("Packed batches", models.FuzzLengths),
    ("A trace of lengths", models.FuzzTrace),
    ("A fuzzed axis", models.FuzzAxis),
    ("Invalid inputs", models.InvalidInputs),
    ("A known bug", models.KnownBug),
    ("A regression", models.Regression),
    ("Timing", models.Bench),
)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 7, which editors read best) of a spec file."""
    schema = Spec.model_json_schema(schema_generator=_WithoutTitles)
    for (title, key), (meaning, examples) in _notes().items():
        properties = _properties(schema, dict(SECTIONS)[title])
        part = {**properties[key], "description": meaning, "examples": _data(key, examples)}
        properties[key] = dict(sorted(part.items()))
    rules = {
        "oneOf": [{"required": ["entry"]}, {"required": ["factory"]}],
        "dependencies": {
            "factory": ["call"],
            "constructor_args": ["entry"],
            "factory_args": ["factory"],
        },
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_tidy(schema), **rules}


def _properties(schema: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """The keys of a model in the schema, nested one level deeper if it has a short form."""
    part = schema if model is Spec else schema["$defs"][model.__name__]
    if "properties" not in part:
        part = next(form for form in part["anyOf"] if "properties" in form)
    properties: dict[str, Any] = part["properties"]
    return properties


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


# The page ---------------------------------------------------------------------------------------


def _notes() -> dict[tuple[str, str], tuple[str, list[str]]]:
    """The meaning and the examples of each key, by the title of its section and its name."""
    notes = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title = section.partition("\n")[0]
        for row in re.findall(r"^\| `.*$", section, re.MULTILINE):
            cells = [cell.strip().replace("&#124;", "|") for cell in row.split("|")[1:-1]]
            key, _, meaning, examples = cells
            notes[title, key.strip("`")] = meaning, re.findall(r"`([^`]+)`", examples)
    return notes


def _data(key: str, examples: list[str]) -> list[Any]:
    """Examples, `key: value`, as data for JSON."""
    values = [plain(read_document(text.encode(), PAGE).root)[key] for text in examples]
    found: list[Any] = json.loads(json.dumps(values, default=str))  # dates become text
    return found


def page() -> str:
    """The text of `docs/reference/spec-keys.md` with the keys and types of the models."""
    schema, notes = json_schema(), _notes()
    parts = [PAGE.read_text(encoding="utf-8").partition("\n## ")[0]]
    for title, model in SECTIONS:
        parts.append(f"## {title}\n\n{_paragraph(model.__doc__)}\n")
        properties = _properties(schema, model)
        parts.append("| key | value | meaning | example |\n| --- | --- | --- | --- |")
        for name, field in model.model_fields.items():
            key = field.alias or name
            meaning, examples = notes.get((title, key), ("", []))
            shown = "<br>".join(f"`{each}`" for each in examples)
            cells = (f"`{key}`", in_words(properties[key]) + _default(field), meaning, shown)
            row = " | ".join(cell.replace("|", "&#124;") for cell in cells)
            parts.append(f"| {row} |")
        parts.append("")
    return "\n".join(parts)


def _paragraph(text: str | None) -> str:
    return "\n".join(line.strip() for line in (text or "").strip().splitlines())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ", required"
    default = field.default
    if isinstance(default, models.Range):
        return f", by default `{default.low}..{default.high}`"
    if default == models.CHECKS:
        return ", by default all of them"
    if isinstance(default, bool):
        return f", by default `{str(default).lower()}`"
    if isinstance(default, str | int) and default != "":
        return f", by default `{default}`"
    return ""


def in_words(schema: dict[str, Any]) -> str:
    """The type of a key in words: "a list of text"."""
    if "$ref" in schema or "allOf" in schema:
        model = schema.get("$ref", schema.get("allOf", [{}])[0].get("$ref")).rpartition("/")[2]
        return _MODEL_WORDS[model]
    if "title" in schema:
        return str(schema["title"])
    if "enum" in schema:
        return "one of " + ", ".join(f"`{word}`" for word in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            kinds = [in_words(each) for each in schema[choice] if each.get("type") != "null"]
            return ", or ".join(dict.fromkeys(kinds))
    match schema["type"]:
        case "array":
            return f"a list, each entry {in_words(schema['items'])}"
        case "object":
            values = schema.get("additionalProperties") or next(
                iter(schema["patternProperties"].values())
            )
            return f"a mapping, each value {in_words(values)}"
        case list(kinds):
            return _UNIONS[tuple(kinds)]
        case kind:
            return _SCALARS[kind]


_SCALARS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "`true` or `false`",
}
_UNIONS = {
    ("string", "boolean"): "an expression",
    ("string", "integer"): "a path such as `aux.1`",
    ("integer", "string"): "a whole number or an expression",
    ("number", "string"): "a number or an expression",
    ("string", "number", "boolean", "null"): "a number, `true`, `false`, `none` or an expression",
    ("string", "number", "boolean", "null", "array", "object"): "any value",
    ("string", "number", "boolean", "null", "array"): "a name, an expression, a number, `true`, "
    "`false`, `none` or a list of these",
}
_MODEL_WORDS = {
    model.__name__: f"a [mapping](#{title.lower().replace(' ', '-')})" for title, model in SECTIONS
} | {"Range": "a range such as `1..8`, `[1, 8]`, or one number"}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA_PATH.write_text(json_schema_text(), encoding="utf-8")
