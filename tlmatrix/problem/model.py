"""The data model of problems: a `Family` turns the axis values of a case into a `Problem`.

Built-in families (attention, gemm, collective, declared) and families of users share these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Shard, Spec
    from tlmatrix.spec.values import Value

Tensors = Mapping[str, "torch.Tensor"]
RelationKind = Literal[
    "isolation", "poison", "relations", "repeat", "agreement", "propagation"
]  # fmt: skip


class InapplicableError(SpecError):
    """The problem of a metamorphic relation cannot run here, so that the relation is skipped.

    Such as a batch split in two whose lengths several ranks cannot share.
    """


class ReferenceFailedError(RuntimeError):
    """The reference of a problem raised `error`, which is no bug of the entry."""

    def __init__(self, target: str, error: BaseException) -> None:
        self.target = target
        self.error = error
        super().__init__(f"{target} raised {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Dim:
    """A dimension of a tensor, for findings and regions.

    `region[i]` is the number of the region of index `i` (the sequence of a packed row, the head);
    None if the dimension lies within a region. If positions count from the start of a region,
    `starts` are the first indices of the regions (`cu_seqlens`, with or without the end), and
    `region_name` is the word for a region ("sequence").
    """

    name: str
    size: int
    region: Sequence[int] | None = None
    starts: Sequence[int] | None = None
    region_name: str | None = None
    tile: int | None = None
    owner: Sequence[int] | None = None
    """The rank that holds each index, if the tensor is sharded along this dimension."""

    def describe(self, index: int) -> dict[str, int]:
        """`{"sequence": 2, "position": 17, "position_tile": 0}` for a packed row."""
        index_by_name: dict[str, int] = {}
        if self.owner is not None:
            index_by_name["rank"] = self.owner[index]
        position = index
        if self.region_name is not None and self.region is not None:
            region = int(self.region[index])
            index_by_name[self.region_name] = region
            if self.starts is not None:
                position = index - int(self.starts[region])
        index_by_name[self.name] = position
        if self.tile:
            index_by_name[f"{self.name}_tile"] = position // self.tile
        return index_by_name


@dataclass(frozen=True)
class TensorInfo:
    """An output or a gradient: its dims, dtype, and bounds on its rounding errors.

    `roundoff` is the unit roundoff of values that the kernel stores (2**-11 for float16).

    `magnitude`, float64 of the tensor's shape, is the sum of the absolute values of the terms of
    each element (`|P| @ |V|` for attention). The floor of the numeric check derives from
    `roundoff * magnitude`; by default from the size of the reference.

    `spread`, of the same shape, is the root of the sum of the squares of those terms
    (`sqrt(P**2 @ V**2)`). Independent rounding errors of many terms add up to `roundoff * spread`,
    far less than `roundoff * magnitude`; so a small uniform error is detected. By default it is
    estimated from the reference and `magnitude`.

    `exponent`, of a shape that broadcasts to the tensor's, is the size of exponentiated values
    (scores, lse): float32 rounds such an x by |x| * 2**-24, which is a relative error of exp(x).
    By default about 50.

    `arithmetic` is the unit roundoff of sums in the kernel; by default that of float32, or of
    float64 for float64 results. Integer results are exact.

    `amplification` bounds how far a change of all the intermediate values of an element (the
    probabilities of attention) moves it, in multiples of that change: GPUs flush intermediate
    values below 2**-126 to zero. By default 2**10, which it also is at least.

    `independent`, of a shape that broadcasts to the tensor's, is how many independent rounding
    errors the rows of a region share: the rows of dk those of the delta of each query and head.
    By default, and at most, one for each row.

    `independent_errors` are the parts of the tensor whose rounding errors are independent of each
    other and of either sign, if the inputs are N(0, 1); None if that is not known. The check of
    systematic errors needs it.

    `carried`, of a shape that broadcasts to the tensor's, is the largest error, in absolute units,
    that values rounded inside the kernel (operands of tensor cores, outputs that a backward reads)
    carry into each element; `carried_spread` is the scale of these errors, about their root mean
    square. By default there are none.

    `of_regions` gives the same of some regions alone, by a mask with an entry for each region of
    the dims: for less work, `magnitude` is that of the reference elsewhere, and `spread` is 0, so
    that an error bound from them is at most the own one. It needs a `magnitude` that is nowhere
    below that of the reference.

    `undeclared` is whether a spec could declare the dtype and does not: it is that of the inputs.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: torch.dtype
    roundoff: float
    magnitude: Callable[[], torch.Tensor] | None = None
    spread: Callable[[], torch.Tensor] | None = None
    exponent: Callable[[], torch.Tensor] | None = None
    arithmetic: float | None = None
    amplification: Callable[[], float] | None = None
    independent: Callable[[], torch.Tensor] | None = None
    independent_errors: Literal["rows", "elements"] | None = None
    carried: Callable[[], torch.Tensor] | None = None
    carried_spread: Callable[[], torch.Tensor] | None = None
    of_regions: Callable[[np.ndarray], TensorInfo] | None = None
    undeclared: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dims."""
        return tuple(dim.size for dim in self.dims)


@dataclass(frozen=True)
class Cost:
    """The minimal work of a problem: floating-point operations, and bytes read and written.

    `flops` is 0 if unknown. `backward` is the work of the gradients, including forward tensors that
    they read; None if there are none, or if unknown.
    """

    flops: int
    bytes: int
    backward: Cost | None = None


@dataclass(frozen=True)
class Pair:
    """Tensors that must be equal, by name; names in only one of the two are ignored.

    The tolerance is twice that of `expected`: of the numeric check if these are results of the
    problem, else the rounding error of numbers of their size.
    """

    expected: Tensors
    got: Tensors


Sides = Callable[[Tensors, Callable[["Problem"], Tensors]], Pair | None]
"""Takes the results of the problem and a function that runs the entry; None: nothing to compare."""


@dataclass(frozen=True)
class Reach:
    """How far a NaN or an infinity in an input reaches, as masks by result.

    `must` are the elements that cannot be finite, with `nan` those that must be NaN; `never` those
    that it must not change. Others may be NaN, as masked products are.
    """

    must: Tensors
    never: Tensors
    nan: bool = False
    masked: Mapping[str, int] = field(default_factory=dict)
    """How many elements of a result depend on the NaN and are numbers in the reference."""
    remedy: Mapping[str, str] = field(default_factory=dict)
    """What a spec says by result if the value may change others of its elements."""
    compared: Callable[[], Tensors] = dict
    """Masks of the elements that change if comparisons with NaN go the other way, as `not h > 0`
    does where the reference has `h <= 0`."""
    mixed: Callable[[], Tensors] = dict
    """Masks of the elements that a NaN may reach in products with weights of 0: of other rows
    whose results are sums over the row of the NaN, and over its neighbours or the outermost."""


@dataclass(frozen=True)
class Relation:
    """A metamorphic relation: `right(results of problems)` must equal `left(results)`.

    `left` selects the compared part of the results of the original problem; `right` computes the
    same part, under the same names, from the results of `problems`, in order. With `exact` the
    numbers must be equal (-0.0 is 0.0, and a NaN any NaN), with "bits" these bits too; otherwise
    the difference must be within the tolerance of the numeric check. `words` describe the expected
    side in findings.

    `judge` lists the indices of `problems` whose results are also checked against their own
    reference. With `stale`, which makes a problem of the same data with the options of the
    original, wrong results are findings only if they are right for that: else they may be wrong
    without the original call, too. `control` makes the problem without what the relation is about:
    if its results are wrong as well, that is for another case to report.

    If `right` sums results that the entry rounded one by one, `rounded` returns, from the same
    results and by name, the sum of their absolute values: the bound grows by the tensor's roundoff
    times that.
    """

    name: str
    kind: RelationKind
    problems: tuple[Problem, ...] = ()
    left: Callable[[Tensors], Tensors] = lambda mine: mine
    right: Callable[[Sequence[Tensors]], Tensors] = lambda results: results[0]
    exact: bool | Literal["bits"] = False
    judge: tuple[int, ...] = ()
    because: str = ""
    words: str = "the problem itself"
    rounded: Callable[[Sequence[Tensors]], Tensors] | None = None
    stale: Callable[[], Problem] | None = None
    control: Callable[[], Problem] | None = None


def judged_alone(
    name: str, problem: Problem, because: str, control: Callable[[], Problem] | None = None
) -> Relation:
    """The relation of another call whose results are checked against its own reference alone."""
    judge = (0,) if problem.has_reference else ()
    return Relation(
        name,
        "relations",
        (problem,),
        left=lambda _results: {},
        right=lambda _results: {},
        judge=judge,
        because=because,
        control=control,
    )


@dataclass(frozen=True, kw_only=True)
class PairRelation(Relation):
    """A relation whose expected results depend on the first results.

    `sides` computes both sides, in place of `problems`, `left` and `right`.
    """

    sides: Sides


@dataclass(frozen=True, kw_only=True)
class ReachRelation(Relation):
    """One input of the problem holds a NaN or an infinity; only the elements of `reach` count."""

    reach: Reach


@dataclass(frozen=True, kw_only=True)
class HistoryRelation(Relation):
    """Calls of the problem and of another one, in an order of their own.

    Each must have the results that it has alone; `problems` are not called.
    """

    history: History


@dataclass(frozen=True, kw_only=True)
class LayoutRelation(Relation):
    """A call whose tensors have the memory layouts `layouts`: of the problem `laid_out(layouts)`.

    An entry may refuse layouts that it does not promise to take (`promises`: `strides`,
    `alignment`).
    """

    layouts: Mapping[str, str]
    laid_out: Callable[[Mapping[str, str]], Problem]
    promises: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ManyCallsRelation(Relation):
    """The two problems are called after so many calls that flags pass 2^31, and others 2^32."""


@dataclass(frozen=True, kw_only=True)
class CapturedRelation(Relation):
    """The problems are replays of one call that was captured in a CUDA graph.

    With `refused`, the entry must raise that exception: its name, and words of its message.
    """

    refused: tuple[str, str] | None = None


@dataclass(frozen=True)
class AutogradVariant:
    """Another way to call an entry through autograd, with the same results as the usual call.

    `strided` and `transposed` pass output gradients that are not contiguous, `twice` returns the
    gradients of a second backward pass over a retained graph, `shared` uses each output twice,
    `some` is the usual call (of the inputs `requires`), `no_grad` calls the entry under
    `torch.no_grad`, `plain` with inputs that require no grad, and `claimed` also asks for gradients
    of outputs without a cotangent. `changed` changes the inputs `names` in place between the two
    passes: the gradients are those of the old values, or autograd refuses. `second` differentiates
    the gradients, and returns no results: a wrong second derivative raises `FindingsError`.

    With `requires`, only these inputs require grad, in any of these ways.

    `expanded` and `absent` have the results of another call, the `baseline`: output gradients that
    repeat their first row, with stride 0 or in memory of their own (`rows`), and none for the
    outputs `names`, or zeros (`zeros`).
    """

    kind: Literal[
        "strided", "transposed", "twice", "shared", "some", "no_grad", "plain", "claimed",
        "expanded", "rows", "absent", "zeros", "changed", "second",
    ]  # fmt: skip
    names: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    @property
    def baseline(self) -> AutogradVariant | None:
        """The call that has the same results; None for the usual call."""
        match self.kind:
            case "expanded":
                return AutogradVariant("rows")
            case "absent":
                return AutogradVariant("zeros", self.names)
        return None

    def __str__(self) -> str:
        some = f"only {', '.join(self.requires)} of the inputs require grad"
        if self.kind == "some":
            return some
        return self._way + (f"; {some}" if self.requires else "")

    @property
    def _way(self) -> str:
        return {
            "strided": "output gradients with stride 2 in their last dimension",
            "transposed": "output gradients whose first two dimensions are transposed in memory",
            "twice": "the second of two backward passes (retain_graph=True)",
            "shared": "an output that is used twice",
            "claimed": "gradients of outputs without an output gradient in the spec",
            "expanded": "output gradients with stride 0 in their first dimension",
            "rows": "output gradients whose rows are equal",
            "absent": f"no output gradient for {', '.join(self.names)}",
            "zeros": f"zeros as output gradient of {', '.join(self.names)}",
            "no_grad": "a call under torch.no_grad",
            "plain": "inputs that require no grad",
            "changed": f"{', '.join(self.names)} changed in place between forward and backward",
            "second": "gradients of the gradients (create_graph=True)",
        }[self.kind]


@dataclass(frozen=True)
class History:
    """The passes of several calls, in an order of their own.

    `calls` names the problem of each call: "a" is the problem that has the history, "b" is `other`.
    A step is a pass of the call of that number, or `free`: its results are dropped without a
    backward pass. With `exact`, the results of equal calls of `other` have equal bits.
    """

    other: Problem
    calls: tuple[Literal["a", "b"], ...]
    steps: tuple[tuple[Literal["forward", "backward", "free"], int], ...]
    exact: bool = False
    difference: str = "other data"
    """How `other` differs, in words."""

    def __str__(self) -> str:
        return ", ".join(f"{step}({self.name(number)})" for step, number in self.steps)

    def name(self, call: int) -> str:
        """`a`, or `a2` for the second of several calls of the problem a."""
        name = self.calls[call]
        if self.calls.count(name) == 1:
            return name
        return f"{name}{self.calls[: call + 1].count(name)}"

    def without(self, call: int) -> History:
        """The history without one of its calls."""
        calls = self.calls[:call] + self.calls[call + 1 :]
        steps = tuple(
            (step, number - (number > call)) for step, number in self.steps if number != call
        )
        return replace(self, calls=calls, steps=steps)

    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> History:
        """The history with `change` of each tensor of the other problem."""
        return replace(self, other=self.other.map_tensors(change))


@dataclass(frozen=True)
class UnusedRows:
    """Rows of an input on which no result may depend: padding, and slots past a length.

    `mask` marks them over the leading dimensions of the tensor. `describe` says where the row of
    an index is: "row 11 of v_cache, past the length of sequence 0".
    """

    mask: torch.Tensor
    describe: Callable[[tuple[int, ...]], str]


@dataclass(frozen=True)
class OtherOption:
    """The problem with another `value` of an `option` than `own`, and the same inputs."""

    option: str
    value: Value
    own: Value
    problem: Problem


def _no_relations(_kind: RelationKind) -> tuple[Relation, ...]:
    return ()


@dataclass(frozen=True)
class Problem:
    """Arguments for an entry, the expected results, and how they are checked.

    `names` are all names for parameters of an entry and expressions of `factory_args` and `call`:
    axes, names derived from them, and tensors. `inputs` are the tensors among them that the entry
    must not change. Gradients are those of `torch.autograd.grad` of the outputs in `cotangents`,
    with respect to the inputs that are values of `gradient_of`.
    """

    values: Mapping[str, Value]
    names: Mapping[str, Any]
    inputs: Tensors
    outputs: Mapping[str, TensorInfo]
    returns: tuple[str, ...]
    """Outputs in the order in which an entry returns them: ("out", "lse")."""
    distribution: str = ""
    """The distribution of the values of its inputs; empty if not known."""
    dims: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    """The dimensions of tensors that are no outputs.

    A dimension with `starts` assigns rows to sequences: the sanitizers report accesses across
    sequences, in tensors of these names and in others of the same shape.
    """
    cotangents: Tensors = field(default_factory=dict)
    gradient_of: Mapping[str, str] = field(default_factory=dict)
    """Gradient name to input name: {"dq": "q"}."""
    has_reference: bool = True
    """Whether there is a reference; without one, only relations and agreements check results."""
    reference: Callable[[], Tensors] = dict
    """The float64 values of every output and gradient; computed once."""
    lowp: Callable[[], Tensors] = dict
    """The same values, computed in PyTorch at the precision of a kernel; computed once."""
    relations: Callable[[RelationKind], Iterable[Relation]] = _no_relations
    cost: Callable[[], Cost] | None = None
    with_inputs: Callable[[Tensors], Problem] | None = None
    """The problem with some inputs replaced, and its reference for them; without relations.

    Needed by `tlmatrix explain` and by relations that a spec lists."""
    unused: Callable[[], Mapping[str, UnusedRows]] = dict
    """The rows of inputs that hold poison, by input; findings name those that reach a result."""
    with_operands: Mapping[str, Callable[[], Problem]] = field(default_factory=dict)
    """The problem if its kernel rounds computed operands of products, by dtype as a spec writes it.

    Empty if the dtype is known, or if there is no reference."""
    other_options: Callable[[], Iterable[OtherOption]] = tuple
    """The problem with other values of single options; hints compare wrong results with them."""
    narrow: Mapping[torch.dtype, str] = field(default_factory=dict)
    """The 16-bit dtypes that a user's reference knows from its inputs, with one input of each."""
    operands: torch.dtype | None = None
    """The 16-bit dtype to which kernels may round factors of products, of a user's reference."""
    free_integers: frozenset[str] = frozenset()
    """Inputs of integers, or of booleans, of which each may have the value of another one."""
    shards: Mapping[str, Shard] = field(default_factory=dict)
    """The default sharding of its tensors over ranks."""
    autograd: AutogradVariant | None = None
    """How to call a differentiable entry; None for the usual way."""
    given_output: str | None = None
    """The output for which the entry gets a tensor as its argument `out`, and no gradients."""
    defaults: tuple[str, ...] = ()
    """Options of the entry to which the case gives the value of their default."""
    left_out: tuple[str, ...] = ()
    """Options that the call leaves out."""
    absent: tuple[str, ...] = ()
    """Inputs that the call leaves out, if the entry has None as the default of each."""
    thresholds: int | None = None
    """What the thresholds of the entry's host code are lowered to (`backend.thresholds`)."""
    side_stream: bool = False
    """Whether to call the entry on a CUDA stream other than the default one."""
    two_streams: bool = False
    """Whether to make two calls on two simulated streams, which have no results: a race raises
    `FindingsError`."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """The memory layouts of single tensors of each rank, by name."""
    between: tuple[Problem, ...] = ()
    """Calls that are made between the forward and the backward pass."""
    renewed: bool = False
    """Whether a repeated call gets new tensors at the addresses of earlier ones."""
    history: History | None = None
    """Calls of this problem and of another one, made in that order in place of one call."""

    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Problem:
        """The problem with `change` of each tensor that an entry gets; same outputs, reference."""
        import torch

        def changed(values: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: change(value) if isinstance(value, torch.Tensor) else value
                for name, value in values.items()
            }

        return replace(
            self,
            names=changed(self.names),
            inputs=changed(self.inputs),
            cotangents=changed(self.cotangents),
            between=tuple(each.map_tensors(change) for each in self.between),
            history=self.history and self.history.map_tensors(change),
        )

    def with_relations(self, kind: RelationKind, more: Callable[[], Iterable[Relation]]) -> Problem:
        """The problem with further relations of a kind, made when they are iterated over."""

        def relations(asked: RelationKind) -> Iterator[Relation]:
            yield from self.relations(asked)
            if asked == kind:
                yield from more()

        return replace(self, relations=relations)


class Family(Protocol):
    """Builds the problems of one kind; a spec names a user's own as `package.module:Class`.

    Optional attributes:
        axes: the names of all axes that it reads. An axis that neither the family nor the entry
            takes is then an error.
        names: all names that its problems give an entry. Other options of an entry need an axis.
        tensors: the names of all tensors of its problems, results included. `shards` of others are
            then errors.
        relation_names: the names of its relations. Other names under `relations:` are then errors.
        optional_axes: those of `OPTIONAL_AXES` that it reads, which a case may have though its spec
            does not list them.
        special_values: those of `tlmatrix.problem.distributions.SPECIAL` that fuzzing generates.
        option_values: values of axes, by name, to which hints compare wrong results though the spec
            may list none of them.
        sharded: axes of sizes that ranks share by default.
        cotangents: whether its problems may have cotangents (by default True).
        host_problem: like `problem`, with tensors on the CPU for an entry that runs on `device`;
            None if checks on that device are faster. The entry gets copies of the tensors.
    """

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """Located issues of the spec for this family; imports neither torch nor entries."""

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """A key that is equal for cases with the same compiled kernels; they run on one worker."""

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """The problem of a case. The same seed gives the same bits."""
