"""Cases that once failed, as a spec keeps them: those that run, and those that no longer do."""

from __future__ import annotations

from datetime import date as calendar_date
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from tlmatrix.spec.model.fields import CaseValues, Day, Model, also_written

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["Regression", "Retired"]


class _Kept(Model):
    case: CaseValues = Field(
        description="Values for axes, where the entry says more than these.",
        examples=[{"seqlens": {"q": [0, 5], "k": [7, 0]}}],
    )
    failed: str = Field(
        default="",
        description="What failed when it was found.",
        examples=["numeric: out: rows 64-69 of sequence 1"],
    )
    issue: str = Field(
        default="",
        description="Where it is tracked. Quote it: an unquoted `#` starts a comment.",
        examples=["#12"],
    )
    found: Day | None = Field(
        default=None, description="The day it was found.", examples=[calendar_date(2027, 1, 31)]
    )
    seed: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0,
        description="The `--seed` of the run that found it, where the case fails with that data "
        "alone. A run with a seed of its own uses that.",
        examples=[7],
    )


_VALUES = ("type", "additionalProperties", "minProperties")
"""Of the JSON Schema of a mapping of values: what says that it is one."""


class Regression(_Kept):
    """A case that once failed: the values of its axes, alone or under `case` with what is known.

    Axes left out take their first value.
    """

    @model_validator(mode="before")
    @classmethod
    def _from_values(cls, value: object) -> object:
        if isinstance(value, dict) and not isinstance(value.get("case"), dict):
            return {"case": value}
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        full = handler.resolve_ref_schema(handler(core_schema))
        key = full["properties"]["case"]
        short = {word: part for word, part in key.items() if word in _VALUES}
        return also_written(full, short, last=True)


class Retired(_Kept):
    """A regression that is kept in the file and no longer run."""

    because: Annotated[str, Field(min_length=1)] = Field(
        description="Why it need not run any more.",
        examples=["the kernel it broke is gone"],
    )
    date: Day = Field(description="The day it was retired.", examples=[calendar_date(2027, 3, 1)])
