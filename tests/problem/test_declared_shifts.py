"""Values of about -200 for references that are a softmax, and for no others."""

from pathlib import Path

import pytest
import torch
from problem_cases import CPU, make_spec

from tlmatrix.problem import family_for


def softmax(x):
    return x.softmax(-1)


def log_sum(x):
    return x.exp().sum(-1).log()


def layer_norm(x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def maximum(x):
    return x.amax(-1)


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
        "reference": f"test_declared_shifts:{reference}",
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


def test_values_that_the_spec_names_stay():
    assert {name for name, _ in distributions("softmax", values="normal")} == {"normal"}
