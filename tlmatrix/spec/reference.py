"""Writes `docs/reference/spec.md` from the models of the spec language.

`python -m tlmatrix.spec.reference` writes it anew, from the root of a checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.expr.expression import FUNCTIONS
from tlmatrix.spec.model import spec as models
from tlmatrix.spec.model.spec import Spec
from tlmatrix.spec.schema import json_schema
from tlmatrix.spec.yaml.flow import flow

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

__all__ = ["EXAMPLE", "REFERENCE_PATH", "SECTIONS", "example_yaml", "reference"]

REFERENCE_PATH = Path(__file__).parents[2] / "docs" / "reference" / "spec.md"
"""The file, in a checkout."""

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
    ("Fuzzing", models.Fuzz),
    ("Packed batches", models.FuzzLengths),
    ("A trace of lengths", models.FuzzTrace),
    ("A fuzzed axis", models.FuzzAxis),
    ("Invalid inputs", models.InvalidInputs),
    ("A known bug", models.KnownBug),
    ("A regression", models.Regression),
    ("A retired case", models.Retired),
    ("Timing", models.Bench),
)

_OPENING = """\
# The spec language

<!-- Written by `python -m tlmatrix.spec.reference` from the models: edit those. -->

A spec is one YAML file: one operator under test, the matrix of cases that tests it, and how
it is judged. `tlmatrix check FILE` says everything that is wrong with one, each error at its
line and column. Editors complete and check specs by the shipped JSON Schema; `tlmatrix schema`
prints it, and a first line such as this names it:

```yaml
# yaml-language-server: $schema=../tlmatrix/spec/schema.json
```

A small spec:

```yaml
{EXAMPLE}```

## Values

- `none` and `null` both mean absent, in values of axes and in expressions. Quote a text that
  reads like one: `'none'`.
- `true` and `false` are the booleans. YAML readers disagree on unquoted `yes`, `no`, `on`, `off`,
  `010` and `1:30`, so these are errors that say what to write; `1e3` is a number.
- Anchors, aliases and merge keys (`<<`) work. Duplicate keys, tags, and a second document in
  the file are errors. A key that is not listed below is an error, too.
- A file has at most 1 MiB, 50 levels, and 100000 values with aliases expanded.

## Expressions

`require`, `when`, `factory_args`, `call` and shapes are expressions, in a small language that is
never evaluated as Python. It has

- names: what a name can be stands at each key;
- the names of dtypes (`float16`, `int32`), which stand for themselves;
- numbers, other text in quotes (`'mean'`), lists `[1, 2]`, `none`, `true`, `false`;
- `==` `!=` `<` `<=` `>` `>=`, chained as in Python; `in` and `not in` a list; `is` and `is not`
  with `none`, `true` or `false`;
- `and`, `or`, `not`, with Python's values: `or` gives its first operand that is true, or the last;
- `+` `-` `*` `/` `//` `%` `**` on numbers, with Python's precedence; `/` is true division; on a
  list, for each element: `seqlens * 2`;
- `seqlens.q` and `seqlens.k`, the lengths of one side of a packed axis (`{q: [17, 64], k: same}`);
  of a plain list both are the list;
- {FUNCTIONS}. `ceildiv(a, b)` is how many steps of `b` cover `a`, for each element of a list.
  `sum`, `min`, `max` and `len` take a list of lengths: `max` of an empty one is 0, `len` of a
  packed axis is its number of sequences. `pages(seqlens, page_size)` is the size of a pool of
  pages: those that hold the sequences, and 3 that none owns.

Quote an expression with a comma in it, for a comma also ends an entry of `[...]` and `{...}`:
`shape: ["pages(seqlens, 16)", 16, dim]`.

An expression that has no value for some case (`window < 64` where a window is `none`) is an
error; write `window is not none and window < 64`.
"""

EXAMPLE = """\
name: rms_norm
problem:
  inputs:
    x: {shape: [rows, cols], dtype: $dtype, grad: true}
    w: {shape: [cols], dtype: $dtype, grad: true}
  outputs: [y]
  reference: mypkg.reference:rms_norm
factory: mypkg.kernels:rms_norm_kernel
factory_args: {M: rows, N: cols, blk_m: 64}
call: [x, w]

axes:
  dtype: [float16, bfloat16]
  rows:  [1, 63, 64, 65]
  cols:  [64, 96]
"""


def reference() -> str:
    """The text of `docs/reference/spec.md`."""
    calls = ", ".join(f"`{name}`" for name in FUNCTIONS)
    opening = _OPENING.replace("{EXAMPLE}", EXAMPLE).replace("{FUNCTIONS}", calls)
    schema = json_schema()
    parts = [opening]
    for title, model in SECTIONS:
        parts.append(f"## {title}\n\n{_paragraph(model.__doc__)}\n")
        properties = _properties(schema if model is Spec else schema["$defs"][model.__name__])
        for name, field in model.model_fields.items():
            key = field.alias or name
            parts.append(_key(key, field, properties[key]))
    return "\n".join(parts)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The keys of a model's schema, which a short form may have put one level down."""
    if "properties" not in schema:
        schema = next(part for part in schema["anyOf"] if "properties" in part)
    properties: dict[str, Any] = schema["properties"]
    return properties


def _key(key: str, field: FieldInfo, schema: dict[str, Any]) -> str:
    kind = in_words(schema)
    examples = "".join(example_yaml(key, example) for example in field.examples or ())
    return (
        f"### `{key}`\n\n{kind[0].upper()}{kind[1:]}{_default(field)}.\n\n"
        f"{_paragraph(field.description)}\n\n```yaml\n{examples}```\n"
    )


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
    """What a key holds: "a list of text"."""
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
    """An example of a key as it would stand in a spec, on one line."""
    return f"{key}: {flow(example)}\n"


if __name__ == "__main__":
    REFERENCE_PATH.write_text(reference(), encoding="utf-8")
