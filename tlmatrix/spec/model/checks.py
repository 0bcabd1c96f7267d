"""The keys of checks: `tolerance`, `relations`, `agree`, `sanitizers`, `codegen` and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.model.fields import (
    EXCEPTION,
    INSTRUCTION,
    Arch,
    Argument,
    CaseValues,
    ExpressionText,
    Identifier,
    Model,
    Positive,
    RegularExpression,
    SanitizerName,
    ShortModel,
    Target,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

# Tolerances -------------------------------------------------------------------------------------


class Allowance(Model):
    """The tolerance of a tensor, with all parts set."""

    mode: Literal["reference_relative"] = "reference_relative"
    factor: Positive = 2.0
    floor: Literal["auto"] | float = "auto"
    parts: Literal["rounded", "float32"] = "rounded"


class AllowanceChange(Model):
    """The tolerance of a tensor; keys left out come from the more general one."""

    mode: Literal["reference_relative"] | None = Field(
        default=None,
        description="`reference_relative`: the error of the same mathematics in PyTorch at the "
        "kernel's precision, times `factor`, plus `floor`.",
        examples=["reference_relative"],
    )
    factor: Positive | None = Field(
        default=None, description="The factor of that error (2).", examples=[3]
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
        description="The least error bound. `auto`: the rounding error of the output.",
        examples=["auto", 1e-6],
    )
    parts: Literal["rounded", "float32"] | None = Field(
        default=None,
        description="What ranks add up in a GEMM whose k they share: parts `rounded` to the dtype "
        "of the result (default), as a reduce-scatter in 16 bits does, or `float32` parts, so that "
        "only the result is rounded.",
        examples=["float32"],
    )


def _arch_allowances(value: object) -> object:
    """A tolerance without tensor names is short for one under `default`."""
    if isinstance(value, dict) and not any(isinstance(each, dict) for each in value.values()):
        return {"default": value}
    return value


class _OrOneAllowance:
    """Adds the short form to the JSON Schema."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        by_tensor = handler(core_schema)
        return {"anyOf": [by_tensor["additionalProperties"], by_tensor]}


ArchAllowances = Annotated[
    dict[str, AllowanceChange], BeforeValidator(_arch_allowances), _OrOneAllowance()
]


class Tolerance(Model):
    """Tolerances: `default`, tensors by name (`dq: {factor: 3}`), and `by_arch`.

    The most specific wins: default, tensor, default of the architecture, its tensor.
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
        description="For an architecture (`sm_90`, or `interpreter`): a tolerance, or tolerances "
        "by tensor.",
        examples=[{"sm_100": {"factor": 4}}, {"sm_80": {"dq": {"factor": 4}}}],
    )

    @property
    def tensors(self) -> Mapping[str, AllowanceChange]:
        """Tolerances of tensors by name."""
        return self.__pydantic_extra__

    def for_tensor(self, name: str, arch: str) -> Allowance:
        """The tolerance of an output or gradient on an architecture."""
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


class DeterminismRule(Model):
    """How closely two runs of the same case must match."""

    when: ExpressionText = Field(
        description="An expression over the axes, `arch` and `backend`.",
        examples=["backward == 'atomic'"],
    )
    mode: Literal["bitwise", "bounded"] = Field(
        description="`bitwise`: every bit equal. `bounded`: both within the tolerance.",
        examples=["bounded"],
    )


PropertyName = Literal[
    "races", "own sequence", "coverage", "bounds", "overflow", "assumptions", "equal bits",
    "phases", "grid", "budget",
]  # fmt: skip


class Prove(Model):
    """What `tlmatrix prove` must prove of the kernels, for all sizes."""

    properties: tuple[PropertyName, ...] = Field(
        default=(),
        description="The properties that must be proven of every kernel: a kernel with another "
        "answer is a finding of `tlmatrix prove`.",
        examples=[["races", "own sequence", "coverage"]],
    )
    unknown: dict[str, str] = Field(
        default={},
        description="Properties that may stay unknown, as `KERNEL: PROPERTY of SUBJECT`, each with "
        "the reason.",
        examples=[{"ring_reduction: races of out": "flags order the blocks"}],
    )
    given: dict[str, str] = Field(
        default={},
        description="Conditions on the symbolic dims and integer scalars of kernels that the host "
        "code guarantees, each with the reason. They are facts of proofs; a launch that "
        "contradicts one is an error.",
        examples=[{"splits <= 128": "the operator refuses more"}],
    )

    @field_validator("given")
    @classmethod
    def _are_conditions(cls, given: dict[str, str]) -> dict[str, str]:
        for text in given:
            Expression(text)
        return given


def determinism_rules(value: object) -> object:
    """A mode alone is short for one rule for all cases."""
    return [{"when": "true", "mode": value}] if isinstance(value, str) else value


# Relations and agreements -----------------------------------------------------------------------

FINITE = "finite"
"""The relation that needs no further run: no result is NaN or infinite."""
OF_BATCHES = ("batch_permuted", "batch_split", "batch_extended")
"""The relations that declared problems with packed axes have."""

Exact = Annotated[
    Annotated[bool, Field(strict=True), Tag("<switch>")]
    | Annotated[Literal["bits"], Tag("<word>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<switch>"),
]

Factor = Annotated[float, Field(allow_inf_nan=False)]


class RelationDecl(ShortModel):
    """A metamorphic relation between the results of two calls.

    Has exactly one of the keys `name`, `permute`, `split`, `scale` and `idempotent`. Text alone
    is short for `name`.
    """

    short: ClassVar[str] = "name"

    name: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="A name: `finite` (no result is NaN or infinite); a relation of the problem "
        "(the check then runs the named ones, and no others of the problem); or a function "
        "`package.module:name`. The function takes the inputs, the results, and any axes that its "
        "parameters name. It returns two mappings: changed inputs for another call of the entry, "
        "and the results expected of that call. Without changed inputs there is no other call: "
        "the first results are compared with the expected ones.",
        examples=["finite", "batch_permuted", "mypkg.relations:shift_invariant"],
    )
    permute: Identifier | None = Field(
        default=None,
        description="A dimension in the shapes of a declared problem. Permuting the inputs along "
        "it must permute the results along it, and leave results without it unchanged.",
        examples=["rows"],
    )
    split: Identifier | None = Field(
        default=None,
        description="An axis that is a dimension of a declared problem. Two calls with a part of "
        "it each must give the results of one call. Results without the dimension are not "
        "compared.",
        examples=["rows"],
    )
    scale: Annotated[dict[Identifier, Factor], Field(min_length=1)] | None = Field(
        default=None,
        description="Factors of inputs. Multiplying the inputs by them must multiply the results "
        "by the factors in `gives`. Powers of two avoid rounding.",
        examples=[{"x": 2, "w": 0.5}],
    )
    gives: dict[Identifier, Factor] = Field(
        default={},
        description="With `scale`: the factors of outputs, by default 1. Factors of gradients "
        "follow from them.",
        examples=[{"y": 2}],
    )
    idempotent: Annotated[dict[Identifier, Identifier], Field(min_length=1)] | None = Field(
        default=None,
        description="For each input, the output to pass in its place: the entry must return the "
        "same outputs again.",
        examples=[{"x": "y"}],
    )
    exact: Exact = Field(
        default=False,
        description="Whether the numbers must be equal, not only within the tolerance. `bits`: "
        "also the signs of zeros and the bits of NaNs.",
        examples=[True, "bits"],
    )
    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` and `backend`: the cases it applies to. "
        "By default all.",
        examples=["dtype == 'float32'"],
    )
    because: str = Field(
        default="",
        description="Why the relation holds, for findings.",
        examples=["a norm has no scale"],
    )

    @property
    def forms(self) -> tuple[str, ...]:
        """The keys among these five that are present."""
        keys = ("name", "permute", "split", "scale", "idempotent")
        return tuple(key for key in keys if getattr(self, key) is not None)


class Agreement(Model):
    """Another implementation that must agree: a variant, another entry or another backend.

    Each case also calls it with the same inputs; the results must agree within both tolerances.
    """

    axis: Identifier | None = Field(
        default=None,
        description="An axis that must not change the results. The other side has another of its "
        "values, one for each kernel, that the constraints allow.",
        examples=["backward"],
    )
    set: CaseValues | None = Field(
        default=None,
        description="Axes, or other arguments of the entry, with the values of the other side. A "
        "case that already has them is not compared, nor one that `constraints` exclude.",
        examples=[{"backward": "split"}],
    )
    factory_args: dict[Identifier, Argument] = Field(
        default={},
        description="Keyword arguments of the factory, with the values of the other side.",
        examples=[{"num_stages": 0}],
    )
    entry: Target | None = Field(
        default=None,
        description="Another callable with the same parameters.",
        examples=["mypkg.other:attention"],
    )
    backend: Literal["interpreter", "cuda"] | None = Field(
        default=None,
        description="The backend of the other side. A case that already runs on it is not "
        "compared, nor any case on a machine without a GPU if it is `cuda`.",
        examples=["interpreter"],
    )
    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` and `backend`: the cases it applies to. "
        "By default all.",
        examples=["head_dim == 64"],
    )
    exact: Exact = Field(
        default=False,
        description="Whether the numbers must be equal: pipeline stages, for example, change no "
        "sum. `bits`: also the signs of zeros and the bits of NaNs.",
        examples=[True, "bits"],
    )
    because: str = Field(
        default="",
        description="Why the two must agree, for findings.",
        examples=["the sums are the same"],
    )


# Sanitizers -------------------------------------------------------------------------------------


class PackedRows(ShortModel):
    """The dimension of a kernel's parameter with packed rows, and the sequence boundaries.

    `dk_sum: cu_seqlens_k` is short for `dk_sum: {boundaries: cu_seqlens_k}`.
    """

    short = "boundaries"

    boundaries: Identifier = Field(
        description="The tensor of the problem, or the axis, with the first row of each sequence "
        "and the number of rows.",
        examples=["cu_seqlens_k"],
    )
    dim: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0, description="The dimension of the packed rows.", examples=[1]
    )


class SanitizerOptions(Model):
    """Options of the check `sanitizers`."""

    without: tuple[SanitizerName, ...] = Field(
        default=(),
        description="Sanitizers to disable.",
        examples=[["fragments"]],
    )
    also: tuple[SanitizerName, ...] = Field(
        default=(),
        description="Sanitizers to enable that are off by default: `guarded`, `overreads` and "
        "`atomics`, which report accesses that are harmless by themselves.",
        examples=[["overreads"]],
    )
    sequences: dict[Identifier, PackedRows] = Field(
        default={},
        description="Packed parameters of the kernels, by name. The problem's own tensors, and "
        "tensors of the same shape, need no entry.",
        examples=[{"dk_parts": {"boundaries": "cu_seqlens_k", "dim": 1}}],
    )


# CUDA graphs ------------------------------------------------------------------------------------


class Refusal(Model):
    """The exception that an entry raises when it cannot be captured to a CUDA graph."""

    raises: Annotated[str, Field(pattern=EXCEPTION)] = Field(
        description="The exception: a builtin one, or `package.module:Class`.",
        examples=["RuntimeError"],
    )
    message: Annotated[str, Field(min_length=1)] = Field(
        description="Words that its message must contain.",
        examples=["cannot be captured"],
    )


class CudaGraph(Model):
    """The cases whose call can be captured to a CUDA graph. `true` is short for `{when: true}`."""

    when: ExpressionText = Field(
        default="true",
        validate_default=True,
        description="An expression over the axes, `arch` and `backend`: the cases that can be "
        "captured.",
        examples=["not overlap"],
    )
    otherwise: Refusal | None = Field(
        default=None,
        description="The exception in the other cases. By default they are not captured.",
        examples=[{"raises": "RuntimeError", "message": "cannot be captured"}],
    )

    mode: Literal["bitwise", "bounded"] | None = Field(
        default=None,
        description="How closely a replay must match a call that is not captured: `bounded` if the "
        "order of computation differs. By default as in `determinism`.",
        examples=["bounded"],
    )

    @model_validator(mode="before")
    @classmethod
    def _from_short(cls, value: object) -> object:
        return {} if value is True else value

    @classmethod
    def short_schema(cls, _keys: dict[str, Any]) -> dict[str, Any]:
        """The JSON Schema of `true`."""
        return {"const": True}


# Codegen ----------------------------------------------------------------------------------------

_Most = Annotated[int, Field(strict=True, ge=0)] | None


class CodegenRule(Model):
    """Expectations of the machine code of kernels; every rule that matches applies."""

    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` (as in `architectures`) and `backend`: "
        "the cases that the rule applies to. By default all.",
        examples=["arch == 'sm_100a' and head_dim <= 128"],
    )
    kernel: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="The name of a kernel (its PrimFunc), which every matching case must have. By "
        "default every kernel of the case.",
        examples=["dense_forward"],
    )
    instructions: tuple[Annotated[str, Field(pattern=INSTRUCTION)], ...] = Field(
        default=(),
        description="PTX instructions that it must contain; `tcgen05.mma` matches all variants.",
        examples=[["wgmma.mma_async"], ["tcgen05.mma", "tcgen05.ld"]],
    )
    forbidden: tuple[Annotated[str, Field(pattern=INSTRUCTION)], ...] = Field(
        default=(),
        description="PTX instructions that it must not contain; `atom.global.add.v4` matches all "
        "variants.",
        examples=[["atom.global.add.v4.f32"]],
    )
    source: tuple[RegularExpression, ...] = Field(
        default=(),
        description="Regular expressions, each of which must match a line of the CUDA source that "
        "TileLang generates.",
        examples=[[r"tma_store\(dk_desc, "]],
    )
    forbidden_source: tuple[RegularExpression, ...] = Field(
        default=(),
        description="Regular expressions that must match no line of the CUDA source.",
        examples=[[r"Atomic\w+\(\(&\(dk\["]],
    )
    registers: _Most = Field(
        default=None, description="The most registers per thread.", examples=[168]
    )
    spills: _Most = Field(
        default=None,
        description="The most bytes of register spills per thread.",
        examples=[0],
    )
    shared_memory: _Most = Field(
        default=None,
        description="The most bytes of shared memory per block, static and dynamic. The limit of "
        "the architecture always applies.",
        examples=[116736],
    )
    tensor_memory: _Most = Field(
        default=None,
        description="The most columns of tensor memory per block. The limit of 512 always applies.",
        examples=[256],
    )
