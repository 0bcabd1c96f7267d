"""The root model of a spec, and the models of its keys.

The loader validates files with these models. `docs/reference/spec-keys.md` says what each key
means; the JSON Schema is generated from both (`tlmatrix.spec.schema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    model_validator,
)

from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.issues import Issue, KeyPath
from tlmatrix.spec.model.calling import (
    Call,
    Inout,
    OutputBuffer,
    Reference,
    Returns,
    results_of,
    written_by,
)
from tlmatrix.spec.model.checks import (
    Agreement,
    Allowance,
    AllowanceChange,
    CodegenRule,
    CudaGraph,
    DeterminismRule,
    InvalidInputs,
    PackedRows,
    Prove,
    Refusal,
    RelationDecl,
    SanitizerOptions,
    Tolerance,
    determinism_rules,
    tables_of,
)
from tlmatrix.spec.model.fields import (
    CHECKS,
    FAMILIES,
    Argument,
    AxisValue,
    Baseline,
    Bound,
    CaseValues,
    CheckName,
    Day,
    ExpressionText,
    FamilyName,
    Identifier,
    Model,
    Name,
    ShardDim,
    ShardOrder,
    ShortModel,
    Size,
    Strategy,
    Target,
    TargetArch,
    TileSize,
    add_short_form,
    allow_single_entry,
)
from tlmatrix.spec.model.fuzz import Fuzz, FuzzAxis, FuzzLengths, FuzzTrace, Range

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value
    from tlmatrix.spec.yaml.tree import Document


# Shards -------------------------------------------------------------------------------------------

WORLD = "world"
"""The axis with the number of ranks."""

Uneven = Literal["balanced", "ceil"]


class Shard(Model):
    """How one tensor is split across ranks.

    Tensors that are not listed are replicated: each rank gets or returns the whole tensor, equal on
    all ranks. A gradient is split like its input, a cotangent like its output.
    """

    dim: ShardDim | None = None
    order: ShardOrder = "contiguous"
    uneven: Uneven | None = None
    own: bool = Field(default=False, strict=True)
    sum: bool = Field(default=False, strict=True)

    def order_of(self, values: Mapping[str, Value]) -> str:
        """The order in a case: of `$axis`, the value of the axis."""
        if self.order.startswith("$"):
            return str(values[self.order[1:]])
        return self.order


# Checks ------------------------------------------------------------------------------------


class ChecksWithout(Model):
    """All checks but some."""

    without: tuple[CheckName, ...] = Field(min_length=1)


def _selected_checks(value: tuple[CheckName, ...] | ChecksWithout) -> tuple[CheckName, ...]:
    if not isinstance(value, ChecksWithout):
        return value
    kept = tuple(check for check in CHECKS if check not in value.without)
    if not kept:
        raise ValueError("must leave at least one check")
    return kept


if TYPE_CHECKING:
    Checks = tuple[CheckName, ...]
else:
    Checks = Annotated[
        Annotated[tuple[CheckName, ...], Field(min_length=1), Tag("<list>")]
        | Annotated[ChecksWithout, Tag("<mapping>")],
        Discriminator(lambda value: "<mapping>" if isinstance(value, Mapping) else "<list>"),
        AfterValidator(_selected_checks),
    ]
"""The checks of a case, written as a list, or as `without` and a list."""

# Problems declared in YAML -----------------------------------------------------------------


DERIVED = (
    "offsets_of",
    "starts_of",
    "lengths_of",
    "sequence_ids_of",
    "positions_of",
    "pages_of",
)
"""Keys of an input that is derived from a packed axis, without its own shape or values."""


class InputDecl(Model):
    """An input tensor of a declared problem: given by a shape, or derived from a packed axis."""

    shape: tuple[Size, ...] | None = None
    dtype: str | None = None
    offsets_of: ExpressionText | None = None
    starts_of: ExpressionText | None = None
    lengths_of: ExpressionText | None = None
    sequence_ids_of: ExpressionText | None = None
    positions_of: ExpressionText | None = None
    pages_of: ExpressionText | None = None
    page_size: Size | None = None
    unseen: ExpressionText | None = None
    grad: bool = Field(default=False, strict=True)
    fill: str | None = None
    between: tuple[Bound, ...] | None = None
    distinct: bool = Field(default=False, strict=True)

    @property
    def derived(self) -> tuple[str, Expression] | None:
        """The key of `DERIVED` that is set, and its list of lengths; None without one."""
        for key in DERIVED:
            lengths: Expression | None = getattr(self, key)
            if lengths is not None:
                return key, lengths
        return None

    @property
    def is_free(self) -> bool:
        """Whether any values may be given: none are derived, filled, or in a range."""
        return self.derived is None and self.fill is None and self.between is None

    @property
    def sizes(self) -> tuple[Expression | int, ...]:
        """The shape, declared or derived from the packed axis."""
        if self.derived is None:
            return self.shape or ()
        key, of = self.derived
        match key:
            case "offsets_of":
                return (Expression(f"len({of}) + 1"),)
            case "starts_of" | "lengths_of":
                return (Expression(f"len({of})"),)
            case "pages_of":
                most = Expression(f"max(ceildiv({of}, {self.page_size}))")
                return (Expression(f"len({of})"), most)
        return (Expression(f"sum({of})"),)

    @property
    def dtype_text(self) -> str:
        """The dtype, or `$axis`; by default int32, for derived inputs."""
        return self.dtype or "int32"


class OutputDecl(Model):
    """An output tensor of a declared problem."""

    shape: tuple[Size, ...] | None = None
    dtype: str | None = None
    dims: tuple[Identifier, ...] | None = None


class DeclaredProblem(Model):
    """A problem declared in the spec: inputs, outputs and a reference."""

    inputs: dict[Identifier, InputDecl] = Field(min_length=1)
    outputs: Annotated[
        Annotated[tuple[Identifier, ...], Field(min_length=1), Tag("<list>")]
        | Annotated[dict[Identifier, OutputDecl], Field(min_length=1), Tag("<mapping>")],
        Discriminator(lambda value: "<mapping>" if isinstance(value, dict) else "<list>"),
    ]
    reference: Reference | None = None

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, in the order of return."""
        return tuple(self.outputs)

    @property
    def tensors(self) -> frozenset[str]:
        """The tensors that are checked: outputs, and gradients of inputs."""
        gradients = (f"d{name}" for name, each in self.inputs.items() if each.grad)
        return frozenset([*self.outputs, *gradients])


# The matrix ---------------------------------------------------------------------------------


class ConstraintDecl(ShortModel):
    """A condition that every case of the matrix satisfies. Text alone is short for `require`."""

    short = "require"

    require: ExpressionText
    when: ExpressionText | None = None
    because: str = ""

    @cached_property
    def expression(self) -> Expression:
        """The whole condition: `not (when) or (require)`."""
        if self.when is None:
            return self.require
        return Expression(f"not ({self.when}) or ({self.require})")

    @property
    def text(self) -> str:
        """The constraint as text for messages."""
        return f"{self.require}" if self.when is None else f"{self.require} when {self.when}"

    @property
    def reason(self) -> str:
        """`because` in parentheses, to follow `text`; empty without one."""
        return f" ({self.because})" if self.because else ""


class Tier(ShortModel):
    """A named way to pick cases. `quick: pairwise` is short for `quick: {strategy: pairwise}`."""

    short = "strategy"

    strategy: Strategy
    size: Annotated[int, Field(strict=True, ge=1)] | None = None
    seed: Annotated[int, Field(strict=True, ge=0)] = 0
    axes: dict[str, tuple[AxisValue, ...]] | None = None

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
    "smoke": Tier(strategy="first"),
    "each": Tier(strategy="1-wise"),
}
"""The tiers that every spec has; a spec may replace them."""


def with_default_tiers(tiers: dict[str, Tier]) -> dict[str, Tier]:
    """The tiers of a spec, followed by the default tiers that it does not replace."""
    return tiers | {name: tier for name, tier in DEFAULT_TIERS.items() if name not in tiers}


class KnownBug(Model):
    """Cases that are expected to fail, with an issue and an expiry date."""

    when: ExpressionText
    issue: Annotated[str, Field(min_length=1)]
    expires: Day
    mode: Literal["tolerate", "quarantine"] = "tolerate"


class Regression(Model):
    """A case that once failed: values of axes, alone or under `case` beside other keys.

    Axes left out take their first value.
    """

    case: CaseValues
    failed: str = ""
    issue: str = ""
    found: Day | None = None
    seed: Annotated[int, Field(strict=True, ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _from_values(cls, value: object) -> object:
        if isinstance(value, dict) and not isinstance(value.get("case"), dict):
            return {"case": value}
        return value

    @classmethod
    def short_schema(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """The JSON Schema of values alone."""
        words = ("type", "additionalProperties", "minProperties")
        return {word: part for word, part in keys["case"].items() if word in words}


# Timing ---------------------------------------------------------------------------


class Bench(Model):
    """The cases, baselines and configurations of `tlmatrix bench`."""

    cases: tuple[CaseValues, ...] = Field(min_length=1)
    baselines: tuple[Baseline, ...] = ()
    configs: dict[Identifier, Annotated[tuple[AxisValue, ...], Field(min_length=1)]] = Field(
        default={}
    )


# The spec -----------------------------------------------------------------------------------------


__all__ = [
    "CHECKS",
    "FAMILIES",
    "Agreement",
    "Allowance",
    "AllowanceChange",
    "Bench",
    "ChecksWithout",
    "CodegenRule",
    "ConstraintDecl",
    "CudaGraph",
    "DeclaredProblem",
    "DeterminismRule",
    "Fuzz",
    "FuzzAxis",
    "FuzzLengths",
    "FuzzTrace",
    "Inout",
    "InputDecl",
    "InvalidInputs",
    "KnownBug",
    "OutputBuffer",
    "OutputDecl",
    "PackedRows",
    "Prove",
    "Range",
    "Reference",
    "Refusal",
    "Regression",
    "RelationDecl",
    "SanitizerOptions",
    "Shard",
    "Spec",
    "Tier",
    "Tolerance",
    "has_ranks",
]


class Spec(Model):
    """One operator under test, and the matrix of cases that tests it."""

    name: Name
    summary: str = ""
    problem: Annotated[
        Annotated[FamilyName, Tag("<name>")] | Annotated[DeclaredProblem, Tag("<mapping>")],
        Discriminator(lambda value: "<name>" if isinstance(value, str) else "<mapping>"),
    ]
    entry: Target | None = None
    constructor_args: dict[Identifier, Argument] = Field(default={})
    factory: Target | None = None
    factory_args: dict[Identifier, Argument] = Field(default={})
    call: Call = ()
    defaults: dict[Identifier, Argument] = Field(default={})
    returns: Returns = ()
    architectures: tuple[TargetArch, ...] = Field(default=(), min_length=1)
    axes: dict[Identifier, tuple[AxisValue, ...]] = Field(min_length=1)
    compile_axes: tuple[ExpressionText, ...] = Field(default=(), min_length=1)
    shards: dict[Identifier, Shard] = Field(default={})
    context: Target | None = None
    constraints: tuple[ConstraintDecl, ...] = ()
    extra_cases: tuple[CaseValues, ...] = ()
    tiers: Annotated[dict[Name, Tier], AfterValidator(with_default_tiers)] = Field(
        default={}, validate_default=True
    )
    tolerance: Tolerance = Tolerance()
    checks: Checks = CHECKS
    relations: tuple[RelationDecl, ...] = ()
    agree: tuple[Agreement, ...] = ()
    sanitizers: SanitizerOptions = SanitizerOptions()
    propagation: Literal["exact", "packed", "selected"] | None = None
    strict_autograd: bool = False
    determinism: Annotated[tuple[DeterminismRule, ...], BeforeValidator(determinism_rules)] = Field(
        default=(),
        json_schema_extra=lambda schema: add_short_form(schema, {"enum": ["bitwise", "bounded"]}),
    )
    cuda_graph: Annotated[
        CudaGraph | None, BeforeValidator(lambda value: None if value is False else value)
    ] = None
    codegen: tuple[CodegenRule, ...] = ()
    prove: Prove = Prove()
    tile: dict[Identifier, TileSize] = Field(default={})
    fuzz: Fuzz | None = None
    invalid_inputs: Annotated[tuple[InvalidInputs, ...], BeforeValidator(tables_of)] = Field(
        default=(), json_schema_extra=allow_single_entry
    )
    known_bugs: tuple[KnownBug, ...] = ()
    regressions: tuple[Regression, ...] = ()
    bench: Bench | None = None

    _path: Path = PrivateAttr(default=Path("<spec>"))
    _document: Document | None = PrivateAttr(default=None)

    @property
    def results(self) -> tuple[str, ...]:
        """The outputs named by `returns` and the buffers of `call`; empty without `returns`."""
        named = results_of(self.returns)
        return tuple(dict.fromkeys((*named, *written_by(self.call, named)))) if named else ()

    @property
    def path(self) -> Path:
        """The file that the spec was loaded from."""
        return self._path

    @property
    def compares_values(self) -> bool:
        """Whether results have a reference, relations or another implementation to agree with."""
        declared = self.problem if isinstance(self.problem, DeclaredProblem) else None
        known = declared is None or declared.reference is not None
        return known or bool(self.relations or self.agree)

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Whether the values of all axes satisfy the constraints.

        Raises:
            ExpressionError: a constraint has no value for them.
        """
        return all(rule.expression.evaluate(values) for rule in self.constraints)

    def location(self, *path: str | int) -> tuple[int, int]:
        """Line and column, from 1, of the value at a path of keys and indices.

        `spec.location("axes", "seqlens", 1)`. A path that the file lacks has the location of its
        nearest parent; a spec made in Python has (1, 1).
        """
        return (1, 1) if self._document is None else self._document.location(*path)

    def key_location(self, *path: str | int) -> tuple[int, int]:
        """Line and column of the key of the value at a path; of the value for a list entry."""
        return (1, 1) if self._document is None else self._document.location(*path, at_key=True)

    def issue(self, path: KeyPath, message: str) -> Issue:
        """An issue at the location of the value at a path."""
        return Issue(self.path, *self.location(*path), message)


def has_ranks(spec: Spec) -> bool:
    """Whether the entry of a spec runs on several ranks: the spec has the axis `world`."""
    return WORLD in spec.axes
