"""The parts of a spec: a declared problem, rules, tiers, rejects, known bugs, fuzzing, timing."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from tlmatrix.spec.fields import (
    EXCEPTION,
    RANGE,
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
    StorageName,
    Strategy,
    Target,
)

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

__all__ = [
    "DEFAULT_TIERS",
    "Bench",
    "DeclaredProblem",
    "Fuzz",
    "FuzzAxis",
    "FuzzLengths",
    "FuzzTrace",
    "InputDecl",
    "KnownBug",
    "OutputDecl",
    "Range",
    "Reject",
    "Rule",
    "Tier",
    "with_default_tiers",
]

# Problems declared in YAML -----------------------------------------------------------------


class InputDecl(Model):
    """An input tensor of a declared problem."""

    shape: tuple[Size, ...] = Field(
        description="Its dimensions: whole numbers, or expressions over the axes; `[]` for a "
        "scalar.",
        examples=[["rows", "cols"], ["2 * rows", 64]],
    )
    dtype: str = Field(
        description="A dtype as PyTorch spells it, or `$axis` for the value of that axis.",
        examples=["$dtype", "float32"],
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
    reference: Target | None = Field(
        default=None,
        description="A function of PyTorch tensors, `package.module:function`. It is called with "
        "the inputs (and the axes it has parameters for) in float64, and in the kernel's "
        "precision. Without one, outputs need shapes, and the spec names `properties` or `agree`.",
        examples=["mypkg.reference:rms_norm"],
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


class Rule(Model):
    """What must hold of a case for it to be part of the matrix."""

    expr: ExpressionText = Field(
        description="An expression over the axes. Cases for which it is false are removed.",
        examples=["window is none or causal"],
    )
    because: Annotated[str, Field(min_length=1)] = Field(
        description="Why; shown with the number of cases the rule removed.",
        examples=["a window is causal by definition"],
    )


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


class Reject(Model):
    """An input that the entry must refuse."""

    set: CaseValues = Field(
        description="What is bad: axes and other arguments of the entry with their bad values. "
        "A tensor can get another dtype or device (`k.dtype: float64`), or another shape "
        "(`k: {shape: [3, 5]}`); of a tensor that ranks share every rank gets it as it is, if the "
        "length that is split is another one. Other axes take their first values that obey the "
        "`where` rules.",
        examples=[{"groups": 0}, {"k.dtype": "float64"}, {"k": {"shape": [3, 5]}}],
    )
    raises: Annotated[str, Field(pattern=EXCEPTION)] = Field(
        description="The exception: a builtin one, or `package.module:Class`.",
        examples=["ValueError"],
    )
    matching: Annotated[str, Field(min_length=1)] = Field(
        description="Words that its message must contain.", examples=["groups must be"]
    )
    because: str = Field(default="", description="Why.", examples=["no head would be left"])


class KnownBug(Model):
    """A bug that is known: an entry of the spec's ledger."""

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


# Fuzzing and timing ---------------------------------------------------------------------------


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


class FuzzLengths(Model):
    """How packed batches are made up."""

    sequences: Range = Field(
        default=Range(low=1, high=8),
        description="How many sequences a batch has.",
        examples=["1..8"],
    )
    length: Range = Field(
        default=Range(low=0, high=300),
        description="How long a sequence is.",
        examples=["0..300"],
    )
    queries: Range | None = Field(
        default=None,
        description="How many queries a sequence has, where that is not its length: `1` where "
        "keys are cached.",
        examples=[1, "1..4"],
    )
    around: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = Field(
        default=(),
        description="Lengths near which bugs live, such as tile edges: these, one less and one "
        "more are drawn often.",
        examples=[[64, 128]],
    )
    kv: Literal["equal", "independent", "longer", "shorter"] = Field(
        default="equal",
        description="Key lengths: `equal` to the query's, `independent` of them, never shorter "
        "(`longer`), never longer (`shorter`).",
        examples=["independent"],
    )
    trace: FuzzTrace | None = Field(
        default=None,
        description="A serving log: half of the batches are requests that follow one another in "
        "it, less those outside of `length` where that is given.",
        examples=["traces/chat.csv", {"file": "traces/chat.jsonl", "q": "prompt_tokens"}],
    )


class FuzzAxis(ShortModel):
    """What an axis has in random cases besides its values. `1..300` is short for a range."""

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
        "arguments of the entry, or for `compile` arguments of the factory.",
        examples=[{"block_m": [64, 128], "num_stages": [1, 2, 3]}],
    )
