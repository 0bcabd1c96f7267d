"""The key `fuzz`: what random cases are generated from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from tlmatrix.spec.model.fields import (
    RANGE,
    AxisValue,
    Identifier,
    Model,
    ShortModel,
    StorageName,
)

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

MAX_CONSTRAINED = 1 << 20
"""The most numbers of a range whose axis a constraint names."""


class Range(Model):
    """Whole numbers from `low` to `high`, both included. Written `1..8`, `[1, 8]`, or `8`."""

    low: Annotated[int, Field(strict=True, ge=0)]
    high: Annotated[int, Field(strict=True, ge=0)]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        match value:
            case bool() | None:
                pass
            case int():
                return {"low": value, "high": value}
            case [int(low), int(high)]:
                return {"low": low, "high": high}
            case str():
                if found := re.fullmatch(RANGE, value):
                    return {"low": int(found[1]), "high": int(found[2])}
            case Range() | {"low": _, "high": _}:
                return value
        raise ValueError("must be a range such as 1..8")

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low > self.high:
            raise ValueError(f"is an empty range: {self.low} is more than {self.high}")
        return self

    @property
    def count(self) -> int:
        """The number of numbers."""
        return self.high - self.low + 1

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _core_schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        whole = {"type": "integer", "minimum": 0}
        return {
            "description": cls.__doc__,
            "anyOf": [
                {"type": "string", "pattern": RANGE},
                whole,
                {"type": "array", "items": whole, "minItems": 2, "maxItems": 2},
            ],
        }


class FuzzTrace(ShortModel):
    """A serving log with the lengths of requests. Text alone is short for `file`.

    CSV with a header, JSON (a list) or JSON Lines; entries are lengths or objects.
    """

    short = "file"

    file: Annotated[str, Field(min_length=1)]
    q: str = "q"
    k: str | None = None


def _kind_of_keys(value: object) -> str:
    words = ("same", "independent", "longer", "shorter")
    return (
        "<word>" if isinstance(value, str) and (value in words or ".." not in value) else "<range>"
    )


class FuzzLengths(Model):
    """How packed batches are generated; `q` and `k` are the sides of the axis."""

    sequences: Range = Range(low=1, high=8)
    length: Range = Range(low=0, high=300)
    q: Range | None = None
    k: Annotated[
        Annotated[Literal["same", "independent", "longer", "shorter"], Tag("<word>")]
        | Annotated[Range, Tag("<range>")],
        Discriminator(_kind_of_keys),
    ] = "same"
    around: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = ()
    trace: FuzzTrace | None = None
    alone: Annotated[int, Field(strict=True, ge=1)] | None = None

    @model_validator(mode="after")
    def _beyond_the_range(self) -> FuzzLengths:
        _check_alone(self.alone, self.sequences)
        return self

    @property
    def keys(self) -> Range:
        """The range of key lengths."""
        return self.k if isinstance(self.k, Range) else self.length

    @property
    def relation(self) -> str:
        """How key lengths follow from query lengths: same, independent, longer or shorter."""
        apart = self.q is not None and self.k == "same"
        return "independent" if apart or isinstance(self.k, Range) else str(self.k)

    def relates(self, queries: int, keys: int) -> bool:
        """Whether the lengths of a sequence have the relation."""
        match self.relation:
            case "same":
                return keys == queries
            case "longer":
                return keys >= queries
            case "shorter":
                return keys <= queries
        return True


def _check_alone(alone: int | None, within: Range | None) -> None:
    """Raise ValueError if `alone` is not above the range."""
    if alone is None:
        return
    if within is None:
        raise ValueError("has `alone`, but no range that it could be above; add range: 1..8")
    if alone <= within.high:
        raise ValueError(
            f"has alone: {alone} within its range, which ends at {within.high}; write a larger "
            "number, or leave it out"
        )


class FuzzAxis(ShortModel):
    """Values of an axis in random cases besides those it lists. `1..300` is short for a range.

    A packed axis other than `seqlens` has `sequences` and `length`, as in `fuzz.seqlens`.
    """

    short = "range"

    range: Range | None = None
    around: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = ()
    values: tuple[AxisValue, ...] = ()
    sequences: Range | None = None
    length: Range | None = None
    alone: Annotated[int, Field(strict=True, ge=1)] | None = None

    @model_validator(mode="after")
    def _beyond_the_range(self) -> FuzzAxis:
        if self.lengths is None:
            _check_alone(self.alone, self.range)
        return self

    @property
    def lengths(self) -> FuzzLengths | None:
        """The batches of a packed axis; None for an axis of single values."""
        if self.sequences is None and self.length is None:
            return None
        given = {
            "sequences": self.sequences, "length": self.length, "around": self.around,
            "alone": self.alone,
        }  # fmt: skip
        return FuzzLengths(**{key: value for key, value in given.items() if value is not None})


class Fuzz(Model):
    """Random cases, made by Hypothesis and shrunk when they fail."""

    seqlens: FuzzLengths = FuzzLengths()
    axes: dict[Identifier, FuzzAxis] = Field(default={})
    storage: tuple[StorageName, ...] = ()
    examples: dict[str, Annotated[int, Field(strict=True, ge=0)]] = Field(default={})
