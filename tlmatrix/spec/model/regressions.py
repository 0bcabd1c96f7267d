"""The key `regressions`: cases that once failed."""

from __future__ import annotations

from datetime import date as calendar_date
from typing import Annotated, Any

from pydantic import Field, model_validator

from tlmatrix.spec.model.fields import CaseValues, Day, Model


class Regression(Model):
    """A case that once failed: values of axes, alone or under `case` beside other keys.

    Axes left out take their first value.
    """

    case: CaseValues = Field(
        description="Values of axes.",
        examples=[{"seqlens": {"q": [0, 5], "k": [7, 0]}}],
    )
    failed: str = Field(
        default="",
        description="The failure when it was found.",
        examples=["numeric: out: rows 64-69 of sequence 1"],
    )
    issue: str = Field(
        default="",
        description="The issue that tracks it. Quote it: an unquoted `#` starts a comment.",
        examples=["#12"],
    )
    found: Day | None = Field(
        default=None, description="The day it was found.", examples=[calendar_date(2027, 1, 31)]
    )
    seed: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0,
        description="The `--seed` of the run that found it, if the case fails only with that data. "
        "`--seed` of a run overrides it.",
        examples=[7],
    )

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
