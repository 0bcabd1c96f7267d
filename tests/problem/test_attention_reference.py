"""The closed-form float64 reference against SDPA, autograd, gradcheck and the definition."""

import itertools

import pytest
import torch
from problem_cases import CPU, by_sdpa, dense, heads_first, make_problem, make_spec, packed
from torch.utils._python_dispatch import TorchDispatchMode

from tlmatrix.problem import attention
from tlmatrix.problem.attention import AttentionFamily, build, reference
from tlmatrix.problem.attention.axes import Setting
from tlmatrix.problem.attention.inputs import generate_operands
from tlmatrix.problem.attention.reference import Operands, Precision, attend
from tlmatrix.problem.relations.propagation import with_propagation

MASKS = [
    {},
    {"causal": True},
    {"causal": True, "window": 1},
    {"causal": True, "window": 3},
    {"causal": True, "window": 100},
    {"causal": True, "alignment": "top_left"},
    {"causal": True, "window": 3, "alignment": "top_left"},
]
SHAPES = [
    packed([5, 1, 9]),
    packed([4, 4], kv_heads=2, groups=3),
    packed([0, 5, 0, 0, 2], [7, 0, 0, 3, 6], groups=2),
    packed([9, 2, 5], [3, 11, 5], head_dim_v=5, kv_heads=2),
    packed([3], [12], scale=0.7),
    packed([3, 6], [5, 2], scale=0.0),
    packed([3, 6], [5, 2], scale=-0.7),
    dense(6, 9, batch=2, kv_heads=2, groups=2, layout="bshd"),
    dense(9, 6, batch=3, groups=2, layout="bhsd", head_dim_v=3),
    dense(4, 0, layout="bshd"),
    dense(5, batch=2, layout="thd"),
]


def make_host_problem(values):
    spec = make_spec(axes={axis: [value] for axis, value in values.items()})
    return AttentionFamily().host_problem(spec, values, seed=1, device=CPU)


def assert_matches_sdpa(problem):
    found = problem.reference()
    sinks = 0
    for number in range(problem.names["batch"]):
        expected = by_sdpa(problem, number)
        for name in ("out", "dq", "dk", "dv"):
            got = heads_first(problem, name, number)
            torch.testing.assert_close(got, expected[name], rtol=1e-11, atol=1e-11)
        lse = found["lse"]
        if problem.names["layout"] == "thd":
            starts = problem.names["cu_seqlens_q"].tolist()
            lse = lse[:, starts[number] : starts[number + 1]]
        else:
            lse = lse[number]
        torch.testing.assert_close(lse, expected["lse"], rtol=1e-12, atol=1e-12)
        sinks = sinks + expected.get("dsink", 0)
    if problem.names["sink"] is not None:
        torch.testing.assert_close(found["dsink"], sinks, rtol=1e-11, atol=1e-11)
    assert all(not tensor.isnan().any() for tensor in found.values())


@pytest.mark.parametrize("sink", [None, True])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reference_equals_sdpa_with_an_explicit_mask(shape, mask, sink):
    assert_matches_sdpa(make_problem({**shape, **mask, "sink": sink, "values": "normal"}))


@pytest.mark.parametrize("budget", [1, 30, 200])
@pytest.mark.parametrize("shape", SHAPES[:7], ids=str)
def test_results_do_not_depend_on_chunks(shape, budget, monkeypatch):
    monkeypatch.setitem(reference._CHUNK, "cpu", budget)
    values = {**shape, "causal": True, "window": 4, "sink": True, "values": "normal"}
    problem = make_problem(values)
    assert_matches_sdpa(problem)
    monkeypatch.undo()
    whole = make_problem(values)
    for name, info in problem.outputs.items():
        for mine, other in (
            (info.magnitude, whole.outputs[name].magnitude),
            (info.spread, whole.outputs[name].spread),
        ):
            if mine is not None:
                torch.testing.assert_close(mine(), other(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_a_problem_on_the_host_has_the_reference_of_one_on_the_device(shape, dtype, monkeypatch):
    # The CPU stands in for the accelerator, which computes the references of all problems here.
    monkeypatch.setattr(build, "_ON_ACCELERATOR", 0)
    values = {**shape, "dtype": dtype, "causal": True, "sink": True, "values": "normal"}
    plain = make_problem(values)
    placed = make_host_problem(values)
    for name, tensor in plain.inputs.items():
        assert torch.equal(tensor, placed.inputs[name])
    for kind in ("reference", "lowp"):
        mine, other = getattr(placed, kind)(), getattr(plain, kind)()
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)
        assert {mine[name].dtype for name in mine} == {other[name].dtype for name in mine}
    for name, info in placed.outputs.items():
        assert torch.equal(info.magnitude(), plain.outputs[name].magnitude())


class _OnMeta(TorchDispatchMode):
    """Names of the operations with a tensor of the device meta, in place of a GPU."""

    def __init__(self):
        super().__init__()
        self.operations = set()

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_meta:
            self.operations.add(str(func.overloadpacket))
        return result


@pytest.mark.parametrize("distribution", ["normal", "shifted", "halves", "cancelling", "extreme"])
def test_values_are_computed_on_the_cpu_and_then_moved(distribution):
    # A GPU rounds otherwise, and both sides of an agreement must have the same bits.
    setting = Setting.of({**packed([5, 3]), "dtype": "float16", "sink": "normal"})
    with _OnMeta() as on_meta:
        generate_operands(setting, distribution, 1, torch.device("meta"))
    assert on_meta.operations == {"aten._to_copy"}


def test_large_problems_stay_on_the_device():
    values = packed([5000] * 3, kv_heads=8, head_dim=128)
    assert make_host_problem(values) is None


def test_fewer_problems_are_on_the_host_where_processes_share_a_context(monkeypatch):
    values = packed([300] * 3, kv_heads=1, head_dim=64)
    assert make_host_problem(values) is not None
    monkeypatch.setattr(attention, "shared_context", lambda: True)
    assert make_host_problem(values) is None


def test_gradients_pass_gradcheck():
    setting = Setting.of(packed([3, 2], [4, 1], groups=2, head_dim=3, causal=True, sink=True))

    class Closed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, sink):
            ctx.save_for_backward(q, k, v, sink)
            return attend(setting, Operands(q, k, v, None, sink), Precision()).values["out"]

        @staticmethod
        def backward(ctx, do):
            q, k, v, sink = ctx.saved_tensors
            found = attend(setting, Operands(q, k, v, do, sink), Precision()).values
            return tuple(found[name] for name in ("dq", "dk", "dv", "dsink"))

    source = torch.Generator().manual_seed(0)
    q, k, v, sink = (
        torch.randn(shape, generator=source, dtype=torch.float64).requires_grad_()
        for shape in ((5, 2, 3), (5, 1, 3), (5, 1, 3), (2,))
    )
    assert torch.autograd.gradcheck(Closed.apply, (q, k, v, sink))


def test_row_without_keys_is_zero_with_lse_minus_infinity():
    found = make_problem(packed([4], [2], causal=True)).reference()
    blind = slice(0, 2)
    assert (found["out"][blind] == 0).all()
    assert (found["dq"][blind] == 0).all()
    assert (found["lse"][:, blind] == -torch.inf).all()
    assert found["lse"][:, 2:].isfinite().all()


def test_row_without_keys_has_the_sink_as_lse():
    problem = make_problem(packed([4, 3], [2, 0], causal=True, groups=2, sink=True))
    found, sink = problem.reference(), problem.names["sink"].double()
    for rows in (slice(0, 2), slice(4, 7)):
        torch.testing.assert_close(
            found["lse"][:, rows], sink[:, None].expand(2, rows.stop - rows.start)
        )
        assert (found["out"][rows] == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("distribution", ["normal", "one_hot", "opposed"])
def test_lowp_error_is_of_the_size_of_its_dtype(dtype, distribution):
    values = packed(
        [40, 1, 0, 64], [64, 5, 2, 30], dtype=dtype, values=distribution, groups=2, head_dim=32,
        causal=True, sink=True,
    )  # fmt: skip
    problem = make_problem(values)
    exact, low = problem.reference(), problem.lowp()
    for name, info in problem.outputs.items():
        assert low[name].dtype == info.dtype
        assert low[name].shape == exact[name].shape == info.shape
        finite = exact[name].isfinite()
        assert (low[name].isfinite() == finite).all()
        error = (low[name].double() - exact[name]).abs()
        # Rounding of what is stored, and of float32 arguments of exp.
        unit = 4 * info.roundoff + (16 + 2 * info.exponent()) * 2.0**-24
        # And of weights below the smallest normal number, beside a strong sink.
        small = 64 * 2.0**-25 if dtype == "float16" else 0.0
        assert (error <= unit * info.magnitude() + small)[finite].all(), name
    assert dtype == "float32" or (low["out"].double() != exact["out"]).any()


def test_lowp_rounds_stored_values():
    """With three equal scores P is 1/3, which float16 rounds; dv shows the rounding."""
    setting = Setting.of(packed([1], [3], head_dim=1))
    ones = torch.ones(3, 1, 1, dtype=torch.float16)
    operands = Operands(ones[:1], ones, ones, ones[:1])
    low = attend(setting, operands, Precision(torch.float32, torch.float16)).values
    assert (low["dv"] == torch.tensor(1 / 3, dtype=torch.float16)).all()
    assert low["lse"].dtype == torch.float32


@pytest.mark.parametrize("values", [SHAPES[3], SHAPES[6]], ids=str)
def test_magnitudes_and_spreads_bound_the_terms_of_each_sum(values):
    problem = make_problem({**values, "causal": True, "values": "normal"})
    for name in ("out", "dq", "dk", "dv"):
        info, exact = problem.outputs[name], problem.reference()[name]
        magnitude, spread = info.magnitude(), info.spread()
        assert magnitude.dtype == torch.float64
        assert (exact.abs() <= magnitude * (1 + 1e-5)).all()
        assert (spread <= magnitude * 1.5).all()
        assert ((magnitude == 0) == (spread == 0)).all()
        assert (magnitude > 0).any()


@pytest.fixture
def runs(monkeypatch):
    """Gets an item for each run of the reference."""
    found, plain = [], build.attend
    monkeypatch.setattr(build, "attend", lambda *args, **kw: found.append(kw) or plain(*args, **kw))
    return found


def test_bounds_of_lse_need_no_second_run_of_the_reference(runs):
    problem = make_problem(packed([5, 70], [70, 5], causal=True, groups=2))
    lse, info = problem.reference()["lse"], problem.outputs["lse"]
    magnitude = info.magnitude()
    assert magnitude.shape == lse.shape
    assert (magnitude >= torch.where(lse.isinf(), 0.0, lse.abs()) + 1).all()
    assert problem.outputs["dq"].exponent().shape == (75, 2, 1)
    assert len(runs) == 1


def test_propagation_runs_the_reference_once_for_an_element_without_effect(runs):
    values = packed([0, 5], [7, 0], causal=True)
    problem = with_propagation(make_spec(), make_problem(values), 3)
    assert {each.name for each in problem.relations("propagation")} <= {"rows_of_nan"}
    assert len(runs) == 9  # that of the problem, and of eight elements


def test_magnitude_of_out_is_p_times_absolute_v():
    problem = make_problem(packed([1], [2], values="normal"))
    scores = (problem.inputs["q"][0].double() @ problem.inputs["k"][:, 0].double().T)[0] * 8**-0.5
    p, v = scores.softmax(0), problem.inputs["v"][:, 0].double()
    info = problem.outputs["out"]
    torch.testing.assert_close(info.magnitude()[0, 0], p @ v.abs(), rtol=1e-6, atol=0)
    torch.testing.assert_close(info.spread()[0, 0], (p**2 @ v**2).sqrt(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("values", ["opposed", "normal", "ramp"])
def test_spread_of_dq_includes_rounding_errors_shared_by_a_row(values):
    """All dS of a row share the error of delta; with equal keys it does not average out."""
    problem = make_problem(packed([1, 1], [129, 70], head_dim=64, groups=8, values=values))
    tensors = {name: tensor.double() for name, tensor in problem.inputs.items()}
    exact, info = problem.reference(), problem.outputs["dq"]
    spread, before = info.spread(), 0
    for sequence, keys in enumerate((129, 70)):
        k, v = (tensors[name][before : before + keys, 0] for name in ("k", "v"))
        before += keys
        q, do = tensors["q"][sequence], tensors["do"][sequence]
        p = (q @ k.T * 64**-0.5).softmax(-1)
        delta = ((p @ v).to(torch.float16).double() * do).sum(-1, keepdim=True)
        dq = (p * (do @ v.T - delta)) @ k * 64**-0.5
        error = (dq - exact["dq"][sequence]).square().mean(-1).sqrt()
        allowed = 3 * info.roundoff * spread[sequence].square().mean(-1).sqrt()
        assert (error <= allowed).all()


@pytest.mark.parametrize("values", ["ramp", "normal"])
def test_spread_of_dk_includes_systematic_rounding_of_out(values):
    """Every element of the out of a ramp has the same error; 128 such errors add up in delta."""
    case = dense(
        1, 129, batch=2, kv_heads=2, groups=3, head_dim=128, layout="bshd", causal=True, window=2,
        dtype="bfloat16", values=values,
    )  # fmt: skip
    problem = make_problem(case)
    q, k, v, do = (problem.inputs[name].double() for name in ("q", "k", "v", "do"))
    exact, info = problem.reference()["dk"], problem.outputs["dk"]
    spread = info.spread()
    for batch, head in itertools.product(range(2), range(2)):
        seen_k, seen_v = k[batch, 127:, head], v[batch, 127:, head]
        rows = slice(3 * head, 3 * head + 3)
        of_q, of_do = q[batch, 0, rows], do[batch, 0, rows]
        p = (of_q @ seen_k.T * 128**-0.5).softmax(-1)
        stored = (p @ seen_v).to(torch.bfloat16).double()
        delta = (stored * of_do).sum(-1, keepdim=True)
        dk = (p * (of_do @ seen_v.T - delta)).T @ of_q * 128**-0.5
        error = (dk - exact[batch, 127:, head]).abs()
        assert (error <= 3 * info.roundoff * spread[batch, 127:, head]).all()


def test_flushed_probabilities_move_a_gradient_by_no_more_than_its_amplification():
    """Within the bound for dq and dk; 2**10 times what was flushed, as for out, is too little."""
    shape = packed([64], head_dim=64, dtype="bfloat16", values="large", scale=0.25)
    problem = make_problem({**shape, "causal": False})
    rows = {name: tensor[:, 0].double() for name, tensor in problem.inputs.items() if name in "qkv"}
    q, k, v, do = *(rows[name] for name in "qkv"), problem.cotangents["out"][:, 0].double()
    p = torch.softmax(0.25 * q @ k.T, -1)
    # The sizes that rows of just less than 2**-126 would have, of other scores.
    lost = torch.full_like(p, 2.0**-126)
    ds = lost * ((do @ v.T) - (p @ v * do).sum(-1, keepdim=True))
    moved = {"out": lost @ v, "dv": lost.T @ do, "dq": 0.25 * ds @ k, "dk": 0.25 * ds.T @ q}
    for name, error in moved.items():
        assert float(error.abs().max()) <= 2.0**-126 * problem.outputs[name].amplification()
    assert float(moved["dq"].abs().max()) > 2.0**-116
