"""The architectures of a spec, each of which the interpreter traces cases for."""

from functools import partial
from itertools import islice
from pathlib import Path

from tlmatrix.run import Status
from tlmatrix.run import harness as harness_module
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import load_spec, parse_spec

SPECS = Path(__file__).parents[2] / "specs"
SPEC = """
name: doubled
problem:
  inputs: {x: {shape: [rows, cols], dtype: float32}}
  outputs: [y]
  reference: {function: architectures_code:reference, call: [x]}
entry: architectures_code:doubled
call: [x]
architectures: [sm_90a, sm_80, sm_100a]
axes: {rows: [1, 2, 3, 4, 5, 6, 7, 8], cols: [1, 2, 3]}
tiers: {quick: product}
checks: [numeric]
"""
CODE = """
import torch


def reference(x):
    return 2 * x


def doubled(x):
    wrong = torch.cuda.get_device_capability() == (8, 0)
    return x * (3 if wrong else 2)
"""


def test_cases_are_traced_for_every_architecture_and_most_for_the_first(code_folder):
    spec = parse_spec(SPEC, path=code_folder / "doubled.yaml")
    cases = list(plan(spec, "quick").cases())
    with Runner("interpreter") as runner:
        results = [runner.run(spec, case) for case in cases]
        again = [runner.run(spec, case) for case in cases[:9]]
    assert [each.status for each in results[:9]] == [each.status for each in again]
    wrong = [each for each in results if each.status == Status.FAILED]
    assert 0 < len(wrong) < len(cases) / 2
    for each in wrong:
        assert "interpreted as traced for sm_80" in str(each.findings[0].detail)


def test_a_spec_with_fewer_checks_is_bound_on_its_own(code_folder):
    text = SPEC.replace("dtype: float32}", "dtype: float32, grad: true}")
    spec = parse_spec(
        text.replace("[numeric]", "[numeric, gradients]"), code_folder / "doubled.yaml"
    )
    case = next(plan(spec, "quick").cases())
    with Runner("interpreter") as runner:
        for checks in (("numeric",), ("numeric", "gradients")):
            assert runner.run(spec.model_copy(update={"checks": checks}), case).status == "passed"


def kernels_of_relations(backend, monkeypatch):
    """By architecture, how many other compile keys the relations of each case need."""
    monkeypatch.setattr(harness_module, "_SAMPLED", 1 << 60)  # none
    spec = load_spec(SPECS / "gqa_varlen.yaml")
    harness = Runner(backend)._harness
    others = {}
    for case in islice(plan(spec, "quick").cases(), 0, None, 4):
        if case.origin == "invalid":
            continue
        bound = harness.bind_case(spec, case)
        problem = harness.problem(bound, spec, case, 0)
        key = partial(bound.family.compile_key, spec)
        own = key(case.values)
        needed = {
            key(each.values)
            for kind in ("isolation", "poison", "repeat", "relations")
            for relation in problem.relations(kind)
            for each in relation.problems
        }
        others.setdefault(bound.binding.backend.target, []).append(len(needed - {own}))
    return others


def test_a_case_of_another_architecture_has_few_relations_that_need_kernels_of_their_own(
    monkeypatch,
):
    others = kernels_of_relations("interpreter", monkeypatch)
    assert set(others) == {"sm_90a", "sm_80", "sm_100a"}
    assert sum(others["sm_90a"]) > len(others["sm_90a"])
    assert not any(others["sm_80"] + others["sm_100a"])


def test_lowered_code_has_few_relations_that_need_kernels_of_their_own(monkeypatch):
    (arch, others), *more = kernels_of_relations("lowered", monkeypatch).items()
    assert (arch, more) == ("sm_90a", [])
    assert len(others) > 10
    assert not any(others)
