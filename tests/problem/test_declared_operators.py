"""The operators of declared references: sizes of their terms, and values of about -200."""

from pathlib import Path

import pytest
import torch
from problem_cases import CPU, make_spec

from tlmatrix.problem import family_for
from tlmatrix.problem.declared.carried import DetachedMaximum
from tlmatrix.problem.declared.operators import term_sizes


def sizes_of(function, *inputs, seed=0):
    def evaluate():
        return {"y": function(*inputs)}

    return term_sizes(evaluate, evaluate(), seed).largest["y"]


def test_cancelling_sum_has_the_size_of_its_terms():
    x = torch.linspace(1.0, 2.0, 50, dtype=torch.float64)
    sizes = sizes_of(lambda x: x * 3 - x * 2.999999999, x)
    assert (sizes > 0.01).all()
    assert (sizes < 20).all()


def test_non_finite_elements_have_size_zero():
    x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert sizes_of(torch.log, x).tolist() == [0.0, 0.0, sizes_of(torch.log, x)[2].item()]


def test_mask_of_minus_infinity_leaves_the_other_terms_their_sizes():
    x = torch.linspace(1.0, 2.0, 50, dtype=torch.float64).expand(4, 50)
    mask = torch.arange(50) % 2 == 0

    def masked(x):
        return (x.masked_fill(mask, -torch.inf).softmax(-1) - 1 / 25) * 1e3

    assert (sizes_of(masked, x)[:, 1::2] > 5).all()


def test_maximum_that_softmax_subtracts_hides_no_cancellation():
    x = torch.randn(4, 1, dtype=torch.float64)

    def gradient(x):
        x = x.clone().requires_grad_()
        weights = (x - x.amax(-1, keepdim=True)).exp()
        return torch.autograd.grad((weights / weights.sum(-1, keepdim=True) * 7).sum(), x)[0]

    with DetachedMaximum() as mode:
        found = sizes_of(gradient, x)
    assert mode.used
    assert (found > 0.1).all()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_has_the_size_of_the_terms_that_cancel_in_it(approximate):
    x = torch.linspace(-6.0, 6.0, 200, dtype=torch.float64)

    def gradient(x):
        x = x.clone().requires_grad_()
        y = torch.nn.functional.gelu(x, approximate=approximate)
        return torch.autograd.grad(y.sum(), x)[0]

    sizes = sizes_of(lambda x: torch.nn.functional.gelu(x, approximate=approximate), x)
    assert ((sizes > 0.1 * x.abs()) & (sizes < 1.1 * x.abs())).all()
    assert (sizes_of(gradient, x) > 0.1).all()


def test_spread_of_one_rounding_is_the_size_of_the_result():
    # The largest of several runs would overstate it, and hide results of a coarser dtype.
    x = torch.linspace(1.0, 2.0, 500, dtype=torch.float64)
    found = term_sizes(lambda: {"y": x * 3 + 1}, {"y": x * 3 + 1}, seed=0)
    assert (found.spread["y"] / (x * 3 + 1)).square().mean().sqrt() < 1.1
    assert (found.largest["y"] >= found.spread["y"]).all()


# Shifted values for references that are a softmax, and for no others ------------------------------


def softmax(x):
    return x.softmax(-1)


def log_sum(x):
    return x.exp().sum(-1).log()


def layer_norm(x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def maximum(x):
    return x.amax(-1)


def norm(x):
    return x / x.norm(dim=-1, keepdim=True)


def softplus_like(x):
    return (1 + x.exp()).log()


@pytest.fixture(autouse=True)
def _references_beside(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def distributions(reference, **axes):
    axes = {"rows": 3, "dtype": "float16", **axes}
    problem = {
        "inputs": {"x": {"shape": ["rows", 8], "dtype": "$dtype"}},
        "outputs": ["y"],
        "reference": f"test_declared_operators:{reference}",
    }
    spec = make_spec(problem, axes={name: [value] for name, value in axes.items()})
    problems = [family_for(spec).problem(spec, axes, seed=seed, device=CPU) for seed in range(60)]
    return [(each.names["values"], each.inputs["x"].float()) for each in problems]


@pytest.mark.parametrize("reference", ["softmax", "log_sum"])
def test_a_softmax_gets_shifted_values_in_some_cases(reference):
    found = [x for name, x in distributions(reference) if name == "shifted"]
    assert 4 <= len(found) <= 25
    assert all(-203 < x.min() < x.max() < -197 for x in found)


@pytest.mark.parametrize("reference", ["layer_norm", "maximum", "softplus_like"])
def test_other_references_do_not(reference):
    assert all(name != "shifted" for name, _ in distributions(reference))


def test_a_norm_gets_zeros_in_some_cases():
    found = [x for name, x in distributions("layer_norm") if name == "zero_rows"]
    assert 2 <= len(found) <= 15
    assert all(bool((x[0] == 0).all()) and 0 < x[1].abs().max() < 2e-3 for x in found)


def test_a_reference_that_is_not_finite_for_zeros_gets_none():
    assert all(name != "zero_rows" for name, _ in distributions("norm"))


def test_values_that_the_spec_names_stay():
    assert {name for name, _ in distributions("softmax", values="normal")} == {"normal"}
