"""The key `cuda_graph`: capture and replay of the entry in a CUDA graph."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tlmatrix.spec.model.fields import EXCEPTION, ExpressionText, Model


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
