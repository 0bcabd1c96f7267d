"""The root model of a spec, and the models of its keys.

The loader validates files with these models. The JSON Schema and `docs/reference/spec-keys.md` are
generated from them, with each key's description, default and examples.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag

from tlmatrix.spec.issues import Issue
from tlmatrix.spec.model.calling import (
    Call,
    Inout,
    OutputBuffer,
    Reference,
    Returns,
    results_of,
    written_by,
)
from tlmatrix.spec.model.checks import (
    Agreement,
    Allowance,
    AllowanceChange,
    CodegenRule,
    CudaGraph,
    DeterminismRule,
    PackedRows,
    Prove,
    Refusal,
    RelationDecl,
    SanitizerOptions,
    Tolerance,
    determinism_rules,
)
from tlmatrix.spec.model.fields import (
    CHECKS,
    FAMILIES,
    Argument,
    AxisValue,
    CaseValues,
    ExpressionText,
    FamilyName,
    Identifier,
    Model,
    Name,
    Target,
    TargetArch,
    TileSize,
    add_short_form,
    allow_single_entry,
)
from tlmatrix.spec.model.fuzz import Fuzz, FuzzAxis, FuzzLengths, FuzzTrace, Range
from tlmatrix.spec.model.invalid_inputs import InvalidInputs, tables_of
from tlmatrix.spec.model.parts import (
    Bench,
    Checks,
    ChecksWithout,
    ConstraintDecl,
    DeclaredProblem,
    InputDecl,
    KnownBug,
    OutputDecl,
    Regression,
    Tier,
    with_default_tiers,
)
from tlmatrix.spec.model.sharding import WORLD, Shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.values import Value
    from tlmatrix.spec.yaml.tree import Document

__all__ = [
    "CHECKS",
    "FAMILIES",
    "Agreement",
    "Allowance",
    "AllowanceChange",
    "Bench",
    "ChecksWithout",
    "CodegenRule",
    "ConstraintDecl",
    "CudaGraph",
    "DeclaredProblem",
    "DeterminismRule",
    "Fuzz",
    "FuzzAxis",
    "FuzzLengths",
    "FuzzTrace",
    "Inout",
    "InputDecl",
    "InvalidInputs",
    "KnownBug",
    "OutputBuffer",
    "OutputDecl",
    "PackedRows",
    "Prove",
    "Range",
    "Reference",
    "Refusal",
    "Regression",
    "RelationDecl",
    "SanitizerOptions",
    "Shard",
    "Spec",
    "Tier",
    "Tolerance",
    "has_ranks",
]


class Spec(Model):
    """One operator under test, and the matrix of cases that tests it."""

    name: Name = Field(
        description="The name of the spec in results and on the command line.",
        examples=["gqa_varlen"],
    )
    summary: str = Field(
        default="",
        description="A description of one sentence.",
        examples=["Grouped-query flash attention over packed sequences."],
    )
    problem: Annotated[
        Annotated[FamilyName, Tag("<name>")] | Annotated[DeclaredProblem, Tag("<mapping>")],
        Discriminator(lambda value: "<name>" if isinstance(value, str) else "<mapping>"),
    ] = Field(
        description="The computation: `attention`, `gemm`, `collective`, a class of your own "
        "(`package.module:Class`), or a mapping that declares inputs, outputs and reference.",
        examples=["attention", "mypkg.problems:MyProblem"],
    )
    entry: Target | None = Field(
        default=None,
        description="The callable under test, `package.module:name`: a function, `Class.apply` of "
        "a `torch.autograd.Function`, a class whose objects are called, or an operator of "
        "`torch.library` (`package.module:torch.ops.ns.name`, with a module that registers it). "
        "It is called with "
        "keyword arguments by its parameters' names, or with the arguments in `call`. A spec has "
        "an entry or a factory.",
        examples=["tlmatrix_kernels.attention:varlen_attention", "mypkg.ops:RMSNorm.apply"],
    )
    constructor_args: dict[Identifier, Argument] = Field(
        default={},
        description="Arguments of the constructor of the class in `entry`: expressions over the "
        "axes. By default the axes that its parameters name. The parameters of an `nn.Module` are "
        "inputs of the problem (`proj.weight` is `proj_weight`).",
        examples=[{"in_features": "cols", "bias": False}],
    )
    factory: Target | None = Field(
        default=None,
        description="A TileLang kernel factory, called without a wrapper: `@tilelang.jit`, or a "
        "function that returns a PrimFunc.",
        examples=["mypkg.kernels:rms_norm_kernel"],
    )
    factory_args: dict[Identifier, Argument] = Field(
        default={},
        description="Keyword arguments of the factory. Text is an expression over the problem's "
        "names; dtype names are constants, and other text needs quotes inside it "
        "(`\"'mean'\"`).",
        examples=[{"M": "rows", "N": "cols", "blk_m": 64, "dtype": "float16"}],
    )
    call: Call = Field(
        default=(),
        description="Arguments of the entry or the factory's kernel: a list by position, "
        "or a mapping by keyword. Text is a name of the problem, or an expression over its names "
        "(quote text within it: `\"'mean'\"`). An output is a buffer that the caller allocates and "
        "the call writes: `{output: y, fill: zeros}`, or its bare name; `{inout: x, output: y}` "
        "passes a copy of x, which holds y after the call.",
        examples=[
            ["q", "k", "v"],
            ["x", "cu_seqlens", "max(seqlens)"],
            {"input": "x", "eps": 1.0e-5, "out": {"output": "y", "fill": "empty"}},
            [{"inout": "x", "output": "y"}, "w"],
        ],
    )
    defaults: dict[Identifier, Argument] = Field(
        default={},
        description="What the default of an option of the entry stands for, if the code computes "
        "it: an expression over the axes, `none` where it stands for no value. Cases in which the "
        "option has that value call the entry without it, too, with equal results; so do cases in "
        "which an option has the default of its signature.",
        examples=[{"out_dtype": "dtype", "rows": "rows if rows % world == 0 else none"}],
    )
    returns: Returns = Field(
        default=(),
        description="The outputs that the call returns: a list in order (`_` skips a result), or a "
        "mapping from outputs to paths of keys, indices and attributes in the result. A name that "
        "is also in `call` is a buffer. By default the first outputs, as many as are returned.",
        examples=[["out", "lse"], ["y", "_"], {"y": "out", "lse": "aux.1"}],
    )
    architectures: tuple[TargetArch, ...] = Field(
        default=(),
        min_length=1,
        description="The architectures that the kernels support; by default any. The interpreter "
        "traces five of six cases for the first and the others for another one, `compile` "
        "assembles for each, and GPUs of other architectures skip the cases.",
        examples=[["sm_100a"], ["sm_80", "sm_90a", "sm_100a"]],
    )
    axes: dict[Identifier, tuple[AxisValue, ...]] = Field(
        min_length=1,
        description="The dimensions of the matrix. Values are numbers, text, true, false, `none` "
        "(absent), lists or mappings.",
        examples=[{"dtype": ["float16", "bfloat16"], "head_dim": [64, 96], "window": [None, 64]}],
    )
    compile_axes: tuple[ExpressionText, ...] = Field(
        default=(),
        min_length=1,
        description="What kernels are compiled for: axes, or expressions over axes, such as "
        "`window is not none`. Cases with equal values share kernels, and a t-wise tier uses few "
        "distinct ones. By default all axes that the problem does not pass at run time.",
        examples=[["dtype", "head_dim", "window is not none"]],
    )
    shards: dict[Identifier, Shard] = Field(
        default={},
        description="With the axis `world`, the number of ranks that call the entry: how tensors "
        "are split across ranks. Tensors left out are replicated.",
        examples=[{"a": {"dim": 0}, "b": {"dim": 1}, "c": {"dim": 1}}],
    )
    context: Target | None = Field(
        default=None,
        description="A function, `package.module:name`, that returns the entry's argument "
        "`context`. It is called once per rank and case, with keyword arguments by name as for "
        "the entry.",
        examples=["mypkg.distributed:create_context"],
    )
    constraints: tuple[ConstraintDecl, ...] = Field(
        default=(),
        description="Conditions that every case of the matrix satisfies: "
        "`{require: EXPR, because: TEXT}`, with `when: EXPR` for some cases, or an expression.",
        examples=[
            [
                {"require": "window is none or causal", "because": "a window is causal"},
                "groups != 1 or not causal",
            ]
        ],
    )
    extra_cases: tuple[CaseValues, ...] = Field(
        default=(),
        description="Further cases, which run in every tier. Axes left out take their first value.",
        examples=[[{"head_dim": 256, "causal": True}]],
    )
    tiers: Annotated[dict[Name, Tier], AfterValidator(with_default_tiers)] = Field(
        default={},
        validate_default=True,
        description="Named ways to pick cases. Those left out of `quick`, `nightly`, `full`, "
        "`smoke` and `each` are pairwise, 3-wise, product, first and 1-wise.",
        examples=[{"quick": "pairwise", "nightly": {"strategy": "sample", "size": 500}}],
    )
    tolerance: Tolerance = Field(
        default=Tolerance(),
        description="The tolerances of results, relative to the error of the reference.",
        examples=[{"default": {"factor": 2}, "dq": {"factor": 3}}],
    )
    checks: Checks = Field(
        default=CHECKS,
        description="The checks of each case, by name, or all `without` some. By default all; "
        "`sanitizers` runs on the interpreter only.",
        examples=[["numeric", "gradients"], {"without": ["propagation"]}],
    )
    relations: tuple[RelationDecl, ...] = Field(
        default=(),
        description="Metamorphic relations for the check `relations`, which need no reference. All "
        "relations of the problem are checked, unless some of them are named here.",
        examples=[["finite", "mypkg.relations:shift_invariant"]],
    )
    agree: tuple[Agreement, ...] = Field(
        default=(),
        description="Other implementations for the check `agreement`: variants, entries or "
        "backends that must give the same results.",
        examples=[[{"set": {"backward": "split"}}, {"entry": "mypkg.other:attention"}]],
    )
    sanitizers: SanitizerOptions = Field(
        default=SanitizerOptions(),
        description="Options of the check `sanitizers`.",
        examples=[{"without": ["fragments"], "sequences": {"dk_sum": "cu_seqlens_k"}}],
    )
    propagation: Literal["exact", "packed", "selected"] | None = Field(
        default=None,
        description="How far a NaN or an infinity must spread in the check `propagation`. "
        "`exact`: to all results that depend on it, and at most where the reference multiplies "
        "it. `packed`: it may also reach rows of other sequences, for kernels whose tiles cross "
        "the end of a sequence and multiply rows of the next one by 0. `selected`: it may also "
        "vanish, for kernels that select values (a maximum, the largest k, a clamp). By default "
        "both `packed` and `selected`: only other heads, columns and tensors must not change.",
        examples=["packed"],
    )
    strict_autograd: bool = Field(
        default=False,
        description="Whether the entry must guard against uses of its gradients that most kernels "
        "leave unguarded: a second derivative is right or refused, as with PyTorch's "
        "`once_differentiable`, and integer inputs that are changed in place before the backward "
        "pass have no effect or are refused, as with `save_for_backward`.",
        examples=[True],
    )
    determinism: Annotated[tuple[DeterminismRule, ...], BeforeValidator(determinism_rules)] = Field(
        default=(),
        description="How closely two runs must match: the first matching rule applies, by default "
        "bitwise. `bounded` alone is short for one rule for all cases.",
        examples=[[{"when": "backward == 'atomic'", "mode": "bounded"}], "bounded"],
        json_schema_extra=lambda schema: add_short_form(schema, {"enum": ["bitwise", "bounded"]}),
    )
    cuda_graph: Annotated[
        CudaGraph | None, BeforeValidator(lambda value: None if value is False else value)
    ] = Field(
        default=None,
        description="Whether a call of the entry can be captured to a CUDA graph. The check "
        "`repeat` then captures it once and replays it with other data, between calls that are "
        "not captured, on simulated ranks and on GPUs. For specs with the axis `world`.",
        examples=[True, {"when": "not causal"}],
    )
    codegen: tuple[CodegenRule, ...] = Field(
        default=(),
        description="Expectations of the machine code of kernels, checked by the backend "
        "`compile`. By default kernels must compile and fit the architecture's memories.",
        examples=[
            [{"when": "arch == 'sm_90a'", "kernel": "dense_forward", "spills": 0}],
            [{"instructions": ["tcgen05.mma"], "tensor_memory": 256}],
        ],
    )
    prove: Prove = Field(
        default=Prove(),
        description="What `tlmatrix prove` must prove of the kernels, for all sizes.",
        examples=[{"properties": ["races", "coverage"], "given": {"splits <= 128": "refused"}}],
    )
    tile: dict[Identifier, TileSize] = Field(
        default={},
        description="Tile sizes of the kernel by dimension, for reports and fuzzing: whole "
        "numbers, or expressions.",
        examples=[{"q": 64, "k": 64}],
    )
    fuzz: Fuzz | None = Field(
        default=None,
        description="Random cases, generated by Hypothesis.",
        examples=[{"seqlens": {"length": "0..300"}, "examples": {"quick": 20}}],
    )
    invalid_inputs: Annotated[tuple[InvalidInputs, ...], BeforeValidator(tables_of)] = Field(
        default=(),
        description="Invalid-argument tests: a table of words of error messages, each with the "
        "settings that must raise ValueError with these words. For another exception: "
        "`{raises: TypeError, messages: …}`; several tables form a list.",
        examples=[
            {
                "groups must be at least 1": {"groups": 0},
                "_ must be float16": [{"q": {"dtype": "float32"}}, {"k": {"dtype": "int32"}}],
            },
            {"raises": "TypeError", "messages": {"window": {"window": "wide"}}},
        ],
        json_schema_extra=allow_single_entry,
    )
    known_bugs: tuple[KnownBug, ...] = Field(
        default=(),
        description="Cases that are expected to fail, each with an issue and an expiry date.",
        examples=[[{"when": "head_dim == 256", "issue": "#12", "expires": date(2027, 3, 1)}]],
    )
    regressions: tuple[Regression, ...] = Field(
        default=(),
        description="Cases that once failed, which run first in every tier. `tlmatrix fuzz --save` "
        "adds to them, `tlmatrix replay` reports the fixed ones.",
        examples=[
            [{"seqlens": {"q": [0, 5], "k": [7, 0]}}],
            [{"case": {"head_dim": 96}, "failed": "dq is NaN", "issue": "#12"}],
        ],
    )
    bench: Bench | None = Field(
        default=None,
        description="Cases and baselines of `tlmatrix bench`.",
        examples=[{"cases": [{"head_dim": 128}], "baselines": ["sdpa_flash"]}],
    )

    _path: Path = PrivateAttr(default=Path("<spec>"))
    _document: Document | None = PrivateAttr(default=None)

    @property
    def results(self) -> tuple[str, ...]:
        """The outputs named by `returns` and the buffers of `call`; empty without `returns`."""
        named = results_of(self.returns)
        return tuple(dict.fromkeys((*named, *written_by(self.call, named)))) if named else ()

    @property
    def path(self) -> Path:
        """The file that the spec was loaded from."""
        return self._path

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Whether the values of all axes satisfy the constraints.

        Raises:
            ExpressionError: a constraint has no value for them.
        """
        return all(rule.expression.evaluate(values) for rule in self.constraints)

    def location(self, *path: str | int) -> tuple[int, int]:
        """Line and column, from 1, of the value at a path of keys and indices.

        `spec.location("axes", "seqlens", 1)`. A path that the file lacks has the location of its
        nearest parent; a spec made in Python has (1, 1).
        """
        return (1, 1) if self._document is None else self._document.location(*path)

    def key_location(self, *path: str | int) -> tuple[int, int]:
        """Line and column of the key of the value at a path; of the value for a list entry."""
        return (1, 1) if self._document is None else self._document.location(*path, at_key=True)

    def issue(self, path: tuple[str | int, ...], message: str) -> Issue:
        """An issue at the location of the value at a path."""
        return Issue(self.path, *self.location(*path), message)


def has_ranks(spec: Spec) -> bool:
    """Whether the entry of a spec runs on several ranks: the spec has the axis `world`."""
    return WORLD in spec.axes
