"""Whether a call of an entry may be captured to a CUDA graph and replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from tlmatrix.spec.model.fields import EXCEPTION, ExpressionText, Model, also_written

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["CudaGraph", "Refusal"]


class Refusal(Model):
    """What an entry raises in place of being captured to a CUDA graph."""

    raises: Annotated[str, Field(pattern=EXCEPTION)] = Field(
        description="The exception: a builtin one, or `package.module:Class`.",
        examples=["RuntimeError"],
    )
    message: Annotated[str, Field(min_length=1)] = Field(
        description="Words that its message must contain.",
        examples=["cannot be captured"],
    )


class CudaGraph(Model):
    """Where a call may be captured to a CUDA graph. `true` alone is short for `{when: true}`."""

    when: ExpressionText = Field(
        default="true",
        validate_default=True,
        description="An expression over the axes, `arch` and `backend`: which cases may be.",
        examples=["not overlap"],
    )
    otherwise: Refusal | None = Field(
        default=None,
        description="What the entry raises in the other cases; by default none is captured.",
        examples=[{"raises": "RuntimeError", "message": "cannot be captured"}],
    )

    mode: Literal["bitwise", "bounded"] | None = Field(
        default=None,
        description="How alike a replay and a call that is not captured must be: `bounded` where "
        "the entry computes in another order then. By default as `determinism` says.",
        examples=["bounded"],
    )

    @model_validator(mode="before")
    @classmethod
    def _from_short(cls, value: object) -> object:
        return {} if value is True else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        full = handler.resolve_ref_schema(handler(core_schema))
        return also_written(full, {"const": True})
