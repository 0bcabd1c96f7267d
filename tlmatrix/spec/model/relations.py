"""Metamorphic relations and agreements, as a spec lists them under `relations:` and `agree:`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from tlmatrix.spec.model.fields import (
    Argument,
    CaseValues,
    ExpressionText,
    Identifier,
    Model,
    ShortModel,
    Target,
)

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

    name: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="A name: `finite` (no result is NaN or infinite); a relation of the problem "
        "(the check then runs the named ones, and no others of the problem); or a function "
        "`package.module:name`. The function takes the inputs, the results, and any axes that its "
        "parameters name. It returns two mappings: changed inputs for another call of the entry, "
        "and the results expected of that call. Without changed inputs there is no other call: "
        "the first results are compared with the expected ones.",
        examples=["finite", "batch_permuted", "mypkg.relations:shift_invariant"],
    )
    permute: Identifier | None = Field(
        default=None,
        description="A dimension in the shapes of a declared problem. Permuting the inputs along "
        "it must permute the results along it, and leave results without it unchanged.",
        examples=["rows"],
    )
    split: Identifier | None = Field(
        default=None,
        description="An axis that is a dimension of a declared problem. Two calls with a part of "
        "it each must give the results of one call. Results without the dimension are not "
        "compared.",
        examples=["rows"],
    )
    scale: Annotated[dict[Identifier, Factor], Field(min_length=1)] | None = Field(
        default=None,
        description="Factors of inputs. Multiplying the inputs by them must multiply the results "
        "by the factors in `gives`. Powers of two avoid rounding.",
        examples=[{"x": 2, "w": 0.5}],
    )
    gives: dict[Identifier, Factor] = Field(
        default={},
        description="With `scale`: the factors of outputs, by default 1. Factors of gradients "
        "follow from them.",
        examples=[{"y": 2}],
    )
    idempotent: Annotated[dict[Identifier, Identifier], Field(min_length=1)] | None = Field(
        default=None,
        description="For each input, the output to pass in its place: the entry must return the "
        "same outputs again.",
        examples=[{"x": "y"}],
    )
    exact: Exact = Field(
        default=False,
        description="Whether the numbers must be equal, not only within the tolerance. `bits`: "
        "also the signs of zeros and the bits of NaNs.",
        examples=[True, "bits"],
    )
    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` and `backend`: the cases it applies to. "
        "By default all.",
        examples=["dtype == 'float32'"],
    )
    because: str = Field(
        default="",
        description="Why the relation holds, for findings.",
        examples=["a norm has no scale"],
    )

    @property
    def forms(self) -> tuple[str, ...]:
        """The keys among these five that are present."""
        keys = ("name", "permute", "split", "scale", "idempotent")
        return tuple(key for key in keys if getattr(self, key) is not None)


class Agreement(Model):
    """Another implementation that must agree: a variant, another entry or another backend.

    Each case also calls it with the same inputs; the results must agree within both tolerances.
    """

    axis: Identifier | None = Field(
        default=None,
        description="An axis that must not change the results. The other side has another of its "
        "values, one for each kernel, that the constraints allow.",
        examples=["backward"],
    )
    set: CaseValues | None = Field(
        default=None,
        description="Axes, or other arguments of the entry, with the values of the other side. A "
        "case that already has them is not compared, nor one that `constraints` exclude.",
        examples=[{"backward": "split"}],
    )
    factory_args: dict[Identifier, Argument] = Field(
        default={},
        description="Keyword arguments of the factory, with the values of the other side.",
        examples=[{"num_stages": 0}],
    )
    entry: Target | None = Field(
        default=None,
        description="Another callable with the same parameters.",
        examples=["mypkg.other:attention"],
    )
    backend: Literal["interpreter", "cuda"] | None = Field(
        default=None,
        description="The backend of the other side. A case that already runs on it is not "
        "compared, nor any case on a machine without a GPU if it is `cuda`.",
        examples=["interpreter"],
    )
    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` and `backend`: the cases it applies to. "
        "By default all.",
        examples=["head_dim == 64"],
    )
    exact: Exact = Field(
        default=False,
        description="Whether the numbers must be equal: pipeline stages, for example, change no "
        "sum. `bits`: also the signs of zeros and the bits of NaNs.",
        examples=[True, "bits"],
    )
    because: str = Field(
        default="",
        description="Why the two must agree, for findings.",
        examples=["the sums are the same"],
    )
