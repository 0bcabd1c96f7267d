"""Errors that values rounded inside a kernel carry into its results, and no more."""

from pathlib import Path

import numpy as np
import pytest
import torch
from problem_cases import CPU, make_spec

from tlmatrix.check.diagnose import diagnose
from tlmatrix.check.numeric import deviations
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.interpreter.ops.gemm import FLOAT8_BITS, gemm_float8
from tlmatrix.problem import family_for
from tlmatrix.spec.model.spec import Tolerance

DTYPES = (torch.float16, torch.bfloat16)
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


@pytest.fixture(autouse=True)
def _references_beside(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def make(declaration, values, seed):
    spec = make_spec(declaration, axes={axis: [value] for axis, value in values.items()})
    return family_for(spec).problem(spec, values, seed=seed, device=CPU)


def wrong(problem, results):
    return deviations(results, ReferenceBounds(problem, Tolerance(), "interpreter"))


# Operands of tensor cores -------------------------------------------------------------------


def product(dtype, *, reference="weighted_product", operands=None, values="normal", seed=0):
    function = f"declared_references:{reference}"
    declaration = {
        "inputs": {
            "x": {"shape": ["L", "P"], "dtype": "$dtype"},
            "b": {"shape": ["L", "N"], "dtype": "$dtype"},
            "w": {"shape": ["L"], "dtype": "float32"},
        },
        "outputs": {"out": {"shape": ["P", "N"], "dtype": "float32"}},
        "reference": {"function": function, **({"operands": operands} if operands else {})},
    }
    sizes = {"L": (1, 7, 64, 300)[seed % 4], "P": (1, 16)[seed % 2], "N": 24}
    return make(declaration, {"dtype": str(dtype)[6:], "values": values, **sizes}, seed)


def kernel(problem, dtype, *, weighs="x", total=torch.float32, scale=1.0):
    """x * w, or b * w, rounded to `dtype` as an operand; the sum rounded to `total`."""
    x, b, w = (problem.names[name].float() for name in ("x", "b", "w"))
    x, b = (x * w[:, None], b) if weighs == "x" else (x, b * w[:, None])
    out = x.to(dtype).float().T @ b.to(dtype).float()
    return {"out": (out * scale).to(total).float()}


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
@pytest.mark.parametrize("values", ["normal", "large", "constant_rows", "outlier_rows"])
@pytest.mark.parametrize("operands", [None, "$dtype"])
def test_operands_rounded_to_the_dtype_of_inputs_are_within_the_bound(operands, dtype, values):
    for seed in range(12):
        problem = product(dtype, operands=operands, values=values, seed=seed)
        assert not wrong(problem, kernel(problem, dtype, weighs="xb"[seed % 2]))


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
def test_a_kernel_of_float32_inputs_must_not_round_them_and_the_hint_names_the_key(dtype):
    problem = product(torch.float32, seed=3)
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    found = deviations(kernel(problem, dtype), bounds)
    assert found["out"].ratio > 20
    finding = diagnose("numeric", "out", found["out"], bounds)
    assert f"write `reference: {{function: …, operands: {NAMES[dtype]}}}`" in finding.hint
    assert not wrong(product(torch.float32, operands=NAMES[dtype], seed=3), kernel(problem, dtype))


def test_hint_is_of_errors_that_operands_explain():
    problem = product(torch.float32, seed=3)
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    found = deviations(kernel(problem, torch.float16, scale=1.1), bounds)
    assert "operands" not in (diagnose("numeric", "out", found["out"], bounds).hint or "")


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
def test_operands_of_float32_keep_the_bound_of_float32(dtype):
    problem = product(dtype, operands="float32", seed=3)
    assert not wrong(problem, kernel(problem, torch.float32))
    assert wrong(problem, kernel(problem, dtype))["out"].ratio > 20


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
def test_larger_errors_than_of_rounded_operands_are_found(dtype):
    problem = product(dtype, seed=3)
    assert wrong(problem, kernel(problem, dtype, scale=1 + 16 * torch.finfo(dtype).eps))
    coarser = torch.bfloat16 if dtype == torch.float16 else torch.float8_e4m3fn
    assert wrong(problem, kernel(problem, dtype, total=coarser))


@pytest.mark.parametrize(("step", "right"), [(64, True), (128, True), (300, False)])
def test_sums_of_float8_products_may_keep_14_bits_in_steps_of_128(step, right):
    """As tensor cores of Hopper add them; longer sums of terms of one sign lose too much."""
    found = []
    for values in ("normal", "large", "constant_rows", "rising"):
        problem = product(torch.float8_e4m3fn, reference="plain_product", values=values, seed=3)
        x, b = (problem.names[name].float().numpy() for name in ("x", "b"))
        out = np.zeros((x.shape[1], b.shape[1]), dtype=np.float32)
        bits = FLOAT8_BITS.set(14)
        for start in range(0, len(x), step):
            part = np.zeros_like(out)
            rows = slice(start, start + step)
            gemm_float8(x[rows].T, b[rows], part, False, False, True)
            out += part
        FLOAT8_BITS.reset(bits)
        found.append(wrong(problem, {"out": torch.from_numpy(out)}))
    assert any(found) != right


def test_operands_that_are_inputs_do_not_widen_the_bound():
    def bound(operands):
        problem = product(torch.float16, reference="plain_product", operands=operands, seed=3)
        return ReferenceBounds(problem, Tolerance(), "interpreter").error_bound("out")

    strict, keyed = bound("float32"), bound(None)
    assert torch.allclose(strict.element, keyed.element, rtol=1e-5)
    assert torch.allclose(strict.region, keyed.region, rtol=1e-5)


def mixed(reference, dtype, values, sizes, seed, **others):
    """Inputs of 16 bits, and float32 ones beside them."""
    inputs = {
        **{name: {"shape": ["h", "n", 64], "dtype": "$dtype"} for name in "qkv"},
        **{name: {"shape": shape, "dtype": "float32"} for name, shape in others.items()},
    }
    outputs = {"out": {"dtype": "$dtype" if reference == "scaled_attention" else "float32"}}
    declaration = {"inputs": inputs, "outputs": outputs}
    declaration["reference"] = f"declared_references:{reference}"
    return make(declaration, {"dtype": NAMES[dtype], "values": values, "h": 2, **sizes}, seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
@pytest.mark.parametrize("values", ["normal", "large", "outlier_rows"])
def test_scores_of_scaled_queries_that_are_rounded_beside_a_float32_scale(dtype, values):
    for seed in range(8):
        n = (3, 16, 100, 260)[seed % 4]
        problem = mixed("scaled_attention", dtype, values, {"n": n}, seed, scale=["h"])
        q, k, v, scale = (problem.names[name].float() for name in ("q", "k", "v", "scale"))
        scores = (q * scale[:, None, None]).to(dtype).float() @ k.mT
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        out = weights.to(dtype).float() @ v / weights.sum(-1, keepdim=True)
        assert not wrong(problem, {"out": out.to(dtype)}), seed


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
def test_a_value_that_is_no_operand_in_the_reference_has_a_hint_that_helps(dtype):
    def results(reference):
        problem = mixed(reference, dtype, "normal", {"n": 32}, 3, decay=["h", "n"])
        k, v, decay = (problem.names[name].float() for name in ("k", "v", "decay"))
        left = (decay.sum(-1, keepdim=True) - decay.cumsum(-1)).exp()[..., None]
        return problem, {"out": (k * left).to(dtype).float().mT @ v}

    problem, out = results("final_state")
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    found = deviations(out, bounds)
    assert found["out"].ratio > 4
    hint = diagnose("numeric", "out", found["out"], bounds).hint
    assert f"rounding a value to {NAMES[dtype]}" in hint
    assert "`value.to(q.dtype).to(value.dtype)`" in hint
    problem, out = results("final_state_rounded")
    assert not wrong(problem, out)
    assert wrong(problem, {"out": out["out"] * (1 + 32 * torch.finfo(dtype).eps)})


# The delta of a flash backward --------------------------------------------------------------

REFERENCES = ("softmax_attention", "attention_by_hand", "fused_attention")


def attention(dtype, reference, values, seed):
    def tensor(rows):
        return {"shape": ["h", rows, 64], "dtype": "$dtype", "grad": True}

    declaration = {
        "inputs": {"q": tensor("sq"), "k": tensor("sk"), "v": tensor("sk")},
        "outputs": ["out"],
        "reference": f"declared_references:{reference}",
    }
    sizes = {"h": 2, "sq": (1, 3)[seed % 2], "sk": (1, 2, 10, 38)[seed % 4]}
    return make(declaration, {"dtype": str(dtype)[6:], "values": values, **sizes}, seed)


def flash(problem, *, stored=None, scale=1.0):
    """Gradients in float32, with delta from `out`, which is rounded to `stored` (its dtype)."""
    q, k, v, do = (problem.names[name].float() for name in ("q", "k", "v", "dout"))
    dtype = problem.names["q"].dtype
    p = (q @ k.mT / 8).softmax(-1)
    out = (p @ v).to(stored or dtype).float()
    delta = (out * do).sum(-1, keepdim=True) * scale
    ds = p * (do @ v.mT - delta) / 8
    grads = {"dq": ds @ k, "dk": ds.mT @ q, "dv": p.mT @ do}
    return {name: grad.to(dtype) for name, grad in grads.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("values", ["outlier_rows", "large"])
def test_gradients_may_follow_the_rounding_of_the_output(dtype, reference, values):
    for seed in range(16):
        problem = attention(dtype, reference, values, seed)
        assert not wrong(problem, flash(problem)), seed


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_coarser_output_or_a_wrong_delta_is_found(reference):
    found = [0, 0, 0]
    for seed in (3, 7, 11, 15):
        problem = attention(torch.float16, reference, "outlier_rows", seed)
        found[0] += bool(wrong(problem, flash(problem, stored=torch.float8_e4m3fn)))
        problem = attention(torch.float16, reference, "normal", seed)
        found[1] += bool(wrong(problem, flash(problem, scale=1.05)))
        found[2] += bool(wrong(problem, flash(problem, scale=0.0)))
    assert found == [4, 4, 4]


@pytest.mark.parametrize("reference", REFERENCES)
def test_outputs_carry_no_error_of_delta(reference):
    problem = attention(torch.float16, reference, "normal", 3)
    carried, sizes = problem.outputs["out"].carried(), problem.outputs["out"].magnitude()
    assert (carried <= 2.0**-17 * sizes.amax()).all()  # of sums in float32
