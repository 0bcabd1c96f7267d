"""What a spec says, as frozen models: the one place that defines the keys of the language.

The loader checks files with these models, the JSON Schema for editors and
`docs/reference/spec-keys.md` are generated from them, so a key's meaning, default and examples are
written here and nowhere else.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from tlmatrix.spec.model.codegen import CodegenRule
from tlmatrix.spec.model.fields import (
    CHECKS,
    FAMILIES,
    Argument,
    AxisValue,
    CaseValues,
    CheckName,
    FamilyName,
    Identifier,
    Model,
    Name,
    Target,
    TargetArch,
    TileSize,
    also_its_entry,
    also_one_of,
)
from tlmatrix.spec.model.fuzz import Fuzz, FuzzAxis, FuzzLengths, FuzzTrace, Range
from tlmatrix.spec.model.graphs import CudaGraph, Refusal
from tlmatrix.spec.model.invalid_inputs import InvalidInputs, tables_of
from tlmatrix.spec.model.parts import (
    Bench,
    ConstraintDecl,
    DeclaredProblem,
    InputDecl,
    KnownBug,
    OutputDecl,
    Tier,
    with_default_tiers,
)
from tlmatrix.spec.model.regressions import Regression, Retired
from tlmatrix.spec.model.relations import Agreement, RelationDecl
from tlmatrix.spec.model.sanitizers import PackedRows, SanitizerOptions
from tlmatrix.spec.model.sharding import WORLD, Shard
from tlmatrix.spec.model.tolerance import (
    Allowance,
    AllowanceChange,
    DeterminismRule,
    Tolerance,
    determinism_rules,
)

if TYPE_CHECKING:
    from tlmatrix.spec.yaml.nodes import Document

__all__ = [
    "CHECKS",
    "FAMILIES",
    "Agreement",
    "Allowance",
    "AllowanceChange",
    "Bench",
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
    "Range",
    "Reference",
    "Refusal",
    "Regression",
    "RelationDecl",
    "Retired",
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
        description="What the spec is called in results and on the command line.",
        examples=["gqa_varlen"],
    )
    summary: str = Field(
        default="",
        description="One sentence for people.",
        examples=["Grouped-query flash attention over packed sequences."],
    )
    problem: Annotated[
        Annotated[FamilyName, Tag("<name>")] | Annotated[DeclaredProblem, Tag("<mapping>")],
        Discriminator(lambda value: "<name>" if isinstance(value, str) else "<mapping>"),
    ] = Field(
        description="What is computed: `attention`, `gemm`, `collective`, a class of your own "
        "(`package.module:Class`), or a mapping that declares inputs, outputs and reference.",
        examples=["attention", "mypkg.problems:MyProblem"],
    )
    entry: Target | None = Field(
        default=None,
        description="The callable under test, `package.module:name`: a function, `Class.apply` of "
        "a `torch.autograd.Function`, an `nn.Module` class, or an operator of `torch.library` "
        "(`package.module:torch.ops.ns.name`, by a module that registers it). It is called with "
        "keyword arguments matched by its parameters' names, or as `call` says. A spec has an "
        "entry or a factory.",
        examples=["tlmatrix_kernels.attention:varlen_attention", "mypkg.ops:RMSNorm.apply"],
    )
    constructor_args: dict[Identifier, Argument] = Field(
        default={},
        description="Arguments that the `nn.Module` class in `entry` is constructed with: "
        "expressions over the axes. By default axes matched by the constructor's parameters. The "
        "module's parameters are inputs of the problem (`proj.weight` is `proj_weight`).",
        examples=[{"in_features": "cols", "bias": False}],
    )
    factory: Target | None = Field(
        default=None,
        description="A TileLang kernel factory, tested as it stands: `@tilelang.jit`, or a "
        "function that returns a PrimFunc.",
        examples=["mypkg.kernels:rms_norm_kernel"],
    )
    factory_args: dict[Identifier, Argument] = Field(
        default={},
        description="Keyword arguments of the factory. Text is an expression over the problem's "
        "names; names of dtypes are constants in it, other text is quoted within it "
        "(`\"'mean'\"`).",
        examples=[{"M": "rows", "N": "cols", "blk_m": 64, "dtype": "float16"}],
    )
    call: Call = Field(
        default=(),
        description="What the entry, or the factory's kernel, is called with: a list by position, "
        "or a mapping by keyword. Text is a name of the problem, or an expression over its names "
        "(quote text within it: `\"'mean'\"`). An output is a buffer that the caller allocates and "
        "the call writes: `{output: y, fill: zeros}`, or its bare name; `{inout: x, output: y}` "
        "passes a copy of x, which holds y afterwards.",
        examples=[
            ["q", "k", "v"],
            ["x", "cu_seqlens", "max(seqlens)"],
            {"input": "x", "eps": 1.0e-5, "out": {"output": "y", "fill": "empty"}},
            [{"inout": "x", "output": "y"}, "w"],
        ],
    )
    returns: Returns = Field(
        default=(),
        description="Which of the problem's outputs come back: a list in order (`_` skips a "
        "result), or a mapping from outputs to paths of keys, indices and attributes in the "
        "result. A name that `call` has too is a buffer. By default the first outputs, as many "
        "as are returned.",
        examples=[["out", "lse"], ["y", "_"], {"y": "out", "lse": "aux.1"}],
    )
    architectures: tuple[TargetArch, ...] = Field(
        default=(),
        min_length=1,
        description="The architectures that the kernels are written for; by default any. The "
        "interpreter traces for the first, `compile` assembles for each, and a GPU of another "
        "architecture skips the cases.",
        examples=[["sm_100a"], ["sm_80", "sm_90a", "sm_100a"]],
    )
    axes: dict[Identifier, tuple[AxisValue, ...]] = Field(
        min_length=1,
        description="The dimensions of the matrix. Values are numbers, text, true, false, `none` "
        "(absent), lists or mappings.",
        examples=[{"dtype": ["float16", "bfloat16"], "head_dim": [64, 96], "window": [None, 64]}],
    )
    shards: dict[Identifier, Shard] = Field(
        default={},
        description="Where the spec has the axis `world`, a number of ranks that all call the "
        "entry: how its tensors are shared out among them. Those left out every rank has whole.",
        examples=[{"a": {"dim": 0}, "b": {"dim": 1}, "c": {"dim": 1}}],
    )
    context: Target | None = Field(
        default=None,
        description="What makes the entry's argument `context`, `package.module:name`: called "
        "once a rank and case, with keyword arguments matched as the entry's are, and kept for "
        "all calls of the case.",
        examples=["mypkg.distributed:create_context"],
    )
    constraints: tuple[ConstraintDecl, ...] = Field(
        default=(),
        description="What every case of the matrix satisfies: `{require: EXPR, because: TEXT}`, "
        "with `when: EXPR` for some cases alone, or the expression by itself.",
        examples=[
            [
                {"require": "window is none or causal", "because": "a window is causal"},
                "groups != 1 or not causal",
            ]
        ],
    )
    extra_cases: tuple[CaseValues, ...] = Field(
        default=(),
        description="Cases beside those of the matrix, run in every tier. Axes left out take their "
        "first value.",
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
        description="How far results may lie from the reference: never an absolute number alone.",
        examples=[{"default": {"factor": 2}, "dq": {"factor": 3}}],
    )
    checks: tuple[CheckName, ...] = Field(
        default=CHECKS,
        min_length=1,
        description="The oracles that judge a case. By default all; `sanitizers` is made where "
        "kernels are interpreted.",
        examples=[["numeric", "gradients"]],
    )
    relations: tuple[RelationDecl, ...] = Field(
        default=(),
        description="What must hold of the results without any reference, for the check "
        "`relations`. The problem's own are checked anyway, unless some of them are named here.",
        examples=[["finite", "mypkg.relations:shift_invariant"]],
    )
    agree: tuple[Agreement, ...] = Field(
        default=(),
        description="Other ways to the same results, for the check `agreement`: variants, entries "
        "or backends that must agree.",
        examples=[[{"set": {"backward": "split"}}, {"entry": "mypkg.other:attention"}]],
    )
    sanitizers: SanitizerOptions = Field(
        default=SanitizerOptions(),
        description="How the check `sanitizers` watches the kernels.",
        examples=[{"without": ["fragments"], "sequences": {"dk_sum": "cu_seqlens_k"}}],
    )
    determinism: Annotated[tuple[DeterminismRule, ...], BeforeValidator(determinism_rules)] = Field(
        default=(),
        description="How alike two runs must be; the first rule that holds decides, and where "
        "none does, bitwise. `bounded` alone is short for one rule that always holds.",
        examples=[[{"when": "backward == 'atomic'", "mode": "bounded"}], "bounded"],
        json_schema_extra=lambda schema: also_one_of(schema, {"enum": ["bitwise", "bounded"]}),
    )
    cuda_graph: Annotated[
        CudaGraph | None, BeforeValidator(lambda value: None if value is False else value)
    ] = Field(
        default=None,
        description="Whether a call of the entry may be captured to a CUDA graph: then, in the "
        "check `repeat`, it is captured once and replayed with other data, calls that are not "
        "captured in between, on simulated ranks as on GPUs. For specs with the axis `world`.",
        examples=[True, {"when": "not causal"}],
    )
    codegen: tuple[CodegenRule, ...] = Field(
        default=(),
        description="Expectations of the machine code of kernels, checked by the backend "
        "`compile`. Without any, kernels must compile and fit the architecture's memories.",
        examples=[
            [{"when": "arch == 'sm_90a'", "kernel": "dense_forward", "spills": 0}],
            [{"instructions": ["tcgen05.mma"], "tensor_memory": 256}],
        ],
    )
    tile: dict[Identifier, TileSize] = Field(
        default={},
        description="Edges of the kernel's tiles, by dimension, for reports and fuzzing: whole "
        "numbers, or expressions.",
        examples=[{"q": 64, "k": 64}],
    )
    fuzz: Fuzz | None = Field(
        default=None,
        description="Random cases, made by Hypothesis.",
        examples=[{"seqlens": {"length": "0..300"}, "examples": {"quick": 20}}],
    )
    invalid_inputs: Annotated[tuple[InvalidInputs, ...], BeforeValidator(tables_of)] = Field(
        default=(),
        description="Invalid-argument tests: a table of words of error messages, each with the "
        "settings that must raise ValueError with these words. For another exception a table is "
        "`{raises: TypeError, messages: …}`; several tables are a list.",
        examples=[
            {
                "groups must be at least 1": {"groups": 0},
                "_ must be float16": [{"q": {"dtype": "float32"}}, {"k": {"dtype": "int32"}}],
            },
            {"raises": "TypeError", "messages": {"window": {"window": "wide"}}},
        ],
        json_schema_extra=also_its_entry,
    )
    known_bugs: tuple[KnownBug, ...] = Field(
        default=(),
        description="Cases that are expected to fail, where each bug is tracked, and until when.",
        examples=[[{"when": "head_dim == 256", "issue": "#12", "expires": date(2027, 3, 1)}]],
    )
    regressions: tuple[Regression, ...] = Field(
        default=(),
        description="Cases that once failed, run first in every tier. `tlmatrix fuzz --save` adds "
        "to them, `tlmatrix replay` says which are fixed.",
        examples=[
            [{"seqlens": {"q": [0, 5], "k": [7, 0]}}],
            [{"case": {"head_dim": 96}, "failed": "dq is NaN", "issue": "#12"}],
        ],
    )
    retired: tuple[Retired, ...] = Field(
        default=(),
        description="Regressions that no longer run, each with a reason. `tlmatrix replay "
        "--retire` moves them here.",
        examples=[
            [{"case": {"head_dim": 96}, "because": "no such kernel", "date": date(2027, 3, 1)}]
        ],
    )
    bench: Bench | None = Field(
        default=None,
        description="What `tlmatrix bench` times.",
        examples=[{"cases": [{"head_dim": 128}], "baselines": ["sdpa_flash"]}],
    )

    _path: Path = PrivateAttr(default=Path("<spec>"))
    _document: Document | None = PrivateAttr(default=None)

    @property
    def results(self) -> tuple[str, ...]:
        """The outputs that `returns` and the buffers of `call` name; none where they say nothing.

        Without `returns`, results that come back beside the buffers have no name here.
        """
        named = results_of(self.returns)
        return tuple(dict.fromkeys((*named, *written_by(self.call, named)))) if named else ()

    @property
    def path(self) -> Path:
        """The file the spec was read from."""
        return self._path

    def location(self, *path: str | int) -> tuple[int, int]:
        """Line and column, from 1, of the value at a path of keys and indices.

        `spec.location("axes", "seqlens", 1)`. A part that the file does not have leads to the
        nearest place around it; a spec made in Python is all at (1, 1).
        """
        if self._document is None:
            return (1, 1)
        node, _ = self._document.find(*path)
        return (node.line, node.column)

    def key_location(self, *path: str | int) -> tuple[int, int]:
        """Line and column of the key that leads to the value at a path, or of the value."""
        if self._document is None:
            return (1, 1)
        node, entry = self._document.find(*path)
        place = entry or node
        return (place.line, place.column)

    def issue(self, path: tuple[str | int, ...], message: str) -> Issue:
        """Something wrong with the value at a path, at its place in the file."""
        return Issue(self.path, *self.location(*path), message)


def has_ranks(spec: Spec) -> bool:
    """Whether the entry of a spec runs on several ranks: the spec has the axis `world`."""
    return WORLD in spec.axes
