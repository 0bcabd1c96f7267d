"""Generates `docs/reference/spec-keys.md` from the models of the spec language.

Run `python -m tlmatrix.spec.reference` in a checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.model import spec as models
from tlmatrix.spec.model.spec import Spec
from tlmatrix.spec.schema import json_schema
from tlmatrix.spec.yaml.text import flow

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

REFERENCE_PATH = Path(__file__).parents[2] / "docs" / "reference" / "spec-keys.md"
"""The generated file in a checkout."""

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

_OPENING = """\
# Spec keys

<!-- Written by `python -m tlmatrix.spec.reference` from the models: edit those. -->

Every key of a spec, section by section; read [the spec language](spec.md) first. Each example shows
the key as it stands in a file.
"""


def reference() -> str:
    """Return the text of `docs/reference/spec-keys.md`."""
    schema = json_schema()
    parts = [_OPENING]
    for title, model in SECTIONS:
        parts.append(f"## {title}\n\n{_paragraph(model.__doc__)}\n")
        properties = _properties(schema if model is Spec else schema["$defs"][model.__name__])
        parts.append("| key | value | meaning | example |\n| --- | --- | --- | --- |")
        for name, field in model.model_fields.items():
            key = field.alias or name
            parts.append(_row(key, field, properties[key]))
        parts.append("")
    return "\n".join(parts)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The keys of a model's schema, nested one level deeper if it has a short form."""
    if "properties" not in schema:
        schema = next(part for part in schema["anyOf"] if "properties" in part)
    properties: dict[str, Any] = schema["properties"]
    return properties


def _row(key: str, field: FieldInfo, schema: dict[str, Any]) -> str:
    examples = [example_yaml(key, example).rstrip() for example in field.examples or ()]
    cells = (
        f"`{key}`",
        in_words(schema) + _default(field),
        _paragraph(field.description).replace("\n", " "),
        "<br>".join(f"`{example}`" for example in examples),
    )
    return "| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |"


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
    ("string", "number", "boolean", "null"): "a number, `true`, `false`, `none` or an expression",
    ("string", "number", "boolean", "null", "array", "object"): "any value",
    ("string", "number", "boolean", "null", "array"): "a name, an expression, a number, `true`, "
    "`false`, `none` or a list of these",
}
_MODEL_WORDS = {
    model.__name__: f"a [mapping](#{title.lower().replace(' ', '-')})" for title, model in SECTIONS
} | {"Range": "a range such as `1..8`, `[1, 8]`, or one number"}


def example_yaml(key: str, example: Any) -> str:  # noqa: ANN401 - a value of a spec
    """An example of a key as one line of a spec."""
    return f"{key}: {flow(example)}\n"


if __name__ == "__main__":
    REFERENCE_PATH.write_text(reference(), encoding="utf-8")
