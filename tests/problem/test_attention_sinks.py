"""Attention sinks: values, dtypes and compile keys."""

import torch
from problem_cases import make_problem, make_spec, packed

from tlmatrix.problem import family_for
from tlmatrix.problem.attention.axes import SINKS


def problem_of(sink, **values):
    return make_problem(packed([5, 0, 3], [2, 4, 3], kv_heads=8, causal=True, sink=sink, **values))


def test_sink_kinds_have_their_values():
    drawn = {name: problem_of(name, dtype="bfloat16").inputs["sink"] for name in SINKS}
    assert drawn["normal"].abs().max() < 6
    assert drawn["absent"].tolist() == [float("-inf")] * 8
    assert drawn["faint"].tolist() == [-1e4] * 8
    assert drawn["dominant"].tolist() == [1e4] * 8
    assert drawn["lowest"].tolist() == [torch.finfo(torch.float32).min] * 8
    of_16_bits = problem_of("lowest", dtype="bfloat16", sink_dtype="same").inputs["sink"]
    assert of_16_bits.tolist() == [torch.finfo(torch.bfloat16).min] * 8
    heads = drawn["mixed"].tolist()
    assert [heads[1:4], heads[5:8]] == [[float("-inf"), -1e4, 1e4]] * 2
    assert 5 <= drawn["strong"].min() < drawn["strong"].max() <= 16
    usual = problem_of(True, dtype="bfloat16").inputs["sink"]
    assert torch.equal(drawn["mixed"][::4], usual[::4])
    assert torch.equal(usual, drawn["normal"]) or torch.equal(usual, drawn["strong"])


def test_sinks_without_a_kind_are_normal_or_strong_by_the_seed():
    values = packed([3], sink=True)
    drawn = [make_problem(values, seed=seed).inputs["sink"].max() for seed in range(40)]
    assert 8 < sum(bool(sink >= 5) for sink in drawn) < 32


def test_compile_key_ignores_the_kind_of_sink():
    spec = make_spec(axes={"any": [1]})

    def key(sink):
        return family_for(spec).compile_key(spec, packed([4], sink=sink))

    assert key("mixed") == key(True) == key("faint")
    assert key(None) != key(True)
