"""A problem: a case made concrete, with all that is needed to run and to judge an entry.

The same few classes serve the built-in families (attention, gemm, declared in YAML) and a
family of a user's own: a `Family` turns the values of a case into a `Problem`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Shard, Spec
    from tlmatrix.spec.values import Value

__all__ = [
    "Cost",
    "Dim",
    "Family",
    "Pair",
    "Problem",
    "ReferenceFailedError",
    "Relation",
    "RelationKind",
    "Sides",
    "TensorInfo",
    "Tensors",
]

Tensors = Mapping[str, "torch.Tensor"]
RelationKind = Literal["isolation", "poison", "relations", "repeat", "agreement"]


class ReferenceFailedError(RuntimeError):
    """The reference of a problem raised; `error` is what it raised. No fault of the entry's."""

    def __init__(self, target: str, error: BaseException) -> None:
        self.target = target
        self.error = error
        super().__init__(f"{target} raised {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Dim:
    """One dimension of an output tensor, in words a person uses.

    `region[i]` numbers the region that index `i` belongs to along this dimension (the sequence
    of a packed row, the head); None when the dimension lies inside a region. `starts` are the
    first indices of the regions where a position counts from its region's start (`cu_seqlens`,
    with the end or without), and `region_name` what such a region is called ("sequence").
    """

    name: str
    size: int
    region: Sequence[int] | None = None
    starts: Sequence[int] | None = None
    region_name: str | None = None
    tile: int | None = None
    owner: Sequence[int] | None = None
    """The rank that has each index, where ranks share the tensor out along this dimension."""

    def describe(self, index: int) -> dict[str, int]:
        """`{"sequence": 2, "position": 17, "position_tile": 0}` for a packed row."""
        place: dict[str, int] = {}
        if self.owner is not None:
            place["rank"] = self.owner[index]
        position = index
        if self.region_name is not None and self.region is not None:
            region = int(self.region[index])
            place[self.region_name] = region
            if self.starts is not None:
                position = index - int(self.starts[region])
        place[self.name] = position
        if self.tile:
            place[f"{self.name}_tile"] = position // self.tile
        return place


@dataclass(frozen=True)
class TensorInfo:
    """An output or a gradient: its dims, dtype, and how exact the best kernel could be.

    `roundoff` is the unit roundoff of what the kernel stores (2**-11 for float16). `magnitude`,
    of the tensor's shape and in float64, bounds the size of the terms summed into each element
    (`|P| @ |V|` for attention); the numeric check derives its floor from
    `roundoff * magnitude`. Without it the floor uses the reference's own size.

    `spread`, of the same shape, is the root of the sum of the squares of those terms
    (`sqrt(P**2 @ V**2)`): where many terms are rounded independently their errors add up to
    `roundoff * spread`, far below `roundoff * magnitude`, and a small uniform error shows.
    Without it the floor estimates it from the reference and `magnitude`.

    `exponent`, of a shape that broadcasts to the tensor's, is the size of what is exponentiated
    on the way (scores, lse): float32 rounds an x there by |x| * 2**-24, which is a relative
    error of exp(x). Without it scores of at most some fifty are assumed.

    `arithmetic` is the unit roundoff of the sums inside the kernel; without it float32's, or
    float64's for float64 results. Integer results are exact.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: torch.dtype
    roundoff: float
    magnitude: Callable[[], torch.Tensor] | None = None
    spread: Callable[[], torch.Tensor] | None = None
    exponent: Callable[[], torch.Tensor] | None = None
    arithmetic: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dims."""
        return tuple(dim.size for dim in self.dims)


@dataclass(frozen=True)
class Cost:
    """Work that the mathematics asks for: floating-point operations, and bytes in and out.

    `flops` is 0 where nobody counts them. `backward` is the gradients' work, with what they read
    of the forward's; None where there are none, or nobody knows.
    """

    flops: int
    bytes: int
    backward: Cost | None = None


@dataclass(frozen=True)
class Pair:
    """What must be equal, by name: tensors of `got` with those of `expected` that it has.

    Both are off by what is allowed for `expected`: for the problem's own results that of the
    numeric check, for others what rounding can do to numbers of their size.
    """

    expected: Tensors
    got: Tensors


Sides = Callable[[Tensors, Callable[["Problem"], Tensors]], Pair | None]
"""Given the problem's results and what runs the entry: what is compared, None for nothing here."""


@dataclass(frozen=True)
class Relation:
    """Two ways to the same values: run `problems`, and `right(results)` must equal `left(mine)`.

    `left` picks, from the tensors of the problem itself, the part that is compared; `right`
    makes the same part, under the same names, from the results of `problems`, in order.
    `exact` asks for equal bits; otherwise the difference must lie within the allowance of the
    numeric check. `judge` lists the indices of `problems` whose own results are also checked
    against their own reference.

    Where what must come out depends on the results, or comes from elsewhere, `sides` makes both
    in place of `problems`, `left` and `right`. `words` say what the problem is compared with.

    With `captured`, the problems are replays of one call that was captured to a CUDA graph; with
    `refused` as well, the entry must raise that exception (its name, words of its message).
    """

    name: str
    kind: RelationKind
    problems: tuple[Problem, ...] = ()
    left: Callable[[Tensors], Tensors] = lambda mine: mine
    right: Callable[[Sequence[Tensors]], Tensors] = lambda results: results[0]
    exact: bool = False
    judge: tuple[int, ...] = ()
    because: str = ""
    words: str = "the problem itself"
    sides: Sides | None = None
    captured: bool = False
    refused: tuple[str, str] | None = None


@dataclass(frozen=True)
class Problem:
    """What to call an entry with, what must come out, and by which rules that is judged.

    `names` holds every name an entry's parameter, or an expression of `factory_args` and `call`,
    may use: the axes, what follows from them, and the tensors. `inputs` is the subset of `names`
    that are tensors the entry must not change. Gradients are taken with `torch.autograd.grad`
    of the outputs named in `cotangents`, with respect to the inputs in `gradient_of`'s values.
    """

    values: Mapping[str, Value]
    names: Mapping[str, Any]
    inputs: Tensors
    outputs: Mapping[str, TensorInfo]
    returns: tuple[str, ...]
    """Outputs in the order in which an entry returns them: ("out", "lse")."""
    dims: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    """What the dimensions of inputs and other tensors are; outputs have theirs in `outputs`.

    A dimension with `starts` also says which rows belong to which sequence: the sanitizers watch
    that a kernel stays in its own, in tensors of these names, and in others of the same shape.
    """
    cotangents: Tensors = field(default_factory=dict)
    gradient_of: Mapping[str, str] = field(default_factory=dict)
    """Gradient name to input name: {"dq": "q"}."""
    has_reference: bool = True
    """Whether anybody knows what must come out; else relations and agreements judge alone."""
    reference: Callable[[], Tensors] = dict
    """float64 values of every output and gradient; computed once."""
    lowp: Callable[[], Tensors] = dict
    """The same mathematics in PyTorch at the kernel's precision; computed once."""
    relations: Callable[[RelationKind], Iterable[Relation]] = lambda _kind: ()
    cost: Callable[[], Cost] | None = None
    with_inputs: Callable[[Tensors], Problem] | None = None
    """The same problem with other values in some of its inputs, reference and all. Only
    `tlmatrix explain` asks for it, to see which parts of an input an element depends on."""
    shards: Mapping[str, Shard] = field(default_factory=dict)
    """How several ranks share its tensors out, where the spec does not say."""


class Family(Protocol):
    """What makes problems of one kind; a user's own is named `package.module:Class` in a spec.

    A family may have an attribute `axes`, the names of all axes that it reads. With it, an axis
    that neither the family nor the entry takes is an error; without it, nobody can tell.

    It may have `tensors`, the names of all that a case may have, results among them: `shards` of
    others are errors then.

    It may have `optional`, those of `OPTIONAL_AXES` that it reads: a case may have them though its
    spec does not. `cotangents` is whether its problems may have any (True).
    """

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """What is wrong with the spec's axes for this family; imports neither torch nor entries."""

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """Cases with equal keys share compiled kernels; such cases run on one worker."""

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """The problem of a case. The same seed gives the same bits."""
