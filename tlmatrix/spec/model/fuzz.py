"""The parts of a spec that say what random cases are drawn from: lengths, axes, storage."""

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

__all__ = ["Fuzz", "FuzzAxis", "FuzzLengths", "FuzzTrace", "Range"]


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
    """Requests of a serving log: a file, and its columns of lengths. A file alone is short for it.

    CSV with a header, JSON (a list), or JSON Lines; entries are lengths, or objects.
    """

    short = "file"

    file: Annotated[str, Field(min_length=1)] = Field(
        description="The file, from the spec's folder.", examples=["traces/chat.csv"]
    )
    q: str = Field(
        default="q",
        description="The column, or the key, of query lengths.",
        examples=["ContextTokens"],
    )
    k: str | None = Field(
        default=None,
        description="That of key lengths; without one they are as `q`.",
        examples=["CachedTokens"],
    )


def _kind_of_keys(value: object) -> str:
    words = ("same", "independent", "longer", "shorter")
    return (
        "<word>" if isinstance(value, str) and (value in words or ".." not in value) else "<range>"
    )


class FuzzLengths(Model):
    """How packed batches are made up; `q` and `k` are sides, as the axis writes them."""

    sequences: Range = Field(
        default=Range(low=1, high=8),
        description="How many sequences a batch has.",
        examples=["1..8"],
    )
    length: Range = Field(
        default=Range(low=0, high=300),
        description="How long a sequence is, on each side that has no range of its own.",
        examples=["0..300"],
    )
    q: Range | None = Field(
        default=None,
        description="How many queries a sequence has, where that is not `length`: `1` where keys "
        "are cached.",
        examples=[1, "1..4"],
    )
    k: Annotated[
        Annotated[Literal["same", "independent", "longer", "shorter"], Tag("<word>")]
        | Annotated[Range, Tag("<range>")],
        Discriminator(_kind_of_keys),
    ] = Field(
        default="same",
        description="How many keys a sequence has: the `same` as queries, `independent` of them, "
        "never fewer (`longer`), never more (`shorter`), or a range of their own.",
        examples=["independent", "0..700"],
    )
    around: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = Field(
        default=(),
        description="Lengths near which bugs live, such as tile edges: these, one less and one "
        "more are drawn often.",
        examples=[[64, 128]],
    )
    trace: FuzzTrace | None = Field(
        default=None,
        description="A serving log: half of the batches are requests that follow one another in "
        "it, less those outside of `length` where that is given.",
        examples=["traces/chat.csv", {"file": "traces/chat.jsonl", "q": "prompt_tokens"}],
    )

    @property
    def keys(self) -> Range:
        """The range of key lengths."""
        return self.k if isinstance(self.k, Range) else self.length

    @property
    def relation(self) -> str:
        """How key lengths follow from query lengths: same, independent, longer or shorter."""
        apart = self.q is not None and self.k == "same"
        return "independent" if apart or isinstance(self.k, Range) else str(self.k)


class FuzzAxis(ShortModel):
    """What an axis has in random cases besides its values. `1..300` is short for a range.

    A packed axis other than `seqlens` has `sequences` and `length`, as `fuzz.seqlens` has.
    """

    short = "range"

    range: Range | None = Field(
        default=None,
        description="Whole numbers, each of them; 0, 1, both ends, and the edges of the `tile` of "
        "that name are drawn often.",
        examples=["1..300"],
    )
    around: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = Field(
        default=(),
        description="Numbers near which bugs live: these, one less and one more are drawn often.",
        examples=[[64, 128]],
    )
    values: tuple[AxisValue, ...] = Field(
        default=(),
        description="Further values, as `axes` would list them.",
        examples=[[0.1, 2.0]],
    )
    sequences: Range | None = Field(
        default=None,
        description="Of a packed axis: how many sequences a batch has.",
        examples=["1..8"],
    )
    length: Range | None = Field(
        default=None,
        description="Of a packed axis: how long a sequence is.",
        examples=["0..64"],
    )

    @property
    def lengths(self) -> FuzzLengths | None:
        """The batches of a packed axis; None for an axis of single values."""
        if self.sequences is None and self.length is None:
            return None
        given = {"sequences": self.sequences, "length": self.length, "around": self.around}
        return FuzzLengths(**{key: value for key, value in given.items() if value is not None})


class Fuzz(Model):
    """Random cases, made by Hypothesis and shrunk when they fail."""

    seqlens: FuzzLengths = Field(
        default=FuzzLengths(),
        description="How packed batches are made up, where the spec has the axis `seqlens`.",
        examples=[{"sequences": "1..8", "length": "0..300", "around": [64, 128]}],
    )
    axes: dict[Identifier, FuzzAxis] = Field(
        default={},
        description="Axes that also take values they do not list, and change from one example to "
        "the next. Those left out keep to their values, and those that other kernels are compiled "
        "for mostly to combinations that the tier has.",
        examples=[{"window": "1..300", "seqlen_q": {"range": "0..300", "around": [64]}}],
    )
    storage: tuple[StorageName, ...] = Field(
        default=(),
        description="How the entry's tensors may lie in memory besides contiguous: `offset` (not "
        "aligned), `sliced`, `transposed` (every dimension reversed), `ones` (dimensions of size 1 "
        "with odd strides), `expanded` (cotangents that are one number). Values stay the same.",
        examples=[["offset", "sliced", "expanded"]],
    )
    examples: dict[str, Annotated[int, Field(strict=True, ge=0)]] = Field(
        default={},
        description="How many cases a tier tries.",
        examples=[{"quick": 20, "nightly": 500}],
    )
