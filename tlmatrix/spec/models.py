"""What a spec says, as frozen models: the one place that defines the keys of the language.

The loader checks files with these models, the JSON Schema for editors and `docs/spec.md` are
generated from them, so a key's meaning, default and examples are written here and nowhere else.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    model_validator,
)

from tlmatrix.spec.expressions import Expression
from tlmatrix.spec.issues import Issue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

    from tlmatrix.spec.nodes import Document
    from tlmatrix.spec.values import Value

__all__ = [
    "CHECKS",
    "DTYPES",
    "FAMILIES",
    "Allowance",
    "AllowanceChange",
    "Bench",
    "DeclaredProblem",
    "DeterminismRule",
    "Fuzz",
    "FuzzLengths",
    "InputDecl",
    "KnownBug",
    "OutputDecl",
    "Range",
    "Reject",
    "Rule",
    "Spec",
    "Tier",
    "Tolerance",
]

FAMILIES = ("attention", "gemm")
"""Problem families that a spec can name by a bare word."""

DTYPES = (
    "float16", "bfloat16", "float32", "float64",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
"""Names of dtypes, as PyTorch spells them."""

STRATEGIES = ("product", "zip", "pairwise", "3-wise", "sample", "first")
"""The strategies, with 3-wise to stand for t-wise of any t."""

CheckName = Literal[
    "numeric", "gradients", "poison", "guards", "isolation", "determinism", "repeat", "properties"
]
CHECKS: tuple[CheckName, ...] = get_args(CheckName)

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


def _to_tile(value: object) -> Expression | int:
    size = _to_shape(value)
    if size == 0:
        raise ValueError("must be 1 or more")
    return size


def _to_value(value: object) -> Any:  # noqa: ANN401 - Value, which pydantic need not walk
    """Plain data as an axis may hold it; lists stay lists, mappings dicts."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_to_value(item) for item in value]
        case dict():
            return {str(key): _to_value(item) for key, item in value.items()}
        case date():
            raise ValueError("is a date; quote it if text is meant")
    raise ValueError("must be a number, text, true, false, none, or a list or mapping of these")


def _to_scalar(value: object) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        Expression(value)
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError("must be a number, true, false, none or an expression")


_PROBLEM_SCHEMA = {
    "title": "a name",
    "anyOf": [{"enum": list(FAMILIES)}, {"type": "string", "pattern": ":"}],
}
_VALUE_SCHEMA = {"type": ["string", "number", "boolean", "null", "array", "object"]}
_EXPRESSION_SCHEMA = {"type": ["string", "boolean"]}
_SHAPE_SCHEMA = {"type": ["integer", "string"]}
_AS_TEXT = PlainSerializer(str)

ExpressionText = Annotated[
    Expression, PlainValidator(_to_expression), _AS_TEXT, WithJsonSchema(_EXPRESSION_SCHEMA)
]
Size = Annotated[
    Expression | int,
    PlainValidator(_to_shape),
    PlainSerializer(lambda size: size if isinstance(size, int) else str(size)),
    WithJsonSchema(_SHAPE_SCHEMA),
]
TileSize = Annotated[
    Expression | int,
    PlainValidator(_to_tile),
    PlainSerializer(lambda size: size if isinstance(size, int) else str(size)),
    WithJsonSchema(_SHAPE_SCHEMA),
]
if TYPE_CHECKING:
    AxisValue = Value
else:  # pydantic cannot walk a type that holds itself, and need not
    AxisValue = Annotated[Any, PlainValidator(_to_value), WithJsonSchema(_VALUE_SCHEMA)]
Argument = Annotated[
    int | float | bool | str | None,
    PlainValidator(_to_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
IDENTIFIER = r"^[^\W\d]\w*$"
TARGET = rf"^{_DOTTED}:{_DOTTED}$"
EXCEPTION = rf"^({_DOTTED}:)?{_DOTTED}$"
ARCH = r"^(sm_[0-9]+|interpreter)$"
STRATEGY = r"^(product|zip|pairwise|[1-9][0-9]{0,2}-wise|sample|first)$"
RANGE = r"^ *([0-9]{1,12}) *\.\. *([0-9]{1,12}) *$"

Name = Annotated[str, Field(pattern=NAME, title="a name")]
Identifier = Annotated[str, Field(pattern=IDENTIFIER, title="a name")]
Target = Annotated[str, Field(pattern=TARGET, title="`package.module:name`")]
Arch = Annotated[str, Field(pattern=ARCH)]
Strategy = Annotated[
    str,
    Field(pattern=STRATEGY),
    WithJsonSchema(
        {"anyOf": [{"enum": list(STRATEGIES)}, {"type": "string", "pattern": STRATEGY}]}
    ),
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


def _also(handler: GetJsonSchemaHandler, schema: CoreSchema, key: str) -> dict[str, Any]:
    """The JSON Schema of a model that may also be written as the value of one of its keys."""
    full = handler.resolve_ref_schema(handler(schema))
    long = {name: value for name, value in full.items() if name != "description"}
    short = {"anyOf": long["properties"][key]["anyOf"]}
    description = full.get("description", "")
    full.clear()
    full |= {"description": description, "anyOf": [short, long]}
    return full


def _widen(schema: dict[str, Any], short: dict[str, Any]) -> None:
    """Adds a short form to the JSON Schema of a key."""
    long = {key: schema.pop(key) for key in ("type", "items") if key in schema}
    schema["anyOf"] = [long, short]


class _Model(BaseModel):
    """What all models share: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


# Problems declared in YAML -----------------------------------------------------------------


class InputDecl(_Model):
    """An input tensor of a declared problem."""

    shape: tuple[Size, ...] = Field(
        description="Its dimensions: whole numbers, or expressions over the axes; `[]` for a "
        "scalar.",
        examples=[["rows", "cols"], ["2 * rows", 64]],
    )
    dtype: str = Field(
        description="A dtype as PyTorch spells it, or `$axis` for the value of that axis.",
        examples=["$dtype", "float32"],
    )
    grad: bool = Field(
        default=False,
        strict=True,
        description="Whether its gradient is checked against autograd through the reference.",
        examples=[True],
    )
    fill: str | None = Field(
        default=None,
        description="The distribution its values are drawn from. By default the case decides, "
        "so that all distributions occur.",
        examples=["normal"],
    )


class OutputDecl(_Model):
    """An output tensor of a declared problem."""

    shape: tuple[Size, ...] | None = Field(
        default=None,
        description="Its dimensions. By default what the reference returns.",
        examples=[["rows", "cols"]],
    )
    dtype: str | None = Field(
        default=None,
        description="A dtype, or `$axis`. By default that of the first input.",
        examples=["$dtype"],
    )
    dims: tuple[Identifier, ...] | None = Field(
        default=None,
        description="What its dimensions are called in findings.",
        examples=[["row", "column"]],
    )


class DeclaredProblem(_Model):
    """A problem described in the spec itself."""

    inputs: dict[Identifier, InputDecl] = Field(
        min_length=1,
        description="The input tensors, by name, in the order the reference takes them.",
        examples=[{"x": {"shape": ["rows", "cols"], "dtype": "$dtype", "grad": True}}],
    )
    outputs: Annotated[
        Annotated[tuple[Identifier, ...], Field(min_length=1), Tag("<list>")]
        | Annotated[dict[Identifier, OutputDecl], Field(min_length=1), Tag("<mapping>")],
        Discriminator(lambda value: "<mapping>" if isinstance(value, dict) else "<list>"),
    ] = Field(
        description="The output tensors in the order they are returned: their names, or a mapping "
        "from name to shape, dtype and dims.",
        examples=[["y"], {"y": {"shape": ["rows", "cols"], "dtype": "$dtype"}}],
    )
    reference: Target = Field(
        description="A function of PyTorch tensors, `package.module:function`. It is called with "
        "the inputs (and the axes it has parameters for) in float64, and in the kernel's "
        "precision.",
        examples=["mypkg.reference:rms_norm"],
    )

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs, in the order they are returned, however they were declared."""
        return tuple(self.outputs)

    @property
    def tensors(self) -> frozenset[str]:
        """Names that findings may be about: outputs, and gradients of inputs."""
        gradients = (f"d{name}" for name, each in self.inputs.items() if each.grad)
        return frozenset([*self.outputs, *gradients])


# The matrix ---------------------------------------------------------------------------------


class Rule(_Model):
    """What must hold of a case for it to be part of the matrix."""

    expr: ExpressionText = Field(
        description="An expression over the axes. Cases for which it is false are removed.",
        examples=["window is none or causal"],
    )
    because: Annotated[str, Field(min_length=1)] = Field(
        description="Why; shown with the number of cases the rule removed.",
        examples=["a window is causal by definition"],
    )


class Tier(_Model):
    """A named way to pick cases. `quick: pairwise` is short for `quick: {strategy: pairwise}`."""

    strategy: Strategy = Field(
        description="`product`: all combinations. `zip`: the first values of all axes, then the "
        "second, and so on. `pairwise`, `3-wise`, `t-wise` for any t: every combination of "
        "values of any t axes occurs. `sample`: `size` random combinations. `first`: the first "
        "`size` of the product.",
        examples=["pairwise", "3-wise", "product"],
    )
    size: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None,
        description="How many cases; `sample` needs it, `first` may have it (1).",
        examples=[100],
    )
    seed: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0,
        description="What `sample` and the t-wise strategies draw with. The same seed picks the "
        "same cases.",
        examples=[7],
    )
    axes: dict[str, tuple[AxisValue, ...]] | None = Field(
        default=None,
        description="Values that replace those of some axes in this tier.",
        examples=[{"head_dim": [64]}],
    )

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return {"strategy": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _also(handler, core_schema, "strategy")

    @property
    def strength(self) -> int | None:
        """The t of a t-wise strategy, else None."""
        if self.strategy == "pairwise":
            return 2
        number, dash, _ = self.strategy.partition("-wise")
        return int(number) if dash else None


DEFAULT_TIERS = {
    "quick": Tier(strategy="pairwise"),
    "nightly": Tier(strategy="3-wise"),
    "full": Tier(strategy="product"),
}
"""The tiers that every spec has; its own come first, and replace those of the same name."""


def _with_default_tiers(tiers: dict[str, Tier]) -> dict[str, Tier]:
    return tiers | {name: tier for name, tier in DEFAULT_TIERS.items() if name not in tiers}


class Reject(_Model):
    """An input that the entry must refuse."""

    set: CaseValues = Field(
        description="What is bad: axes and other arguments of the entry with their bad values. "
        "A tensor can get another dtype or device (`k.dtype: float64`), or another shape "
        "(`k: {shape: [3, 5]}`). Other axes take their first value.",
        examples=[{"groups": 0}, {"k.dtype": "float64"}, {"k": {"shape": [3, 5]}}],
    )
    raises: Annotated[str, Field(pattern=EXCEPTION)] = Field(
        description="The exception: a builtin one, or `package.module:Class`.",
        examples=["ValueError"],
    )
    matching: Annotated[str, Field(min_length=1)] = Field(
        description="Words that its message must contain.", examples=["groups must be"]
    )
    because: str = Field(default="", description="Why.", examples=["no head would be left"])


class KnownBug(_Model):
    """A bug that is known: an entry of the spec's ledger."""

    when: ExpressionText = Field(
        description="An expression over the axes, `arch` and `backend`: which cases it concerns.",
        examples=["head_dim == 256 and arch == 'sm_80'"],
    )
    issue: Annotated[str, Field(min_length=1)] = Field(
        description="Where it is tracked. Quote it: an unquoted `#` starts a comment.",
        examples=["#12"],
    )
    expires: Day = Field(
        description="The last day of the entry. After it the entry is an error, so that no bug "
        "is forgotten.",
        examples=[date(2027, 3, 1)],
    )
    mode: Literal["tolerate", "quarantine"] = Field(
        default="tolerate",
        description="`tolerate`: the cases run, and one that passes is a failure. "
        "`quarantine`: they never run.",
        examples=["quarantine"],
    )


# Judging ------------------------------------------------------------------------------------


class Allowance(_Model):
    """How far a tensor may lie from its reference, every part decided."""

    mode: Literal["reference_relative"] = "reference_relative"
    factor: Positive = 2.0
    floor: Literal["auto"] | float = "auto"


class AllowanceChange(_Model):
    """How far a tensor may lie from its reference; what is left out comes from the broader one."""

    mode: Literal["reference_relative"] | None = Field(
        default=None,
        description="`reference_relative`: the error of the same mathematics in PyTorch at the "
        "kernel's precision, times `factor`, plus `floor`.",
        examples=["reference_relative"],
    )
    factor: Positive | None = Field(
        default=None, description="How many times that error is allowed (2).", examples=[3]
    )
    floor: (
        Annotated[
            Annotated[Literal["auto"], Tag("<word>")]
            | Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False), Tag("<number>")],
            Discriminator(lambda value: "<word>" if isinstance(value, str) else "<number>"),
        ]
        | None
    ) = Field(
        default=None,
        description="What is allowed in any case. `auto`: what rounding the output alone can do.",
        examples=["auto", 1e-6],
    )


def _arch_allowances(value: object) -> object:
    """An allowance right under an architecture is short for one under `default`."""
    if isinstance(value, dict) and not any(isinstance(each, dict) for each in value.values()):
        return {"default": value}
    return value


class _OrOneAllowance:
    """Tells the JSON Schema about the short form."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        by_tensor = handler(core_schema)
        return {"anyOf": [by_tensor["additionalProperties"], by_tensor]}


ArchAllowances = Annotated[
    dict[str, AllowanceChange], BeforeValidator(_arch_allowances), _OrOneAllowance()
]


class Tolerance(_Model):
    """Allowances: `default`, one a tensor by its name (`dq: {factor: 3}`), and `by_arch`.

    The last that says something wins: default, tensor, the architecture's default, its tensor.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, AllowanceChange]

    default: AllowanceChange = Field(
        default=AllowanceChange(),
        description="For every output and gradient.",
        examples=[{"mode": "reference_relative", "factor": 2, "floor": "auto"}],
    )
    by_arch: dict[Arch, ArchAllowances] = Field(
        default={},
        description="For one architecture (`sm_90`, or `interpreter`): an allowance, or "
        "allowances by tensor.",
        examples=[{"sm_100": {"factor": 4}}, {"sm_80": {"dq": {"factor": 4}}}],
    )

    @property
    def tensors(self) -> Mapping[str, AllowanceChange]:
        """Allowances of single tensors, by name."""
        return self.__pydantic_extra__

    def for_tensor(self, name: str, arch: str) -> Allowance:
        """What holds for an output or gradient on an architecture."""
        decided: dict[str, Any] = {}
        on_arch = self.by_arch.get(arch, {})
        for change in (
            self.default,
            self.tensors.get(name),
            on_arch.get("default"),
            on_arch.get(name),
        ):
            if change is not None:
                decided |= change.model_dump(exclude_none=True)
        return Allowance(**decided)


class DeterminismRule(_Model):
    """How alike two runs of the same case must be."""

    when: ExpressionText = Field(
        description="An expression over the axes, `arch` and `backend`.",
        examples=["backward == 'atomic'"],
    )
    mode: Literal["bitwise", "bounded"] = Field(
        description="`bitwise`: every bit equal. `bounded`: both within the allowance.",
        examples=["bounded"],
    )


def _determinism_rules(value: object) -> object:
    return [{"when": "true", "mode": value}] if isinstance(value, str) else value


# Fuzzing and timing ---------------------------------------------------------------------------


class Range(_Model):
    """Whole numbers from `low` to `high`, both included. Written `1..8`, `[1, 8]`, or `8`."""

    low: Annotated[int, Field(strict=True, ge=0)]
    high: Annotated[int, Field(strict=True, ge=0)]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        match value:
            case bool() | None:
                pass
            case int():
                return {"low": value, "high": value}
            case [int(low), int(high)]:
                return {"low": low, "high": high}
            case str():
                if found := re.fullmatch(RANGE, value):
                    return {"low": int(found[1]), "high": int(found[2])}
            case Range() | {"low": _, "high": _}:
                return value
        raise ValueError("must be a range such as 1..8")

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low > self.high:
            raise ValueError(f"is an empty range: {self.low} is more than {self.high}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _core_schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        whole = {"type": "integer", "minimum": 0}
        return {
            "description": cls.__doc__,
            "anyOf": [
                {"type": "string", "pattern": RANGE},
                whole,
                {"type": "array", "items": whole, "minItems": 2, "maxItems": 2},
            ],
        }


class FuzzLengths(_Model):
    """How packed batches are made up."""

    sequences: Range = Field(
        default=Range(low=1, high=8),
        description="How many sequences a batch has.",
        examples=["1..8"],
    )
    length: Range = Field(
        default=Range(low=0, high=300),
        description="How long a sequence is.",
        examples=["0..300"],
    )
    around: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = Field(
        default=(),
        description="Lengths near which bugs live, such as tile edges: these, one less and one "
        "more are drawn often.",
        examples=[[64, 128]],
    )
    kv: Literal["equal", "independent", "longer", "shorter"] = Field(
        default="equal",
        description="Key lengths: `equal` to the query's, `independent` of them, never shorter "
        "(`longer`), never longer (`shorter`).",
        examples=["independent"],
    )


class Fuzz(_Model):
    """Random packed batches, made by Hypothesis and shrunk when they fail."""

    seqlens: FuzzLengths = Field(
        default=FuzzLengths(),
        description="How packed batches are made up.",
        examples=[{"sequences": "1..8", "length": "0..300", "around": [64, 128]}],
    )
    examples: dict[str, Annotated[int, Field(strict=True, ge=0)]] = Field(
        default={},
        description="How many batches a tier tries.",
        examples=[{"quick": 20, "nightly": 500}],
    )


class Bench(_Model):
    """What `tlmatrix bench` times."""

    cases: tuple[CaseValues, ...] = Field(
        min_length=1,
        description="Values for some axes; the others take their first value. They need not be "
        "values of the matrix.",
        examples=[[{"head_dim": 128, "causal": True}]],
    )
    baselines: tuple[str, ...] = Field(
        default=(),
        description="Other implementations to time beside the entry.",
        examples=[["sdpa_cudnn", "sdpa_flash"]],
    )


# The spec -----------------------------------------------------------------------------------


class Spec(_Model):
    """One operator under test, and the matrix of cases that tests it."""

    name: Name = Field(
        description="What the spec is called in results and on the command line.",
        examples=["gqa_varlen"],
    )
    summary: str = Field(
        default="",
        description="One sentence for people.",
        examples=["Grouped-query flash attention over packed sequences."],
    )
    problem: Annotated[
        Annotated[str, WithJsonSchema(_PROBLEM_SCHEMA), Tag("<name>")]
        | Annotated[DeclaredProblem, Tag("<mapping>")],
        Discriminator(lambda value: "<name>" if isinstance(value, str) else "<mapping>"),
    ] = Field(
        description="What is computed: `attention`, `gemm`, a class of your own "
        "(`package.module:Class`), or a mapping that declares inputs, outputs and reference.",
        examples=["attention", "mypkg.problems:MyProblem"],
    )
    entry: Target | None = Field(
        default=None,
        description="The callable under test, `package.module:name`. It is called with keyword "
        "arguments matched by its parameters' names. A spec has an entry or a factory.",
        examples=["tlmatrix_kernels.attention:varlen_attention"],
    )
    factory: Target | None = Field(
        default=None,
        description="A TileLang kernel factory, tested as it stands: `@tilelang.jit`, or a "
        "function that returns a PrimFunc.",
        examples=["mypkg.kernels:rms_norm_kernel"],
    )
    compile: dict[Identifier, Argument] = Field(
        default={},
        description="Keyword arguments of the factory. Text is an expression over the problem's "
        "names; quote text within it (`\"'float16'\"`).",
        examples=[{"M": "rows", "N": "cols", "blk_m": 64}],
    )
    call: tuple[Identifier, ...] = Field(
        default=(),
        description="What the kernel is called with: the problem's names, in order. A name that "
        "`returns` lists too is a buffer that the kernel writes.",
        examples=[["q", "k", "v"]],
    )
    returns: tuple[Identifier, ...] = Field(
        default=(),
        description="Which of the problem's outputs come back, in order. By default the first "
        "ones, as many as are returned.",
        examples=[["out", "lse"]],
    )
    axes: dict[Identifier, tuple[AxisValue, ...]] = Field(
        min_length=1,
        description="The dimensions of the matrix. Values are numbers, text, true, false, `none` "
        "(absent), lists or mappings.",
        examples=[{"dtype": ["float16", "bfloat16"], "head_dim": [64, 96], "window": [None, 64]}],
    )
    where: tuple[Rule, ...] = Field(
        default=(),
        description="Rules that every case of the matrix obeys.",
        examples=[[{"expr": "window is none or causal", "because": "a window is causal"}]],
    )
    extra: tuple[CaseValues, ...] = Field(
        default=(),
        alias="cases",
        description="Further cases, run in every tier. Axes left out take their first value.",
        examples=[[{"head_dim": 256, "causal": True}]],
    )
    tiers: Annotated[dict[Name, Tier], AfterValidator(_with_default_tiers)] = Field(
        default={},
        validate_default=True,
        description="Named ways to pick cases. Those left out of `quick`, `nightly` and `full` "
        "are pairwise, 3-wise and product.",
        examples=[{"quick": "pairwise", "nightly": {"strategy": "sample", "size": 500}}],
    )
    tolerance: Tolerance = Field(
        default=Tolerance(),
        description="How far results may lie from the reference: never an absolute number alone.",
        examples=[{"default": {"factor": 2}, "dq": {"factor": 3}}],
    )
    checks: tuple[CheckName, ...] = Field(
        default=CHECKS,
        min_length=1,
        description="The oracles that judge a case. By default all.",
        examples=[["numeric", "gradients"]],
    )
    determinism: Annotated[tuple[DeterminismRule, ...], BeforeValidator(_determinism_rules)] = (
        Field(
            default=(),
            description="How alike two runs must be; the first rule that holds decides, and where "
            "none does, bitwise. `bounded` alone is short for one rule that always holds.",
            examples=[[{"when": "backward == 'atomic'", "mode": "bounded"}], "bounded"],
            json_schema_extra=lambda schema: _widen(schema, {"enum": ["bitwise", "bounded"]}),
        )
    )
    tile: dict[Identifier, TileSize] = Field(
        default={},
        description="Edges of the kernel's tiles, by dimension, for reports and fuzzing: whole "
        "numbers, or expressions.",
        examples=[{"q": 64, "k": 64}],
    )
    fuzz: Fuzz | None = Field(
        default=None,
        description="Random packed batches, made by Hypothesis.",
        examples=[{"seqlens": {"length": "0..300"}, "examples": {"quick": 20}}],
    )
    rejects: tuple[Reject, ...] = Field(
        default=(),
        description="Bad input that must raise, with these words.",
        examples=[[{"set": {"groups": 0}, "raises": "ValueError", "matching": "groups must be"}]],
    )
    known_bugs: tuple[KnownBug, ...] = Field(
        default=(),
        description="The ledger: which cases fail today, where that is tracked, and until when.",
        examples=[[{"when": "head_dim == 256", "issue": "#12", "expires": date(2027, 3, 1)}]],
    )
    regressions: tuple[CaseValues, ...] = Field(
        default=(),
        description="Cases that once failed, run first. `tlmatrix fuzz --save` adds to them.",
        examples=[[{"seqlens": {"q": [0, 5], "k": [7, 0]}}]],
    )
    bench: Bench | None = Field(
        default=None,
        description="What `tlmatrix bench` times.",
        examples=[{"cases": [{"head_dim": 128}], "baselines": ["sdpa_flash"]}],
    )

    _path: Path = PrivateAttr(default=Path("<spec>"))
    _document: Document | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path:
        """The file the spec was read from."""
        return self._path

    def location(self, *path: str | int) -> tuple[int, int]:
        """Line and column, from 1, of the value at a path of keys and indices.

        `spec.location("axes", "seqlens", 1)`. A part that the file does not have leads to the
        nearest place around it; a spec made in Python is all at (1, 1).
        """
        if self._document is None:
            return (1, 1)
        node, _ = self._document.find(*_as_written(path))
        return (node.line, node.column)

    def key_location(self, *path: str | int) -> tuple[int, int]:
        """Line and column of the key that leads to the value at a path, or of the value."""
        if self._document is None:
            return (1, 1)
        node, entry = self._document.find(*_as_written(path))
        place = entry or node
        return (place.line, place.column)

    def issue(self, path: tuple[str | int, ...], message: str) -> Issue:
        """Something wrong with the value at a path, at its place in the file."""
        return Issue(self.path, *self.location(*path), message)


def _as_written(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A path of attributes as a path of keys: `extra` is written `cases`."""
    return ("cases", *path[1:]) if path[:1] == ("extra",) else path
