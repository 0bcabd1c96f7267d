"""The runs of one case on the interpreter take different schedules, and report races of roles."""

import sys

import pytest

import tlmatrix

CODE = """
import tilelang
import tilelang.language as T
import torch
from tlmatrix.interpreter.sync.settings import current

SEEN = []


def reference(x):
    return 2 * x


@tilelang.jit
def handed_over(wait):
    @T.prim_func
    def main(X: T.Tensor((8, 64), "float32"), Y: T.Tensor((8, 64), "float32")):
        with T.Kernel(1, threads=64):
            row = T.alloc_shared([64], "float32")
            full = T.alloc_barrier(32)
            free = T.alloc_barrier(32)
            thread = T.get_thread_binding()
            if thread < 32:
                for r in T.serial(8):
                    T.mbarrier_wait_parity(free, (r + 1) % 2)
                    for i in T.Parallel(64):
                        row[i] = 2 * X[r, i]
                    T.mbarrier_arrive(full)
            else:
                for r in T.serial(8):
                    if wait:
                        T.mbarrier_wait_parity(full, r % 2)
                    for i in T.Parallel(64):
                        Y[r, i] = row[i]
                    T.mbarrier_arrive(free)

    return main


def double(x, wait):
    SEEN.append((current().schedule, current().seed))
    y = torch.empty_like(x)
    handed_over(wait)(x, y)
    return y
"""
SPEC = """\
name: handed_over
problem:
  inputs: {x: {shape: [8, 64], dtype: float32}}
  outputs: [y]
  reference: schedules_code:reference
entry: schedules_code:double
axes: {wait: [true, false]}
tiers: {quick: product}
"""


@pytest.fixture
def results(code_folder, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = code_folder / "handed_over.yaml"
    path.write_text(SPEC)
    found = {}
    for case in tlmatrix.cases(path):
        result = tlmatrix.run_case(tlmatrix.load(path), case, "interpreter")
        seen = sys.modules["schedules_code"].SEEN
        found[case["wait"]] = (result, list(seen))
        seen.clear()
    return found


def test_runs_of_a_case_use_different_schedules(results):
    result, seen = results[True]
    assert result.status is tlmatrix.Status.PASSED, result.findings
    assert {schedule for schedule, _ in seen} >= {"eager", "lazy", "random"}


def test_a_data_race_of_warp_roles_fails_the_case(results):
    result, _ = results[False]
    assert result.status is tlmatrix.Status.FAILED
    first, *others = result.findings
    assert first.check == "sanitizers"
    assert first.title == (
        "races: threads 32..63 read row[0:64], and nothing orders this after threads 0..31 write it"
    )
    assert first.against.startswith("a write by threads 0..31, block (0,) at ")
    assert first.hint.startswith("threads 32..63 must wait for threads 0..31: T.mbarrier_arrive()")
    assert not [finding for finding in others if "RaceError" in finding.title]
