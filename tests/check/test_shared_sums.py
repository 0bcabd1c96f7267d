"""Ranks that add up parts of a sum round each of them once: that is right, and no more is."""

import random
from pathlib import Path

import pytest
import torch

from tlmatrix.backend import backend_named
from tlmatrix.check.numeric import compare
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem import family_for
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import load_spec, parse_spec
from tlmatrix.spec.model.spec import Tolerance

SPECS = Path(__file__).parents[2] / "specs"
BOTH = pytest.mark.parametrize("name", ["gemm_reduce_scatter", "gemm_bias_reduce_scatter"])


SMALL = (1, 1, 1, 2, 3, 5, 9, 65)
KINDS = ("normal", "ramp", "constant_rows", "large", "outlier_rows")


def drawn(name, number, sizes=SMALL, kinds=KINDS):
    """A problem of one of the specs."""
    spec, pick = load_spec(SPECS / f"{name}.yaml"), random.Random(number)
    values = {axis: pick.choice(listed) for axis, listed in spec.axes.items()}
    values |= {"world": pick.randint(2, 8), "k": pick.randint(2, 150)}
    values |= {"m": pick.choice(sizes), "n": pick.choice(sizes)}
    values["values"] = pick.choice(kinds)
    cpu = torch.device("cpu")
    return family_for(spec).problem(spec, values, seed=number, device=cpu)


def added_by_ranks(problem, rounded):
    """C as ranks make it that round their parts to the dtype `rounded`, and add in ring order."""
    names = problem.names
    a, b = problem.inputs["a"].float(), problem.inputs["b"].float()
    if names.get("transpose_b"):
        b = b.T
    world = names["world"]
    shares = list(zip(a.tensor_split(world, 1), b.tensor_split(world), strict=True))
    parts = [(x.flip(1) @ y.flip(0)).to(rounded).float() for x, y in shares]
    total = sum(parts[1:], parts[0] * 0) + parts[0]
    if "bias" in problem.inputs:
        total = total + problem.inputs["bias"].float()
    return total.to(problem.outputs["c"].dtype)


def fault(problem, result):
    bounds = ReferenceBounds(problem, Tolerance(), "interpreter")
    return compare(result, bounds.reference["c"], bounds.error_bound("c"))


@BOTH
def test_no_finding_for_parts_rounded_once(name):
    for number in range(60):
        problem = drawn(name, number)
        found = fault(problem, added_by_ranks(problem, problem.outputs["c"].dtype))
        assert found is None, f"problem {number}, {problem.values}: {found}"


@BOTH
def test_float16_parts_rounded_to_bfloat16_are_found(name):
    # Not of values that repeat: of a few roundings some are small by luck.
    kinds = ("normal", "large", "outlier_rows")
    problems = [drawn(name, number, (64, 65, 100), kinds) for number in range(45)]
    precise = [each for each in problems if each.outputs["c"].dtype != torch.bfloat16]
    missed = [
        each.values for each in precise if fault(each, added_by_ranks(each, torch.bfloat16)) is None
    ]
    assert len(precise) > 20
    assert missed == []


GRADIENT = """
name: of_a_scale
problem:
  inputs:
    x: {shape: [rows, cols], dtype: $dtype}
    dy: {shape: [rows, cols], dtype: $dtype}
  outputs: [dscale]
  reference: summed_by_ranks:gradient
entry: summed_by_ranks:ENTRY
axes:
  world: [2, 3, 7]
  dtype: [float16, bfloat16]
  rows: [16, 64, 333]
  cols: [1, 3]
shards:
  x: {dim: rows, uneven: balanced}
  dy: {dim: rows, uneven: balanced}
  dscale: {sum: true}
tiers: {quick: product}
checks: [numeric, relations, repeat]
"""


def faults_of_gradients(entry):
    """The findings of all cases whose ranks each return a part of the gradient."""
    spec = parse_spec(GRADIENT.replace("ENTRY", entry), Path(__file__).parent / "of_a_scale.yaml")
    runner = Runner(backend_named("interpreter"), seed=1)
    results = [runner.run(spec, case, explained=False) for case in plan(spec).expansion]
    assert len(results) == 36
    return [(each.case, each.findings) for each in results if each.findings]


def test_no_finding_for_gradients_in_parts():
    assert faults_of_gradients("right") == []


def test_gradients_summed_in_bfloat16_are_found():
    found = faults_of_gradients("adds_in_bfloat16")
    assert sum("dtype=float16" in case for case, _ in found) > 14
    assert sum("dtype=bfloat16-rows=333" in case for case, _ in found) > 2
