"""Oracles that need no reference: properties of one entry, and others that it must agree with."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tlmatrix.spec.model.fields import (
    Argument,
    CaseValues,
    ExpressionText,
    Identifier,
    Model,
    ShortModel,
    Target,
)

__all__ = ["FINITE", "OF_BATCHES", "Agreement", "RelationDecl"]

FINITE = "finite"
"""The property that needs no further run."""
OF_BATCHES = ("batch_permuted", "batch_split", "batch_extended")
"""Properties of packed problems that a spec may name."""

Factor = Annotated[float, Field(allow_inf_nan=False)]


class RelationDecl(ShortModel):
    """Something that must hold of the results, whatever they are. Says one thing that is so.

    Text alone is short for `name`.
    """

    short: ClassVar[str] = "name"

    name: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="A relation by its name: `finite` (no result is NaN or infinite); one that the "
        "problem brings (then of those the ones named are checked, and no others); or a function "
        "`package.module:name`, called with the inputs and the results (and the axes it has "
        "parameters for). It returns the inputs to call the entry with again, and what must come "
        "out; without any changed input nothing is called, and the results themselves are compared "
        "with what it says.",
        examples=["finite", "batch_permuted", "mypkg.relations:shift_invariant"],
    )
    permute: Identifier | None = Field(
        default=None,
        description="A dimension of a declared problem, as its shapes write it: rows in another "
        "order give the same results in that order, and results without the dimension stay.",
        examples=["rows"],
    )
    split: Identifier | None = Field(
        default=None,
        description="An axis that is a dimension of a declared problem: two calls with a part each "
        "give together what one call gives. Results without the dimension are not compared.",
        examples=["rows"],
    )
    scale: Annotated[dict[Identifier, Factor], Field(min_length=1)] | None = Field(
        default=None,
        description="Inputs multiplied by numbers: results must be multiplied as `gives` says. "
        "Powers of two round nothing.",
        examples=[{"x": 2, "w": 0.5}],
    )
    gives: dict[Identifier, Factor] = Field(
        default={},
        description="With `scale`: by what outputs are multiplied then; those left out must stay. "
        "Gradients follow from it.",
        examples=[{"y": 2}],
    )
    idempotent: Annotated[dict[Identifier, Identifier], Field(min_length=1)] | None = Field(
        default=None,
        description="Outputs by the inputs they can take the place of: called with them, the entry "
        "gives the same outputs again.",
        examples=[{"x": "y"}],
    )
    exact: bool = Field(
        default=False,
        strict=True,
        description="Whether equal bits are asked for, and not the numbers within their allowance.",
        examples=[True],
    )
    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` and `backend`: for which cases it is "
        "checked. By default all.",
        examples=["dtype == 'float32'"],
    )
    because: str = Field(
        default="", description="Why it holds, for findings.", examples=["a norm has no scale"]
    )

    @property
    def forms(self) -> tuple[str, ...]:
        """The keys it says what holds with: there must be one."""
        keys = ("name", "permute", "split", "scale", "idempotent")
        return tuple(key for key in keys if getattr(self, key) is not None)


class Agreement(Model):
    """Another way to the same results: a variant, another entry, another backend.

    It is called with the same inputs once a case, and what both give must agree within the
    allowance of both.
    """

    axis: Identifier | None = Field(
        default=None,
        description="An axis that must make no difference: the other side has another of its "
        "values, one for each kernel, that the `where` rules allow.",
        examples=["backward"],
    )
    set: CaseValues | None = Field(
        default=None,
        description="Axes, or other arguments of the entry, with the values that the other side "
        "has. A case that has them already is not compared, nor one that `where` excludes.",
        examples=[{"backward": "split"}],
    )
    compile: dict[Identifier, Argument] = Field(
        default={},
        description="Keyword arguments of the factory that are others on the other side.",
        examples=[{"num_stages": 0}],
    )
    entry: Target | None = Field(
        default=None,
        description="Another callable of the same parameters.",
        examples=["mypkg.other:attention"],
    )
    backend: Literal["interpreter", "cuda"] | None = Field(
        default=None,
        description="The backend of the other side: `interpreter` or `cuda`. Left out where the "
        "case runs on it already, and where there is no GPU.",
        examples=["interpreter"],
    )
    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` and `backend`: for which cases they must "
        "agree. By default all.",
        examples=["head_dim == 64"],
    )
    exact: bool = Field(
        default=False,
        strict=True,
        description="Whether equal bits are asked for: stages of a pipeline change no sum.",
        examples=[True],
    )
    because: str = Field(
        default="", description="Why they must agree.", examples=["the sums are the same"]
    )
