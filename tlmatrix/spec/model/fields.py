"""Types of the values of a spec, each with its validator and JSON Schema.

A validator raises ValueError with a message that begins "must be ...";
`tlmatrix.spec.lint.messages` adds the key and the value.
"""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from tlmatrix.spec.expr.expression import Expression

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

    from tlmatrix.spec.values import Value

FAMILIES = ("attention", "collective", "gemm")
"""The built-in problem families."""

OPTIONAL_AXES = ("values", "storage", "max_seqlen_q", "max_seqlen_k")
"""Axes that cases in a spec may set although `axes` does not list them."""
StorageName = Literal["offset", "sliced", "transposed", "ones", "expanded"]
STORAGES: tuple[StorageName, ...] = get_args(StorageName)
"""Memory layouts of input tensors besides contiguous."""

STRATEGIES = ("product", "zip", "pairwise", "3-wise", "sample", "first")
"""The strategies of tiers; 3-wise stands for t-wise of any t."""

CheckName = Literal[
    "numeric", "gradients", "poison", "guards", "sanitizers", "isolation", "determinism",
    "repeat", "relations", "agreement", "propagation",
]  # fmt: skip
CHECKS: tuple[CheckName, ...] = get_args(CheckName)
SanitizerName = Literal[
    "bounds", "fragments", "tables", "guarded", "uninitialised", "unwritten", "races", "lanes",
    "barriers", "sequences", "overreads", "alignment", "atomics", "overflow", "budget",
    "lowering", "nonfinite",
]  # fmt: skip
"""The interpreter's sanitizers, listed here because a spec loads without the interpreter."""

# Types of single values -----------------------------------------------------------------------


def _to_expression(value: object) -> Expression:
    match value:
        case Expression():
            return value
        case bool():
            return Expression("true" if value else "false")
        case str():
            return Expression(value)
    raise ValueError("must be an expression")


def _to_shape(value: object) -> Expression | int:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("must be 0 or more")
        return value
    if isinstance(value, str | Expression):
        return _to_expression(value)
    raise ValueError("must be a whole number or an expression")


def _to_bound(value: object) -> Expression | int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str | Expression):
        return _to_expression(value)
    raise ValueError("must be a number or an expression")


def _to_tile(value: object) -> Expression | int:
    size = _to_shape(value)
    if size == 0:
        raise ValueError("must be 1 or more")
    return size


def _to_value(value: object) -> Any:  # noqa: ANN401 - Value, which pydantic need not validate
    """A value of an axis: plain data with lists and dicts."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_to_value(item) for item in value]
        case dict():
            return {str(key): _to_value(item) for key, item in value.items()}
        case date():
            raise ValueError("is a date; quote it to make it text")
    raise ValueError("must be a number, text, true, false, none, or a list or mapping of these")


def _to_scalar(value: object) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        Expression(value)
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError("must be a number, true, false, none or an expression")


def _to_dim(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.isidentifier():
        return value
    raise ValueError("must be a dimension: its number, from 0, or its name")


def _check_regular_expression(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return value


_PROBLEM_SCHEMA = {
    "title": "a name",
    "anyOf": [{"enum": list(FAMILIES)}, {"type": "string", "pattern": ":"}],
}
_VALUE_SCHEMA = {"type": ["string", "number", "boolean", "null", "array", "object"]}
_NUMBER_SCHEMA = WithJsonSchema({"type": ["integer", "string"]})
_AS_TEXT = PlainSerializer(lambda value: value if isinstance(value, int | float) else str(value))

ExpressionText = Annotated[
    Expression,
    PlainValidator(_to_expression),
    _AS_TEXT,
    WithJsonSchema({"type": ["string", "boolean"]}),
]
ShardDim = Annotated[
    int | str,
    PlainValidator(_to_dim),
    WithJsonSchema({"title": "a whole number or a name", "type": ["integer", "string"]}),
]
Size = Annotated[Expression | int, PlainValidator(_to_shape), _AS_TEXT, _NUMBER_SCHEMA]
Bound = Annotated[
    Expression | int | float,
    PlainValidator(_to_bound),
    _AS_TEXT,
    WithJsonSchema({"type": ["number", "string"]}),
]
TileSize = Annotated[Expression | int, PlainValidator(_to_tile), _AS_TEXT, _NUMBER_SCHEMA]
if TYPE_CHECKING:
    AxisValue = Value
else:  # pydantic cannot validate a recursive type, and need not
    AxisValue = Annotated[Any, PlainValidator(_to_value), WithJsonSchema(_VALUE_SCHEMA)]
Argument = Annotated[
    int | float | bool | str | None,
    PlainValidator(_to_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]
RegularExpression = Annotated[
    str,
    Field(min_length=1),
    AfterValidator(_check_regular_expression),
    WithJsonSchema({"type": "string", "minLength": 1, "title": "a regular expression"}),
]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
IDENTIFIER = r"^[^\W\d]\w*$"
_MODULE = r"[^\W\d][\w-]*(\.[\w-]+)*"
TARGET = rf"^{_MODULE}:{_DOTTED}$"
EXCEPTION = rf"^({_MODULE}:)?{_DOTTED}$"
ARCH = r"^(sm_[0-9]+|interpreter)$"
TARGET_ARCH = r"^sm_([1-8][0-9]|[1-9][0-9]{1,2}[af])$"
ORDERS = ("contiguous", "zigzag")
"""Orders of the shards of a tensor."""
ORDER = r"^(contiguous|zigzag|\$[^\W\d]\w*)$"
INSTRUCTION = r"^[a-z][a-z0-9_]*([.:]+[A-Za-z0-9_]+)*$"
STRATEGY = r"^(product|zip|pairwise|[1-9][0-9]{0,2}-wise|sample|first)$"
RANGE = r"^ *([0-9]{1,12}) *\.\. *([0-9]{1,12}) *$"

Name = Annotated[str, Field(pattern=NAME, title="a name")]
Identifier = Annotated[str, Field(pattern=IDENTIFIER, title="a name")]
Target = Annotated[str, Field(pattern=TARGET, title="`package.module:name`")]
Arch = Annotated[str, Field(pattern=ARCH)]
TargetArch = Annotated[str, Field(pattern=TARGET_ARCH, title="an architecture")]
ShardOrder = Annotated[str, Field(pattern=ORDER)]
Strategy = Annotated[
    str,
    Field(pattern=STRATEGY),
    WithJsonSchema(
        {"anyOf": [{"enum": list(STRATEGIES)}, {"type": "string", "pattern": STRATEGY}]}
    ),
]
FamilyName = Annotated[str, WithJsonSchema(_PROBLEM_SCHEMA)]
BASELINES = (
    "reference_compiled",
    "sdpa_cudnn",
    "sdpa_efficient",
    "sdpa_flash",
    "torch",
    "torch_varlen",
)
"""Baselines of `tlmatrix bench` that PyTorch implements."""
Baseline = Annotated[
    str,
    WithJsonSchema({"anyOf": [{"enum": list(BASELINES)}, {"type": "string", "pattern": TARGET}]}),
]
CaseValues = Annotated[dict[str, AxisValue], Field(min_length=1)]


def _to_date(value: object) -> date:
    if isinstance(value, date):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise ValueError("must be a date, such as 2027-03-01")


Day = Annotated[
    date,
    PlainValidator(_to_date),
    WithJsonSchema({"title": "a date", "type": "string", "format": "date"}),
]


def add_short_form(schema: dict[str, Any], short: dict[str, Any]) -> None:
    """Add a short form to the JSON Schema of a key."""
    long = {key: schema.pop(key) for key in ("type", "items") if key in schema}
    schema["anyOf"] = [long, short]


def allow_single_entry(schema: dict[str, Any]) -> None:
    """Allow a single entry without the list in the JSON Schema of a key."""
    add_short_form(schema, schema["items"])


class Model(BaseModel):
    """The base of all models: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def short_schema(cls, _keys: dict[str, Any]) -> dict[str, Any] | None:
        """The JSON Schema of the short form, given those of the keys; None without one."""
        return None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        full = handler.resolve_ref_schema(schema)
        short = cls.short_schema(full.get("properties", {}))
        if short is None:
            return schema
        long = {name: value for name, value in full.items() if name != "description"}
        forms = [long, short] if short.get("type") == "object" else [short, long]
        description = full.get("description", "")
        full.clear()
        full |= {"description": description, "anyOf": forms}
        return full


class ShortModel(Model):
    """A model with a short form: a string is the value of its key `short`."""

    short: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _from_short(cls, value: object) -> object:
        return {cls.short: value} if isinstance(value, str) else value

    @classmethod
    def short_schema(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """The JSON Schema of the key `short`."""
        words = ("anyOf", "type", "pattern")
        return {word: part for word, part in keys[cls.short].items() if word in words}
