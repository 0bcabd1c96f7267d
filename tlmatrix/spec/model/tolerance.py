"""How alike results must be: to their reference (tolerances), and to each other (determinism)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from tlmatrix.spec.model.fields import Arch, ExpressionText, Model, Positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

__all__ = [
    "Allowance",
    "AllowanceChange",
    "ArchAllowances",
    "DeterminismRule",
    "Tolerance",
    "determinism_rules",
]

# Judging ------------------------------------------------------------------------------------


class Allowance(Model):
    """How far a tensor may lie from its reference, every part decided."""

    mode: Literal["reference_relative"] = "reference_relative"
    factor: Positive = 2.0
    floor: Literal["auto"] | float = "auto"


class AllowanceChange(Model):
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


class Tolerance(Model):
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


class DeterminismRule(Model):
    """How alike two runs of the same case must be."""

    when: ExpressionText = Field(
        description="An expression over the axes, `arch` and `backend`.",
        examples=["backward == 'atomic'"],
    )
    mode: Literal["bitwise", "bounded"] = Field(
        description="`bitwise`: every bit equal. `bounded`: both within the allowance.",
        examples=["bounded"],
    )


def determinism_rules(value: object) -> object:
    """A mode alone is short for one rule that always holds."""
    return [{"when": "true", "mode": value}] if isinstance(value, str) else value
