"""The parts of a spec: a declared problem, constraints, tiers, known bugs, timing."""

from __future__ import annotations

from datetime import date
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.model.calling import Reference  # noqa: TC001 - pydantic reads it
from tlmatrix.spec.model.fields import (
    AxisValue,
    Baseline,
    Bound,
    CaseValues,
    Day,
    ExpressionText,
    Identifier,
    Model,
    ShortModel,
    Size,
    Strategy,
)

__all__ = [
    "DEFAULT_TIERS",
    "DERIVED",
    "Bench",
    "ConstraintDecl",
    "DeclaredProblem",
    "InputDecl",
    "KnownBug",
    "OutputDecl",
    "Tier",
    "with_default_tiers",
]

# Problems declared in YAML -----------------------------------------------------------------


DERIVED = (
    "offsets_of",
    "starts_of",
    "lengths_of",
    "sequence_ids_of",
    "positions_of",
    "pages_of",
)
"""Keys of an input that follows from a packed axis: it has no shape or values of its own."""


class InputDecl(Model):
    """An input tensor of a declared problem: a shape, or what follows from a packed axis."""

    shape: tuple[Size, ...] | None = Field(
        default=None,
        description="Its dimensions: whole numbers, or expressions over the axes; `[]` for a "
        "scalar. `sum(seqlens)` is a packed dimension: its rows belong to the sequences in turn; "
        "`len(seqlens)` has an element for each sequence; `pages(seqlens, page_size)` is the "
        "number of pages of a pool.",
        examples=[["rows", "cols"], ["2 * rows", 64], ["sum(seqlens)", "dim"]],
    )
    dtype: str | None = Field(
        default=None,
        description="A dtype as PyTorch spells it, or `$axis` for the value of that axis. What "
        "follows from a packed axis is int32 by default.",
        examples=["$dtype", "float32"],
    )
    offsets_of: ExpressionText | None = Field(
        default=None,
        description="Inclusive prefix sums of sequence lengths, [batch + 1], from 0: `cu_seqlens`. "
        "A packed axis, one side of it (`seqlens.q`), or an expression that gives a list.",
        examples=["seqlens", "ceildiv(counts, 64) * 64"],
    )
    starts_of: ExpressionText | None = Field(
        default=None,
        description="The first row of each sequence, [batch].",
        examples=["seqlens"],
    )
    lengths_of: ExpressionText | None = Field(
        default=None,
        description="The length of each sequence, [batch].",
        examples=["seqlens"],
    )
    sequence_ids_of: ExpressionText | None = Field(
        default=None,
        description="The sequence that each row belongs to, [sum(seqlens)]: the expert of a token.",
        examples=["expert_counts"],
    )
    positions_of: ExpressionText | None = Field(
        default=None,
        description="The position of each row in its sequence, [sum(seqlens)].",
        examples=["seqlens"],
    )
    pages_of: ExpressionText | None = Field(
        default=None,
        description="A block table, [batch, max(ceildiv(seqlens, page_size))]: the page of a pool "
        "of `pages(seqlens, page_size)` that holds each part of a sequence. Pages are shuffled, a "
        "few belong to no sequence, and entries past a sequence's last page lie outside the pool.",
        examples=["seqlens"],
    )
    page_size: Size | None = Field(
        default=None,
        description="With `pages_of`: rows of a page.",
        examples=[16, "page_size"],
    )
    grad: bool = Field(
        default=False,
        strict=True,
        description="Whether its gradient is checked against autograd through the reference.",
        examples=[True],
    )
    fill: str | None = Field(
        default=None,
        description="The distribution its values are drawn from. By default the case decides, "
        "so that all distributions occur.",
        examples=["normal"],
    )
    between: tuple[Bound, ...] | None = Field(
        default=None,
        description="The least and the largest value it may have, both included, in place of a "
        "distribution: indices into another tensor, counts, probabilities. Whole numbers, or "
        "expressions over the axes.",
        examples=[[0, "experts - 1"], [-1, "experts - 1"]],
    )

    @property
    def derived(self) -> tuple[str, Expression] | None:
        """The key that says what it follows from, and the list of lengths; None with a shape."""
        for key in DERIVED:
            lengths: Expression | None = getattr(self, key)
            if lengths is not None:
                return key, lengths
        return None

    @property
    def sizes(self) -> tuple[Expression | int, ...]:
        """The shape as it is declared, or as it follows from the packed axis."""
        if self.derived is None:
            return self.shape or ()
        key, of = self.derived
        match key:
            case "offsets_of":
                return (Expression(f"len({of}) + 1"),)
            case "starts_of" | "lengths_of":
                return (Expression(f"len({of})"),)
            case "pages_of":
                most = Expression(f"max(ceildiv({of}, {self.page_size}))")
                return (Expression(f"len({of})"), most)
        return (Expression(f"sum({of})"),)

    @property
    def dtype_text(self) -> str:
        """The dtype, or `$axis`; int32 of what follows from a packed axis."""
        return self.dtype or "int32"


class OutputDecl(Model):
    """An output tensor of a declared problem."""

    shape: tuple[Size, ...] | None = Field(
        default=None,
        description="Its dimensions. By default what the reference returns.",
        examples=[["rows", "cols"]],
    )
    dtype: str | None = Field(
        default=None,
        description="A dtype, or `$axis`. By default that of the first input.",
        examples=["$dtype"],
    )
    dims: tuple[Identifier, ...] | None = Field(
        default=None,
        description="What its dimensions are called in findings.",
        examples=[["row", "column"]],
    )


class DeclaredProblem(Model):
    """A problem described in the spec itself."""

    inputs: dict[Identifier, InputDecl] = Field(
        min_length=1,
        description="The input tensors, by name, in the order the reference takes them.",
        examples=[{"x": {"shape": ["rows", "cols"], "dtype": "$dtype", "grad": True}}],
    )
    outputs: Annotated[
        Annotated[tuple[Identifier, ...], Field(min_length=1), Tag("<list>")]
        | Annotated[dict[Identifier, OutputDecl], Field(min_length=1), Tag("<mapping>")],
        Discriminator(lambda value: "<mapping>" if isinstance(value, dict) else "<list>"),
    ] = Field(
        description="The output tensors in the order they are returned: their names, or a mapping "
        "from name to shape, dtype and dims.",
        examples=[["y"], {"y": {"shape": ["rows", "cols"], "dtype": "$dtype"}}],
    )
    reference: Reference | None = Field(
        default=None,
        description="A function of PyTorch tensors, `package.module:function`, or a mapping that "
        "says how it is called. It is called with the inputs (and the axes it has parameters for) "
        "in float64, and in the kernel's precision. Without one, outputs need shapes, and the spec "
        "names `relations` or `agree`.",
        examples=[
            "mypkg.reference:rms_norm",
            {"function": "torch.nn.functional:layer_norm", "call": ["x", ["cols"], "w", "b"]},
        ],
    )

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs, in the order they are returned, however they were declared."""
        return tuple(self.outputs)

    @property
    def tensors(self) -> frozenset[str]:
        """Names that findings may be about: outputs, and gradients of inputs."""
        gradients = (f"d{name}" for name, each in self.inputs.items() if each.grad)
        return frozenset([*self.outputs, *gradients])


# The matrix ---------------------------------------------------------------------------------


class ConstraintDecl(ShortModel):
    """What every case of the matrix satisfies. Text alone is short for `require`."""

    short = "require"

    require: ExpressionText = Field(
        description="An expression over the axes. Cases for which it is false are removed.",
        examples=["window is none or causal"],
    )
    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes: the cases that must satisfy `require`. By "
        "default all.",
        examples=["operation == 'or'"],
    )
    because: str = Field(
        default="",
        description="Why; shown with the number of cases the constraint removed.",
        examples=["a window is causal by definition"],
    )

    @cached_property
    def expression(self) -> Expression:
        """The whole condition: `not (when) or (require)`."""
        if self.when is None:
            return self.require
        return Expression(f"not ({self.when}) or ({self.require})")

    @property
    def text(self) -> str:
        """The constraint as messages show it."""
        return f"{self.require}" if self.when is None else f"{self.require} when {self.when}"

    @property
    def reason(self) -> str:
        """`because` in parentheses, to follow `text`; empty without one."""
        return f" ({self.because})" if self.because else ""


class Tier(ShortModel):
    """A named way to pick cases. `quick: pairwise` is short for `quick: {strategy: pairwise}`."""

    short = "strategy"

    strategy: Strategy = Field(
        description="`product`: all combinations. `zip`: the first values of all axes, then the "
        "second, and so on. `pairwise`, `3-wise`, `t-wise` for any t: every combination of "
        "values of any t axes occurs. `sample`: `size` random combinations. `first`: the first "
        "`size` of the product.",
        examples=["pairwise", "3-wise", "product"],
    )
    size: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None,
        description="How many cases; `sample` needs it, `first` may have it (1).",
        examples=[100],
    )
    seed: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0,
        description="What `sample` and the t-wise strategies draw with. The same seed picks the "
        "same cases.",
        examples=[7],
    )
    axes: dict[str, tuple[AxisValue, ...]] | None = Field(
        default=None,
        description="Values that replace those of some axes in this tier.",
        examples=[{"head_dim": [64]}],
    )

    @property
    def strength(self) -> int | None:
        """The t of a t-wise strategy, else None."""
        if self.strategy == "pairwise":
            return 2
        number, dash, _ = self.strategy.partition("-wise")
        return int(number) if dash else None


DEFAULT_TIERS = {
    "quick": Tier(strategy="pairwise"),
    "nightly": Tier(strategy="3-wise"),
    "full": Tier(strategy="product"),
    "smoke": Tier(strategy="first"),
    "each": Tier(strategy="1-wise"),
}
"""The tiers that every spec has; its own come first, and replace those of the same name."""


def with_default_tiers(tiers: dict[str, Tier]) -> dict[str, Tier]:
    """The tiers of a spec, and the default ones it does not have."""
    return tiers | {name: tier for name, tier in DEFAULT_TIERS.items() if name not in tiers}


class KnownBug(Model):
    """Cases that are expected to fail, where that is tracked, and until when."""

    when: ExpressionText = Field(
        description="An expression over the axes, `arch` and `backend`: which cases it concerns.",
        examples=["head_dim == 256 and arch == 'sm_80'"],
    )
    issue: Annotated[str, Field(min_length=1)] = Field(
        description="Where it is tracked. Quote it: an unquoted `#` starts a comment.",
        examples=["#12"],
    )
    expires: Day = Field(
        description="The last day of the entry. After it the entry is an error, so that no bug "
        "is forgotten.",
        examples=[date(2027, 3, 1)],
    )
    mode: Literal["tolerate", "quarantine"] = Field(
        default="tolerate",
        description="`tolerate`: the cases run, and one that passes is a failure. "
        "`quarantine`: they never run.",
        examples=["quarantine"],
    )


# Timing ---------------------------------------------------------------------------


class Bench(Model):
    """What `tlmatrix bench` times."""

    cases: tuple[CaseValues, ...] = Field(
        min_length=1,
        description="Values for some axes; the others take their first value. They need not be "
        "values of the matrix.",
        examples=[[{"head_dim": 128, "causal": True}]],
    )
    baselines: tuple[Baseline, ...] = Field(
        default=(),
        description="Other implementations to time beside the entry: PyTorch's SDPA by one of its "
        "kernels (`sdpa_cudnn`, `sdpa_flash`, `sdpa_efficient`), its packed attention "
        "(`torch_varlen`), its own operator for the problem (`torch`), the reference as "
        "`torch.compile` makes it (`reference_compiled`), or another callable, "
        "`package.module:name`, called like the entry.",
        examples=[["sdpa_cudnn", "sdpa_flash"], ["torch", "mypkg.other:rms_norm"]],
    )
    configs: dict[Identifier, Annotated[tuple[AxisValue, ...], Field(min_length=1)]] = Field(
        default={},
        description="What `tlmatrix bench --sweep` tries, every combination: values for keyword "
        "arguments of the entry, or of the factory.",
        examples=[{"block_m": [64, 128], "num_stages": [1, 2, 3]}],
    )
