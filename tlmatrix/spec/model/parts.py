"""The parts of a spec: a declared problem, constraints, tiers, known bugs, regressions, timing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.model.calling import Reference  # noqa: TC001 - pydantic reads it
from tlmatrix.spec.model.fields import (
    CHECKS,
    AxisValue,
    Baseline,
    Bound,
    CaseValues,
    CheckName,
    Day,
    ExpressionText,
    Identifier,
    Model,
    ShortModel,
    Size,
    Strategy,
)

# Checks ------------------------------------------------------------------------------------


class ChecksWithout(Model):
    """All checks but some."""

    without: tuple[CheckName, ...] = Field(
        min_length=1, description="Checks to leave out.", examples=[["propagation"]]
    )


def _selected_checks(value: tuple[CheckName, ...] | ChecksWithout) -> tuple[CheckName, ...]:
    if not isinstance(value, ChecksWithout):
        return value
    kept = tuple(check for check in CHECKS if check not in value.without)
    if not kept:
        raise ValueError("must leave at least one check")
    return kept


if TYPE_CHECKING:
    Checks = tuple[CheckName, ...]
else:
    Checks = Annotated[
        Annotated[tuple[CheckName, ...], Field(min_length=1), Tag("<list>")]
        | Annotated[ChecksWithout, Tag("<mapping>")],
        Discriminator(lambda value: "<mapping>" if isinstance(value, Mapping) else "<list>"),
        AfterValidator(_selected_checks),
    ]
"""The checks of a case, written as a list, or as `without` and a list."""

# Problems declared in YAML -----------------------------------------------------------------


DERIVED = (
    "offsets_of",
    "starts_of",
    "lengths_of",
    "sequence_ids_of",
    "positions_of",
    "pages_of",
)
"""Keys of an input that is derived from a packed axis, without its own shape or values."""


class InputDecl(Model):
    """An input tensor of a declared problem: given by a shape, or derived from a packed axis."""

    shape: tuple[Size, ...] | None = Field(
        default=None,
        description="Its dimensions: whole numbers, or expressions over the axes; `[]` for a "
        "scalar. `sum(seqlens)` is a packed dimension with the rows of all sequences; "
        "`len(seqlens)` is the number of sequences; `pages(seqlens, page_size)` is the number of "
        "pages of a pool.",
        examples=[["rows", "cols"], ["2 * rows", 64], ["sum(seqlens)", "dim"]],
    )
    dtype: str | None = Field(
        default=None,
        description="A dtype by its PyTorch name, or `$axis` for the value of that axis. By "
        "default int32 if derived from a packed axis.",
        examples=["$dtype", "float32"],
    )
    offsets_of: ExpressionText | None = Field(
        default=None,
        description="Inclusive prefix sums of sequence lengths, [batch + 1], from 0: `cu_seqlens`. "
        "A packed axis, one side of it (`seqlens.q`), or an expression for a list.",
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
        description="The sequence that each row belongs to, [sum(seqlens)], such as the expert of "
        "a token.",
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
    unseen: ExpressionText | None = Field(
        default=None,
        description="With `pages_of`: how many rows at the begin of each sequence no query sees, "
        "as behind a window; less than 0 counts as 0. Entries of pages that hold such rows alone "
        "lie outside the pool, too, so that a kernel that looks them up has a finding.",
        examples=["seqlens.k - seqlens.q - window + 1"],
    )
    grad: bool = Field(
        default=False,
        strict=True,
        description="Whether its gradient is checked against autograd through the reference.",
        examples=[True],
    )
    fill: str | None = Field(
        default=None,
        description="The distribution of its values. By default it varies over the cases.",
        examples=["normal"],
    )
    between: tuple[Bound, ...] | None = Field(
        default=None,
        description="The least and the largest value, both included, instead of `fill`: for "
        "indices, counts or probabilities. Whole numbers, or expressions over the axes. Of "
        "integers an eighth is the least value, and an eighth the largest.",
        examples=[[0, "experts - 1"], [-1, "experts - 1"]],
    )

    @property
    def derived(self) -> tuple[str, Expression] | None:
        """The key of `DERIVED` that is set, and its list of lengths; None without one."""
        for key in DERIVED:
            lengths: Expression | None = getattr(self, key)
            if lengths is not None:
                return key, lengths
        return None

    @property
    def sizes(self) -> tuple[Expression | int, ...]:
        """The shape, declared or derived from the packed axis."""
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
        """The dtype, or `$axis`; by default int32, for derived inputs."""
        return self.dtype or "int32"


class OutputDecl(Model):
    """An output tensor of a declared problem."""

    shape: tuple[Size, ...] | None = Field(
        default=None,
        description="Its dimensions. By default those of the reference's output.",
        examples=[["rows", "cols"]],
    )
    dtype: str | None = Field(
        default=None,
        description="A dtype, or `$axis`. By default that of the first input.",
        examples=["$dtype"],
    )
    dims: tuple[Identifier, ...] | None = Field(
        default=None,
        description="Names of its dimensions in findings. Along those named `batch`, `sequence` or "
        "`position` the check `propagation` lets a NaN reach other rows.",
        examples=[["row", "column"]],
    )


class DeclaredProblem(Model):
    """A problem declared in the spec: inputs, outputs and a reference."""

    inputs: dict[Identifier, InputDecl] = Field(
        min_length=1,
        description="The input tensors by name, in the order of the reference's parameters.",
        examples=[{"x": {"shape": ["rows", "cols"], "dtype": "$dtype", "grad": True}}],
    )
    outputs: Annotated[
        Annotated[tuple[Identifier, ...], Field(min_length=1), Tag("<list>")]
        | Annotated[dict[Identifier, OutputDecl], Field(min_length=1), Tag("<mapping>")],
        Discriminator(lambda value: "<mapping>" if isinstance(value, dict) else "<list>"),
    ] = Field(
        description="The output tensors in the order of return: a list of names, or a mapping from "
        "names to shape, dtype and dims.",
        examples=[["y"], {"y": {"shape": ["rows", "cols"], "dtype": "$dtype"}}],
    )
    reference: Reference | None = Field(
        default=None,
        description="A function of PyTorch tensors, `package.module:function`, or a mapping with "
        "its arguments and results. It is called in float64 and in the kernel's precision, with "
        "the inputs and the axes that its parameters name. Without one, outputs need shapes, and "
        "the spec needs `relations` or `agree`.",
        examples=[
            "mypkg.reference:rms_norm",
            {"function": "torch.nn.functional:layer_norm", "call": ["x", ["cols"], "w", "b"]},
        ],
    )

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, in the order of return."""
        return tuple(self.outputs)

    @property
    def tensors(self) -> frozenset[str]:
        """The tensors that are checked: outputs, and gradients of inputs."""
        gradients = (f"d{name}" for name, each in self.inputs.items() if each.grad)
        return frozenset([*self.outputs, *gradients])


# The matrix ---------------------------------------------------------------------------------


class ConstraintDecl(ShortModel):
    """A condition that every case of the matrix satisfies. Text alone is short for `require`."""

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
        description="The reason, shown with the number of removed cases.",
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
        """The constraint as text for messages."""
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
        "second, and so on. `pairwise`, `3-wise`, `t-wise` for any t: a covering array, in which "
        "every combination of values of any t axes occurs. `sample`: `size` random combinations. "
        "`first`: the first `size` of the product.",
        examples=["pairwise", "3-wise", "product"],
    )
    size: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None,
        description="The number of cases; required for `sample`, optional for `first` (1).",
        examples=[100],
    )
    seed: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0,
        description="The random seed of `sample` and the t-wise strategies. The same seed picks "
        "the same cases.",
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
"""The tiers that every spec has; a spec may replace them."""


def with_default_tiers(tiers: dict[str, Tier]) -> dict[str, Tier]:
    """The tiers of a spec, followed by the default tiers that it does not replace."""
    return tiers | {name: tier for name, tier in DEFAULT_TIERS.items() if name not in tiers}


class KnownBug(Model):
    """Cases that are expected to fail, with an issue and an expiry date."""

    when: ExpressionText = Field(
        description="An expression over the axes, `arch` and `backend`: the cases that fail.",
        examples=["head_dim == 256 and arch == 'sm_80'"],
    )
    issue: Annotated[str, Field(min_length=1)] = Field(
        description="The issue that tracks it. Quote it: an unquoted `#` starts a comment.",
        examples=["#12"],
    )
    expires: Day = Field(
        description="The last day on which the entry is valid; after it, it is an error.",
        examples=[date(2027, 3, 1)],
    )
    mode: Literal["tolerate", "quarantine"] = Field(
        default="tolerate",
        description="`tolerate`: the cases run, and one that passes is a failure. "
        "`quarantine`: they never run.",
        examples=["quarantine"],
    )


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
        default=None, description="The day it was found.", examples=[date(2027, 1, 31)]
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


# Timing ---------------------------------------------------------------------------


class Bench(Model):
    """The cases, baselines and configurations of `tlmatrix bench`."""

    cases: tuple[CaseValues, ...] = Field(
        min_length=1,
        description="Values of axes, not only those that `axes` lists; other axes take their first "
        "value.",
        examples=[[{"head_dim": 128, "causal": True}]],
    )
    baselines: tuple[Baseline, ...] = Field(
        default=(),
        description="Implementations to compare with: a backend of PyTorch's SDPA (`sdpa_cudnn`, "
        "`sdpa_flash`, `sdpa_efficient`), its packed attention (`torch_varlen`), its operator for "
        "the problem (`torch`), the reference under `torch.compile` (`reference_compiled`), or a "
        "callable, `package.module:name`, with the parameters of the entry.",
        examples=[["sdpa_cudnn", "sdpa_flash"], ["torch", "mypkg.other:rms_norm"]],
    )
    configs: dict[Identifier, Annotated[tuple[AxisValue, ...], Field(min_length=1)]] = Field(
        default={},
        description="Values of keyword arguments of the entry or the factory; "
        "`tlmatrix bench --sweep` times every combination.",
        examples=[{"block_m": [64, 128], "num_stages": [1, 2, 3]}],
    )
