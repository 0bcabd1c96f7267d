"""Loading the example specs, attribute by attribute."""

from datetime import date

import pytest
from design_examples import FACTORY, NORM, VARLEN

from tlmatrix.spec import Expression, SpecError, load_spec, parse_spec
from tlmatrix.spec.model.checks import invalid_inputs_of
from tlmatrix.spec.model.spec import (
    CHECKS,
    Allowance,
    Bench,
    ConstraintDecl,
    DeclaredProblem,
    DeterminismRule,
    Fuzz,
    FuzzAxis,
    FuzzLengths,
    InvalidInputs,
    KnownBug,
    OutputDecl,
    Range,
    Reference,
    Tier,
)


@pytest.fixture
def varlen(tmp_path):
    path = tmp_path / "gqa_varlen.yaml"
    path.write_text(VARLEN)
    return load_spec(path)


def test_packed_attention_spec_loads_with_all_attributes(varlen, tmp_path):
    spec = varlen
    assert spec.path == tmp_path / "gqa_varlen.yaml"
    assert spec.name == "gqa_varlen"
    assert spec.summary.startswith("Grouped-query flash attention")
    assert (spec.problem, spec.entry) == (
        "attention",
        "tlmatrix_kernels.attention:varlen_attention",
    )
    assert (spec.factory, spec.factory_args, spec.call, spec.returns) == (None, {}, (), ())
    assert list(spec.axes) == [
        *("dtype", "kv_heads", "groups", "head_dim", "head_dim_v"),
        *("causal", "window", "backward", "seqlens"),
    ]
    assert spec.axes["causal"] == (False, True)
    assert spec.axes["window"] == (None, 1, 63, 64, 200)
    assert spec.axes["head_dim_v"] == ("same", 128)
    assert spec.axes["seqlens"] == (
        {"q": [17, 64, 1], "k": "same"},
        {"q": [128, 129, 127], "k": [256, 1, 64]},
        {"q": [0, 5], "k": [7, 0]},
    )
    rule = ConstraintDecl(
        require=Expression("window is none or causal"), because="a window is causal by definition"
    )
    assert spec.constraints == (rule,)
    assert {spec.constraints[0]: 3}[rule] == 3  # rules are hashable: counts are kept by rule
    assert spec.extra_cases == ()
    assert spec.tiers == {
        "quick": Tier(strategy="pairwise"),
        "nightly": Tier(strategy="3-wise"),
        "full": Tier(strategy="product"),
        "smoke": Tier(strategy="first"),
        "each": Tier(strategy="1-wise"),
    }
    assert spec.checks == (*CHECKS[:4], "isolation", "determinism", "relations")
    assert (spec.determinism, spec.tile, spec.regressions) == ((), {}, ())
    assert spec.fuzz == Fuzz(
        seqlens=FuzzLengths(
            sequences=Range(low=1, high=8),
            length=Range(low=0, high=300),
            around=(64, 128),
            k="independent",
        ),
        examples={"quick": 20, "nightly": 500},
    )
    assert spec.invalid_inputs == (InvalidInputs(messages={"groups must be": {"groups": 0}}),)
    (invalid,) = invalid_inputs_of(spec.invalid_inputs)
    assert (invalid.settings, invalid.raises) == ({"groups": 0}, "ValueError")
    assert spec.known_bugs == (
        KnownBug(
            when=Expression("head_dim == 256 and arch == 'sm_80'"),
            issue="#12",
            expires=date(2027, 3, 1),
            mode="tolerate",
        ),
    )
    assert spec.bench == Bench(
        cases=({"seqlens": {"q": [4096, 4096], "k": "same"}, "head_dim": 128, "causal": True},),
        baselines=("sdpa_cudnn", "sdpa_flash"),
    )
    assert spec.location("axes", "seqlens", 1) == (18, 7)
    assert spec.key_location("axes", "window") == (14, 3)
    assert spec.location("bench", "cases", 0, "head_dim") == (47, 59)


def test_the_most_specific_tolerance_wins(varlen):
    tolerance = varlen.tolerance
    assert tolerance.for_tensor("out", "sm_90") == Allowance(factor=2)
    assert tolerance.for_tensor("dq", "sm_90") == Allowance(factor=3)
    assert tolerance.for_tensor("dq", "sm_100") == Allowance(factor=4)
    assert tolerance.for_tensor("out", "sm_100").floor == "auto"

    written = """
tolerance:
  default: {floor: 1e-6}
  dq: {factor: 3}
  by_arch:
    sm_80: {default: {factor: 5}, dq: {factor: 6, floor: auto}}
"""
    tolerance = parse_spec(FACTORY + written).tolerance
    assert tolerance.for_tensor("out", "sm_90") == Allowance(factor=2, floor=1e-6)
    assert tolerance.for_tensor("dq", "sm_90") == Allowance(factor=3, floor=1e-6)
    assert tolerance.for_tensor("out", "sm_80") == Allowance(factor=5, floor=1e-6)
    assert tolerance.for_tensor("dq", "sm_80") == Allowance(factor=6, floor="auto")
    assert list(tolerance.tensors) == ["dq"]


def test_the_default_tolerance_factor_is_two():
    allowance = parse_spec(NORM).tolerance.for_tensor("y", "interpreter")
    assert (allowance.mode, allowance.factor, allowance.floor) == ("reference_relative", 2, "auto")


def test_declared_problem_loads_with_all_attributes():
    spec = parse_spec(NORM)
    problem = spec.problem
    assert isinstance(problem, DeclaredProblem)
    assert list(problem.inputs) == ["x", "w"]
    x = problem.inputs["x"]
    assert (x.shape, x.dtype) == ((Expression("rows"), Expression("cols")), "$dtype")
    assert (x.grad, x.fill) == (True, None)
    assert (problem.outputs, problem.output_names) == (("y",), ("y",))
    assert problem.reference == Reference(function="mypkg.reference:rms_norm")
    assert problem.tensors == {"y", "dx", "dw"}
    assert (spec.entry, spec.factory) == (None, "mypkg.kernels:rms_norm_kernel")
    assert spec.factory_args == {"M": "rows", "N": "cols", "blk_m": 64}
    assert spec.call == ("x", "w")
    assert spec.checks == CHECKS


def test_outputs_may_have_shape_dtype_and_dims():
    output = "{y: {shape: [2 * rows, 3], dtype: float32, dims: [row, part]}, z: {}}"
    problem = parse_spec(NORM.replace("[y]", output)).problem
    assert isinstance(problem, DeclaredProblem)
    assert problem.outputs == {
        "y": OutputDecl(shape=("2 * rows", 3), dtype="float32", dims=("row", "part")),
        "z": OutputDecl(),
    }
    assert problem.output_names == ("y", "z")


def test_factory_spec_loads_with_its_arguments():
    spec = parse_spec(FACTORY)
    assert spec.factory_args == {
        "batch": "batch",
        "heads": "heads",
        "seq_len": "seqlen_q",
        "dim": "head_dim",
        "is_causal": "causal",
        "groups": "groups",
        "block_M": 64,
        "block_N": 64,
    }
    assert (spec.call, spec.returns) == (("q", "k", "v"), ("out",))


def test_short_forms_equal_their_long_forms():
    short = parse_spec(
        FACTORY.replace("seq_len: seqlen_q, ", "").replace(
            "seqlen_q: [1, 64, 200]", "seqlens: [[7]], window: [1]"
        )
        + """
tiers: {quick: sample-less, nightly: 4-wise}
determinism: bounded
fuzz: {seqlens: {sequences: [1, 3], length: 7}, axes: {window: 1..9}}
""".replace("sample-less", "first")
    )
    assert short.tiers["quick"] == Tier(strategy="first")
    assert short.tiers["full"] == Tier(strategy="product")
    assert short.determinism == (DeterminismRule(when=Expression("true"), mode="bounded"),)
    assert short.fuzz is not None
    assert short.fuzz.seqlens.sequences == Range(low=1, high=3)
    assert short.fuzz.seqlens.length == Range(low=7, high=7)
    assert short.fuzz.axes == {"window": FuzzAxis(range=Range(low=1, high=9))}


@pytest.mark.parametrize(
    ("strategy", "strength"),
    [("pairwise", 2), ("2-wise", 2), ("5-wise", 5), ("product", None), ("sample", None)],
)
def test_strategy_has_its_strength(strategy, strength):
    assert Tier(strategy=strategy).strength == strength


def test_a_spec_is_frozen(varlen):
    for model, key in (
        (varlen, "name"),
        (varlen.constraints[0], "because"),
        (varlen.tolerance, "dq"),
    ):
        with pytest.raises(ValueError, match="frozen"):
            setattr(model, key, None)


def test_checks_without_some_are_all_others():
    text = "name: a\nproblem: gemm\nentry: m:f\naxes: {dtype: [float16]}\n"
    spec = parse_spec(text + "checks: {without: [propagation, numeric]}\n")
    assert spec.checks == tuple(each for each in CHECKS if each not in ("propagation", "numeric"))
    with pytest.raises(SpecError, match=r"5:9: 'checks' must leave at least one check"):
        parse_spec(text + f"checks: {{without: [{', '.join(CHECKS)}]}}\n")
