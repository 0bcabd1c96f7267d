"""The keys of checks: `tolerance`, `relations`, `agree`, `sanitizers`, `codegen` and others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.model.fields import (
    EXCEPTION,
    INSTRUCTION,
    Arch,
    Argument,
    AxisValue,
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
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

    from tlmatrix.spec.issues import KeyPath
    from tlmatrix.spec.values import Value


# Tolerances -------------------------------------------------------------------------------------


class Allowance(Model):
    """The tolerance of a tensor, with all parts set."""

    mode: Literal["reference_relative"] = "reference_relative"
    factor: Positive = 2.0
    floor: Literal["auto"] | float = "auto"
    parts: Literal["rounded", "float32"] = "rounded"


class AllowanceChange(Model):
    """The tolerance of a tensor; keys left out come from the more general one."""

    mode: Literal["reference_relative"] | None = None
    factor: Positive | None = None
    floor: (
        Annotated[
            Annotated[Literal["auto"], Tag("<word>")]
            | Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False), Tag("<number>")],
            Discriminator(lambda value: "<word>" if isinstance(value, str) else "<number>"),
        ]
        | None
    ) = None
    parts: Literal["rounded", "float32"] | None = None


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

    default: AllowanceChange = AllowanceChange()
    by_arch: dict[Arch, ArchAllowances] = Field(default={})

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

    when: ExpressionText
    mode: Literal["bitwise", "bounded"]


PropertyName = Literal[
    "races", "own sequence", "coverage", "bounds", "overflow", "assumptions", "equal bits",
    "phases", "grid", "budget",
]  # fmt: skip


class Prove(Model):
    """What `tlmatrix prove` must prove of the kernels, for all sizes."""

    properties: tuple[PropertyName, ...] = ()
    unknown: dict[str, str] = Field(default={})
    given: dict[str, str] = Field(default={})

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

    name: Annotated[str, Field(min_length=1)] | None = None
    permute: Identifier | None = None
    split: Identifier | None = None
    scale: Annotated[dict[Identifier, Factor], Field(min_length=1)] | None = None
    gives: dict[Identifier, Factor] = Field(default={})
    idempotent: Annotated[dict[Identifier, Identifier], Field(min_length=1)] | None = None
    exact: Exact = False
    when: ExpressionText | None = None
    because: str = ""

    @property
    def forms(self) -> tuple[str, ...]:
        """The keys among these five that are present."""
        keys = ("name", "permute", "split", "scale", "idempotent")
        return tuple(key for key in keys if getattr(self, key) is not None)


class Agreement(Model):
    """Another implementation that must agree: a variant, another entry or another backend.

    Each case also calls it with the same inputs; the results must agree within both tolerances.
    """

    axis: Identifier | None = None
    set: CaseValues | None = None
    factory_args: dict[Identifier, Argument] = Field(default={})
    entry: Target | None = None
    backend: Literal["interpreter", "cuda"] | None = None
    when: ExpressionText | None = None
    exact: Exact = False
    because: str = ""


# Sanitizers -------------------------------------------------------------------------------------


class PackedRows(ShortModel):
    """The dimension of a kernel's parameter with packed rows, and the sequence boundaries.

    `dk_sum: cu_seqlens_k` is short for `dk_sum: {boundaries: cu_seqlens_k}`.
    """

    short = "boundaries"

    boundaries: Identifier
    dim: Annotated[int, Field(strict=True, ge=0)] = 0


class SanitizerOptions(Model):
    """Options of the check `sanitizers`."""

    without: tuple[SanitizerName, ...] = ()
    also: tuple[SanitizerName, ...] = ()
    sequences: dict[Identifier, PackedRows] = Field(default={})


# CUDA graphs ------------------------------------------------------------------------------------


class Refusal(Model):
    """The exception that an entry raises when it cannot be captured to a CUDA graph."""

    raises: Annotated[str, Field(pattern=EXCEPTION)]
    message: Annotated[str, Field(min_length=1)]


class CudaGraph(Model):
    """The cases whose call can be captured to a CUDA graph. `true` is short for `{when: true}`."""

    when: ExpressionText = Field(default="true", validate_default=True)
    otherwise: Refusal | None = None

    mode: Literal["bitwise", "bounded"] | None = None

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

    when: ExpressionText | None = None
    kernel: Annotated[str, Field(min_length=1)] | None = None
    instructions: tuple[Annotated[str, Field(pattern=INSTRUCTION)], ...] = ()
    forbidden: tuple[Annotated[str, Field(pattern=INSTRUCTION)], ...] = ()
    source: tuple[RegularExpression, ...] = ()
    forbidden_source: tuple[RegularExpression, ...] = ()
    registers: _Most = None
    spills: _Most = None
    shared_memory: _Most = None
    tensor_memory: _Most = None


# Invalid inputs -----------------------------------------------------------------------------------


TENSOR_KEYS = frozenset({"value", "dtype", "shape", "device"})
"""Keys of a setting that changes properties of a tensor."""


def _without_dots(settings: dict[str, Value]) -> dict[str, Value]:
    for name in settings:
        argument, dot, part = name.partition(".")
        if dot:
            raise ValueError(f"has the key {name!r}; write {argument}: {{{part}: …}}")
    return settings


def _as_list(value: object) -> object:
    if isinstance(value, Mapping):
        return [value]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be settings (a mapping), or a list of them")
    return value


def _not_empty(message: str) -> str:
    if not message:
        raise ValueError("must not be empty")
    return message


_SETTINGS_SCHEMA = {"title": "a mapping of settings", "type": "object", "minProperties": 1}
_Settings = Annotated[dict[str, AxisValue], Field(min_length=1), AfterValidator(_without_dots)]
_SettingsList = Annotated[
    tuple[_Settings, ...],
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                _SETTINGS_SCHEMA,
                {"type": "array", "items": _SETTINGS_SCHEMA, "minItems": 1},
            ],
        }
    ),
]
_Message = Annotated[str, AfterValidator(_not_empty)]


class InvalidInputs(Model):
    """A table of invalid inputs: words of the message, and settings for which it is raised.

    Without the key `messages` the mapping itself is the table, and the exception is ValueError.
    """

    raises: Annotated[str, Field(pattern=EXCEPTION)] = "ValueError"
    messages: dict[_Message, _SettingsList] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _from_messages(cls, value: object) -> object:
        if isinstance(value, dict) and "messages" not in value:
            return {"messages": value}
        return value

    @classmethod
    def short_schema(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """The JSON Schema of the table alone."""
        return {
            "type": "object",
            "minProperties": 1,
            "properties": {"messages": False},
            "additionalProperties": keys["messages"]["additionalProperties"],
        }


@dataclass(frozen=True)
class InvalidInput:
    """One invalid input of a spec.

    `settings` has parts of tensors under dotted names (`k.dtype`); `path` leads to them in the
    spec.
    """

    settings: Mapping[str, Value]
    raises: str
    message: str
    path: KeyPath


def tables_of(value: object) -> object:
    """A table alone is short for a list with that table."""
    return [value] if isinstance(value, Mapping) else value


def invalid_inputs_of(tables: Iterable[InvalidInputs]) -> Iterator[InvalidInput]:
    """Every invalid input of the tables under `invalid_inputs`, in their order."""
    for number, table in enumerate(tables):
        for words, several in table.messages.items():
            for index, settings in enumerate(several):
                last = list(settings)[-1]
                message = last + words[1:] if words.startswith("_ ") else words
                path = ("invalid_inputs", number, "messages", words, index)
                yield InvalidInput(_flat(settings), table.raises, message, path)


def _flat(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Settings with parts of tensors under dotted names: `{k: {dtype: x}}` is `{k.dtype: x}`."""
    flat: dict[str, Value] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and value.keys() <= TENSOR_KEYS:
            flat |= {
                name if part == "value" else f"{name}.{part}": each for part, each in value.items()
            }
        else:
            flat[name] = value
    return flat
