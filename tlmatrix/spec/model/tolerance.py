"""The keys `tolerance` (error bounds) and `determinism` (equality of two runs)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from tlmatrix.spec.model.fields import Arch, ExpressionText, Model, Positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema


# Judging ------------------------------------------------------------------------------------


class Allowance(Model):
    """The tolerance of a tensor, with all parts set."""

    mode: Literal["reference_relative"] = "reference_relative"
    factor: Positive = 2.0
    floor: Literal["auto"] | float = "auto"


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


def determinism_rules(value: object) -> object:
    """A mode alone is short for one rule for all cases."""
    return [{"when": "true", "mode": value}] if isinstance(value, str) else value
