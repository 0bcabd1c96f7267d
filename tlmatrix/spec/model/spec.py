"""The root model of a spec, and the models of its keys.

The loader validates files with these models. `docs/reference/spec-keys.md` says what each key
means; the JSON Schema is generated from both (`tlmatrix.spec.schema`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag

from tlmatrix.spec.issues import Issue
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
    PackedRows,
    Prove,
    Refusal,
    RelationDecl,
    SanitizerOptions,
    Tolerance,
    determinism_rules,
)
from tlmatrix.spec.model.fields import (
    CHECKS,
    FAMILIES,
    Argument,
    AxisValue,
    CaseValues,
    ExpressionText,
    FamilyName,
    Identifier,
    Model,
    Name,
    Target,
    TargetArch,
    TileSize,
    add_short_form,
    allow_single_entry,
)
from tlmatrix.spec.model.fuzz import Fuzz, FuzzAxis, FuzzLengths, FuzzTrace, Range
from tlmatrix.spec.model.invalid_inputs import InvalidInputs, tables_of
from tlmatrix.spec.model.parts import (
    Bench,
    Checks,
    ChecksWithout,
    ConstraintDecl,
    DeclaredProblem,
    InputDecl,
    KnownBug,
    OutputDecl,
    Regression,
    Tier,
    with_default_tiers,
)
from tlmatrix.spec.model.sharding import WORLD, Shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.values import Value
    from tlmatrix.spec.yaml.tree import Document

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

    def issue(self, path: tuple[str | int, ...], message: str) -> Issue:
        """An issue at the location of the value at a path."""
        return Issue(self.path, *self.location(*path), message)


def has_ranks(spec: Spec) -> bool:
    """Whether the entry of a spec runs on several ranks: the spec has the axis `world`."""
    return WORLD in spec.axes
