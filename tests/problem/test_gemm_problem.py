"""The gemm family against NumPy in float64, and its relations."""

import itertools

import numpy as np
import pytest
import torch
from problem_cases import CPU, make_spec

from spec_results import results_of
from tlmatrix.check.tolerance import error_bound
from tlmatrix.interpreter.ops.gemm import FLOAT8_BITS, gemm_float8
from tlmatrix.problem import family_for
from tlmatrix.spec.model.spec import Allowance

FLAGS = {"transpose_a": [False, True], "transpose_b": [False, True]}


def make(values, *, seed=1, **fields):
    base = {"m": 5, "n": 4, "k": 7, "dtype": "float16", "values": "normal", **values}
    fields["axes"] = {axis: [value] for axis, value in base.items()} | fields.get("axes", {})
    spec = make_spec("gemm", **fields)
    return family_for(spec).problem(spec, base, seed=seed, device=CPU)


@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "accumulate"), list(itertools.product([False, True], repeat=3))
)
@pytest.mark.parametrize("sizes", [(5, 4, 7), (1, 1, 1), (3, 2, 0), (0, 2, 3)])
def test_reference_equals_the_numpy_product(sizes, transpose_a, transpose_b, accumulate):
    m, n, k = sizes
    problem = make({
        "m": m, "n": n, "k": k, "transpose_a": transpose_a, "transpose_b": transpose_b,
        "accumulate": accumulate,
    })  # fmt: skip
    names = problem.names
    assert names["a"].shape == ((k, m) if transpose_a else (m, k))
    assert names["b"].shape == ((n, k) if transpose_b else (k, n))
    a, b = (names[name].double().numpy() for name in ("a", "b"))
    expected = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
    if accumulate:
        expected = expected + names["c"].double().numpy()
    assert ("c" in names) == ("c" in problem.inputs) == accumulate
    torch.testing.assert_close(
        problem.reference()["c"], torch.from_numpy(expected), rtol=1e-13, atol=1e-13
    )
    assert problem.outputs["c"].shape == (m, n)


_ADDED = """
name: added
problem: gemm
entry: gemm_problem_code:ENTRY
axes: {dtype: [float16, bfloat16], m: [5], n: [9], k: [40], accumulate: [true]}
returns: [c]
checks: [numeric, relations]
"""
CODE = """
def once(a, b, c):
    return (a.float() @ b.float() + c.float()).to(c.dtype)


def twice(a, b, c):
    return (a.float() @ b.float()).to(c.dtype) + c
"""


@pytest.mark.parametrize("entry", ["once", "twice"])
def test_a_product_that_is_rounded_before_the_addend_is_added(code_folder, entry):
    for result in results_of(_ADDED.replace("ENTRY", entry), code_folder / "added.yaml"):
        assert bool(result.findings) == (entry == "twice")
        for finding in result.findings:
            assert finding.title.startswith("addend_opposed: c: ")


@pytest.mark.parametrize(("dtype", "out"), [("float16", "float32"), ("bfloat16", None)])
def test_lowp_sums_in_float32_and_rounds_once(dtype, out):
    problem = make({"dtype": dtype, "out_dtype": out, "k": 500})
    info, exact = problem.outputs["c"], problem.reference()["c"]
    low = problem.lowp()["c"]
    assert low.dtype == info.dtype == getattr(torch, out or dtype)
    error = (low.double() - exact).abs()
    assert (error <= info.roundoff * exact.abs() + 4 * 2.0**-24 * info.magnitude()).all()
    assert (error > 0).any()
    assert (exact.abs() <= info.magnitude()).all()
    assert info.spread().shape == exact.shape


def test_names_and_tiles_of_a_problem():
    problem = make({"out_dtype": "float32"}, tile={"m": 2, "n": "k"})
    assert problem.names["out_dtype"] is torch.float32
    assert [dim.tile for dim in problem.outputs["c"].dims] == [2, 7]
    assert problem.outputs["c"].dims[0].describe(3) == {"m": 3, "m_tile": 1}
    assert problem.cost().flops == 2 * 5 * 4 * 7
    assert problem.cost().bytes == 2 * (5 * 7 + 7 * 4) + 4 * 5 * 4


@pytest.mark.parametrize(
    "flags",
    [dict(zip(FLAGS, each, strict=True)) for each in itertools.product([False, True], repeat=2)],
)
@pytest.mark.parametrize("accumulate", [False, True])
def test_relations_hold_for_the_reference(flags, accumulate):
    problem = make({**flags, "accumulate": accumulate}, axes=FLAGS)
    seen = []
    for kind in ("isolation", "poison", "relations", "repeat"):
        for relation in problem.relations(kind):
            seen.append(relation.name)
            mine = relation.left(problem.reference())
            other = relation.right([each.reference() for each in relation.problems])
            for name in mine:
                torch.testing.assert_close(other[name], mine[name], rtol=1e-12, atol=1e-12)
            for each in relation.problems:
                assert each.names["m"] == each.outputs["c"].shape[0]
    assert seen == [
        "isolation_row", "isolation_column", "poison_row", "poison_column", "rows_permuted",
        *(["addend_opposed"] if accumulate else []), "transposed", "repeat",
    ]  # fmt: skip


def test_transposed_needs_transposes_in_the_spec():
    assert "transposed" not in [each.name for each in make({}).relations("relations")]


def test_compile_key_of_an_entry_ignores_sizes():
    spec = make_spec("gemm")
    key = family_for(spec).compile_key
    base = {"m": 1, "n": 2, "k": 3, "dtype": "float16"}
    assert key(spec, base) == key(spec, {**base, "m": 9, "k": 5, "values": "ramp"})
    assert key(spec, base) != key(spec, {**base, "dtype": "bfloat16"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m": -1}, "m: -1 is not"),
        ({"dtype": None}, "unknown dtype None"),
        ({"transpose_a": 1}, "true or false"),
    ],
)
def test_invalid_values_are_errors(change, words):
    with pytest.raises(ValueError, match=words):
        make(change)


# Operands of dtypes of their own ------------------------------------------------------------


def mixed(change, **fields):
    base = {"m": 5, "n": 4, "k": 7, "values": "normal", **change}
    fields["axes"] = {axis: [value] for axis, value in base.items()} | fields.get("axes", {})
    spec = make_spec("gemm", **fields)
    return family_for(spec).problem(spec, base, seed=1, device=CPU)


def test_mixed_dtypes_and_column_scales():
    problem = mixed({"a_dtype": "bfloat16", "b_dtype": "int8", "scaled": True, "k": 90})
    a, b, scale = (problem.inputs[name] for name in ("a", "b", "scale"))
    assert (a.dtype, b.dtype, scale.dtype) == (torch.bfloat16, torch.int8, torch.float32)
    assert scale.shape == (4,)
    assert b.min() < -100
    assert b.max() > 100, "all that 8 bits hold"
    exact = a.double() @ b.double() * scale.double()
    torch.testing.assert_close(problem.reference()["c"], exact, rtol=1e-13, atol=1e-13)
    assert problem.outputs["c"].dtype == torch.bfloat16, "that of a"
    assert problem.names["a_dtype"] is torch.bfloat16
    assert problem.names["b_dtype"] is torch.int8
    assert problem.cost().bytes == 2 * 5 * 90 + 90 * 4 + 4 * 4 + 2 * 5 * 4


def test_integer_products_are_exact():
    problem = mixed({"a_dtype": "int8", "b_dtype": "int8", "out_dtype": "int32", "k": 3000})
    info, exact = problem.outputs["c"], problem.reference()["c"]
    assert torch.equal(problem.lowp()["c"].double(), exact)
    found = error_bound(info, exact, problem.lowp()["c"], Allowance(factor=2, floor="auto"))
    assert (found.element == 0).all()
    assert found.whole == 0


@pytest.mark.parametrize("transposes", [(False, False), (True, True)])
def test_int8_sums_exceed_exact_float32_integers(transposes):
    flags = dict(zip(FLAGS, transposes, strict=True))
    problem = mixed(
        {"a_dtype": "int8", "b_dtype": "int8", "out_dtype": "int32", "k": 8192, **flags}
    )
    exact = problem.reference()["c"]
    assert (exact > 2**24).all()
    for name in ("a", "b"):
        assert (problem.inputs[name] < -100).any()
        assert (problem.inputs[name] > 100).any()
    assert not torch.equal(exact.float().double(), exact)


def test_float8_tolerance_allows_truncation_in_tensor_cores():
    both = mixed({"a_dtype": "float8_e4m3fn", "b_dtype": "float8_e5m2", "out_dtype": "float32"})
    one = mixed({"a_dtype": "bfloat16", "b_dtype": "float8_e5m2", "out_dtype": "float32"})
    assert both.outputs["c"].arithmetic == 2.0**-15
    assert one.outputs["c"].arithmetic is None
    exact = both.reference()["c"]
    found = error_bound(both.outputs["c"], exact, exact.float(), Allowance(factor=2, floor="auto"))
    magnitude = both.outputs["c"].magnitude()
    assert (found.element >= 2.0**-10 * magnitude).all()
    assert (found.element <= 2.0**-8 * magnitude).all()


@pytest.mark.parametrize("values", ["normal", "ramp", "outlier_rows", "opposed"])
@pytest.mark.parametrize(
    ("k", "step", "right"), [(55, 64, True), (130, 64, True), (130, 128, False)]
)
def test_float8_on_hopper_passes_in_steps_of_64_and_fails_in_longer_ones(values, k, step, right):
    problem = mixed({
        "a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn", "out_dtype": "float32",
        "m": 65, "n": 63, "k": k, "transpose_b": True, "values": values,
    })  # fmt: skip
    a, b = (problem.inputs[name].float().numpy() for name in ("a", "b"))
    total = np.zeros((65, 63), dtype=np.float32)
    bits = FLOAT8_BITS.set(14)
    for start in range(0, k, step):
        part = np.zeros_like(total)
        gemm_float8(a[:, start : start + step], b[:, start : start + step], part, False, True, True)
        total += part
    FLOAT8_BITS.reset(bits)
    exact = problem.reference()["c"]
    allowed = error_bound(
        problem.outputs["c"], exact, exact.float(), Allowance(factor=2, floor="auto")
    )
    within = bool(((torch.from_numpy(total) - exact).abs() <= allowed.element).all())
    assert within == (right or values != "ramp")


@pytest.mark.parametrize(
    "dtypes",
    [
        {"a_dtype": "float16", "b_dtype": "int8", "scaled": True, "accumulate": True},
        {"a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn", "out_dtype": "float32"},
        {"a_dtype": "int8", "b_dtype": "int8", "out_dtype": "int32", "accumulate": True},
    ],
)
def test_relations_of_mixed_dtypes_hold_for_the_reference(dtypes):
    problem = mixed(dtypes, axes=FLAGS)
    names = []
    for kind in ("isolation", "poison", "relations", "repeat"):
        for relation in problem.relations(kind):
            names.append(relation.name)
            mine = relation.left(problem.reference())
            other = relation.right([each.reference() for each in relation.problems])
            for name in mine:
                torch.testing.assert_close(other[name], mine[name], rtol=1e-12, atol=1e-12)
    assert ("scale_doubled" in names) == bool(dtypes.get("scaled"))
    assert ("transposed" in names) != bool(dtypes.get("scaled"))


def test_transposed_needs_swapped_dtypes_in_the_spec():
    dtypes = {"a_dtype": "float16", "b_dtype": "int8", "out_dtype": "float32"}
    assert "transposed" not in [
        each.name for each in mixed(dtypes, axes=FLAGS).relations("relations")
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a_dtype": "int8"}, "gemm needs the axis dtype, or both a_dtype and b_dtype"),
        ({"dtype": "int8"}, "out_dtype: int8 cannot hold sums of int8 times int8"),
        ({"dtype": "float16", "out_dtype": "int32"}, "int32 cannot hold sums of float16"),
        ({"dtype": "float16", "b_dtype": "int3"}, "b_dtype: unknown dtype 'int3'"),
        ({"dtype": "float16", "scaled": "channel"}, "scaled: 'channel' is not true or false"),
    ],
)
def test_invalid_dtypes_are_errors(change, words):
    with pytest.raises(ValueError, match=words):
        mixed(change)


def test_partial_sums_are_rounded_if_k_is_sharded():
    rows = {"dim": "m", "uneven": "balanced"}
    k = {"dim": "k", "uneven": "balanced"}
    whole = make({"world": 3, "k": 70}, shards={"a": rows, "c": rows})
    shared = make({"world": 3, "k": 70}, shards={"a": k, "b": k, "c": rows})
    assert torch.equal(whole.names["a"], shared.names["a"])
    a, b = (shared.names[name].double() for name in "ab")
    parts = [x @ y for x, y in zip(a.tensor_split(3, 1), b.tensor_split(3), strict=True)]
    spread = sum(part**2 for part in parts).sqrt()
    torch.testing.assert_close(shared.outputs["c"].spread(), spread)
    rounded = sum(part.half().float() for part in parts).half()
    torch.testing.assert_close(shared.lowp()["c"], rounded, rtol=1e-3, atol=0)
    assert (whole.outputs["c"].spread() == 0).all()
    error = [(each.lowp()["c"].double() - a @ b).abs().sum() for each in (whole, shared)]
    assert error[0] < error[1]
    wide = make(
        {"world": 3, "k": 70},
        shards={"a": k, "b": k, "c": rows},
        tolerance={"c": {"parts": "float32"}},
    )
    assert (wide.outputs["c"].spread() == 0).all()
    assert torch.equal(wide.lowp()["c"], whole.lowp()["c"])
