"""What crosses to the process of a rank, and the memory that its calls get."""

import pickle
from dataclasses import replace

import torch

import tlmatrix
from tlmatrix.distributed.rank_runner import Job, _reuse_memory, to_device
from tlmatrix.problem import family_for
from tlmatrix.problem.model import AutogradVariant, Problem
from tlmatrix.problem.sharding import Sharding

SPEC = """
name: product
problem: gemm
entry: a:b
axes: {world: [2], dtype: [float32], m: [4], n: [4], k: [4]}
shards: {a: {dim: m}, c: {dim: m}}
"""


def test_a_rank_gets_what_its_entry_is_called_with(tmp_path):
    (tmp_path / "product.yaml").write_text(SPEC)
    spec = tlmatrix.load(tmp_path / "product.yaml")
    values = {name: choices[0] for name, choices in spec.axes.items()}
    variant = AutogradVariant("some", requires=("a",))
    host = torch.device("cpu")
    problem = family_for(spec).problem(spec, values, seed=0, device=host)
    whole = replace(problem, autograd=variant)
    job = Job((Sharding.of(spec, whole).of_rank(whole, 1),))
    (problem,) = to_device(pickle.loads(pickle.dumps(job)), host).calls
    assert problem.autograd == variant
    assert torch.equal(problem.inputs["a"], whole.inputs["a"][2:])
    assert problem.inputs["a"] is problem.names["a"]  # one tensor, as for the entry of one process


def _problem(x):
    return Problem(values={}, names={"x": x}, inputs={"x": x}, outputs={}, returns=())


def test_a_later_call_gets_its_data_in_an_expanded_tensor_of_an_earlier_one():
    held = {}
    first = _reuse_memory(_problem(torch.zeros(1, 3).expand(4, 3)), held)
    data = torch.arange(3.0).expand(4, 3)
    second = _reuse_memory(_problem(data), held)
    assert second.inputs["x"].data_ptr() == first.inputs["x"].data_ptr()
    assert torch.equal(second.inputs["x"], data)
