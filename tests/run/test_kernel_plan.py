"""The kernels of a run: those of relations with another compile key are sampled, and planned."""

from dataclasses import replace
from pathlib import Path

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.run.harness import Harness
from tlmatrix.run.kernel_plan import traced_kernels
from tlmatrix.run.plan import plan
from tlmatrix.spec import load_spec

SPEC = load_spec(Path(__file__).parents[2] / "specs" / "gqa_dense.yaml")
CASES = [case for case in plan(SPEC, "quick").cases() if case.origin != "invalid"]


@pytest.fixture(scope="module")
def grouped():
    """Cases of groups of heads; a relation compares each with another layout."""
    return [case for case in CASES if case.values["groups"] > 1]


def relations(backend, case):
    harness = Harness(backend_named(backend))
    problem = harness.problem(harness.bind(SPEC), SPEC, case, 0)
    return [relation.name for relation in problem.relations("relations")]


def test_a_compiled_run_samples_relations_with_another_compile_key(grouped):
    name = "other_layout"
    kept = [case for case in grouped if name in relations("compile", case)]
    assert 0 < len(kept) < len(grouped) / 2
    assert all(name in relations("interpreter", case) for case in grouped[:5])
    generated = [replace(case, origin="fuzz") for case in kept]
    assert not any(name in relations("compile", case) for case in generated)


def test_kernels_of_relations_are_planned(grouped):
    harness = Harness(backend_named("compile"))
    case = next(c for c in grouped if "other_layout" in relations("compile", c))
    own = list(traced_kernels(harness, SPEC, case, "sm_90a", relations=False))
    every = list(traced_kernels(harness, SPEC, case, "sm_90a"))
    assert {id(kernel) for kernel in own} < {id(kernel) for kernel in every}
