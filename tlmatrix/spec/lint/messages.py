"""Messages for the errors that pydantic finds in a spec.

A message has the path of the key (`tiers.quick.size`), the expected and the actual value, and a
suggestion.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from tlmatrix.spec.expr.expression import ExpressionError, shorten
from tlmatrix.spec.issues import Issue, KeyPath
from tlmatrix.spec.model import fields
from tlmatrix.spec.model import spec as models
from tlmatrix.spec.yaml.text import flow
from tlmatrix.spec.yaml.tree import ScalarNode
from tlmatrix.words import guess, suggestion

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from tlmatrix.spec.yaml.tree import Document


_EXPECTED = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "string_too_short": "must not be empty",
    "too_short": "must have at least one entry",
}

_RENAMED = {
    "assembly": "codegen",
    "cases": "extra_cases",
    "compile": "factory_args",
    "construct": "constructor_args",
    "expr": "require",
    "matching": "message",
    "rejects": "invalid_inputs",
    "where": "constraints",
}
"""Keys of tlmatrix 0.1, with their new names."""

_PATTERNS = {
    fields.NAME: "must be made of letters, digits, '_', '-' and '.'",
    fields.IDENTIFIER: "must be a name: letters, digits and '_', not a digit first",
    fields.TARGET: "must be written package.module:name",
    fields.EXCEPTION: "must be an exception: a builtin one, or package.module:Class",
    fields.ARCH: "must be an architecture such as sm_90, or interpreter",
    fields.TARGET_ARCH: "must be a target architecture, from sm_90 on with its letter, such as "
    "sm_80, sm_90a or sm_100a",
    fields.INSTRUCTION: "must be a PTX instruction, such as wgmma.mma_async",
    fields.ORDER: "must be contiguous, zigzag, or $axis for the value of that axis",
    fields.STRATEGY: "must be product, zip, pairwise, t-wise (such as 3-wise), sample or first",
}


def show(value: Any) -> str:  # noqa: ANN401 - any value of a file
    """A value on one line in YAML syntax, text in quotes."""
    return shorten(repr(value) if isinstance(value, str) else flow(value))


def dotted(path: KeyPath) -> str:
    """A path as text: `constraints[1].require`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def models_within(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - a type
    """The models inside a type: Tier of `dict[str, Tier]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_within(inner)]


def issue_of(error: ErrorDetails, document: Document) -> Issue:
    """An error of pydantic as an issue at its line and column."""
    is_key = error["loc"][-1:] == ("[key]",)
    loc = error["loc"][:-1] if is_key else error["loc"]
    if error["type"] in ("missing", "extra_forbidden"):
        path = (*document.path_in_file(*loc[:-1]), loc[-1])
    else:
        path = document.path_in_file(*loc)
    node, entry = document.find(*path)
    message = _message(error, path, is_key=is_key)
    line, column = node.line, node.column
    cause = error.get("ctx", {}).get("error")
    if error["type"] == "missing":
        line, column = document.location(*path[:-1], at_key=True)
    elif entry is not None and (is_key or error["type"] == "extra_forbidden"):
        line, column = entry.line, entry.column
    elif isinstance(cause, ExpressionError):
        line, column = document.inside(node, cause.offset)
    elif entry is not None and isinstance(node, ScalarNode) and node.is_empty:
        line, column = entry.line, entry.column
    return Issue(document.path, line, column, message)


def _message(error: ErrorDetails, path: KeyPath, *, is_key: bool) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    label = f"'{dotted(path)}'" if path else "the spec"
    if kind == "missing":
        inside = f" in '{dotted(path[:-1])}'" if path[:-1] else ""
        return f"the key {path[-1]!r} is missing{inside}"
    if kind == "extra_forbidden":
        known = _keys_at(path)
        if _RENAMED.get(str(path[-1])) in known:
            return f"unknown key {path[-1]!r}; write {_RENAMED[str(path[-1])]!r}"
        if path[:2] == ("problem", "outputs") and path[-1] == "fill":
            remedy = f"call: [{{output: {path[2]}, fill: zeros}}]"
            return f"unknown key 'fill'; a buffer is filled where it is passed: {remedy}"
        text = f"unknown key {path[-1]!r}{suggestion(path[-1], known, 'Keys here')}"
        if path[:-1] == ("fuzz",) and "did you mean" not in text:
            text += f"; for an axis: fuzz: {{axes: {{{path[-1]}: …}}}}"
        return text
    cause = context.get("error")
    if isinstance(cause, ExpressionError):
        return f"{label}: {cause.reason}: {shorten(cause.text)!r}"
    if is_key:
        label = f"the name {path[-1]!r}" + (f" in '{dotted(path[:-1])}'" if path[:-1] else "")
        return f"{label} {_expected(error)}"
    if isinstance(cause, ValueError) and not str(cause).startswith("must"):
        return f"{label}: {show(value)} {cause}"
    return f"{label} {_expected(error)}; got {show(value)}{_hint(error)}"


def _hint(error: ErrorDetails) -> str:
    """A suggestion for the value, or an empty text."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "tuple_type":
        alone = isinstance(value, int | float) or str(value).isidentifier()
        return f"; write [{flow(value)}]" if alone and value is not None else ""
    known: Iterable[str] = ()
    if kind == "literal_error":
        known = _choices(context)
    elif context.get("pattern") == fields.STRATEGY:
        known = fields.STRATEGIES
    elif context.get("pattern") == fields.ORDER:
        known = fields.ORDERS
    near = guess(value, known)
    return f"; did you mean {near!r}?" if near else ""


def _expected(error: ErrorDetails) -> str:
    """The expected value; pydantic's message for errors that the table lacks."""
    kind, context = error["type"], error.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return _PATTERNS[context["pattern"]]
    if kind == "literal_error":
        known = _choices(context)
        return f"must be one of {', '.join(known)}" if len(known) > 1 else f"must be {known[0]}"
    if kind == "greater_than":
        return f"must be more than {context['gt']:g}"
    if kind == "greater_than_equal":
        return f"must be {context['ge']:g} or more"
    return _EXPECTED.get(kind, error["msg"])


def _choices(context: dict[str, Any]) -> list[str]:
    """The values of a Literal, from pydantic's "'a', 'b' or 'c'"."""
    return str(context["expected"]).split("'")[1::2]


def _keys_at(path: KeyPath) -> list[str]:
    """The keys of the model at a path; parts that are not keys of a model are skipped."""
    model: type[BaseModel] = models.Spec
    for part in path[:-1]:
        field = _fields(model).get(str(part))
        within = models_within(field) if field is not None else []
        if model is models.Tolerance and field is None:
            within = [models.AllowanceChange]
        if within:
            model = within[-1]
    return list(_fields(model))


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """The keys of a model, as in a file, each with its type."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
