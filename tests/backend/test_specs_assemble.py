"""One case of every spec, its tier `smoke`, becomes machine code: a sample of `make compile`."""

from pathlib import Path

import pytest

import tlmatrix
from tlmatrix.backend import CompileBackend
from tlmatrix.backend.assembly import find_toolkit
from tlmatrix.backend.backends import ARCHITECTURES

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
WITHOUT_KERNELS = {"all_gather", "sequence_attention_reference"}
"""Specs whose entries launch none: copy engines move rows, PyTorch computes."""
FIRST = "sm_90a"
"""What a spec's case is assembled for, if the spec names it; else the first that it names."""
EVERY_ARCHITECTURE = {"attention_forward_kernel", "gemm", "gemm_mixed", "gemm_split_k"}
"""Specs whose case is assembled for all that they name: a quick kernel or two each."""


def architectures(spec):
    named = spec.architectures or ARCHITECTURES
    if spec.name in EVERY_ARCHITECTURE:
        return named
    return [FIRST if FIRST in named else named[0]]


SAMPLE = [(path, arch) for path in SPECS for arch in architectures(tlmatrix.load(path))]


@pytest.mark.skipif(find_toolkit() is None, reason="no nvcc here")
@pytest.mark.timeout(1200)  # minutes where the compilers share the cores with much else
@pytest.mark.parametrize(
    ("path", "arch"), SAMPLE, ids=[f"{path.stem}-{arch}" for path, arch in SAMPLE]
)
def test_a_case_of_every_spec_is_assembled_within_its_budget(path, arch):
    backend = CompileBackend(asked=(arch,))
    results = tlmatrix.run_specs(
        path, tier="smoke", backend=backend, select=lambda case: case.origin == "tier"
    )
    assert len(results) == 1, "a smoke case is one case"
    (result,) = results
    assert not result.failed, str(results)
    if path.stem in WITHOUT_KERNELS:
        assert not result.kernels, "it launches kernels: take it from the list"
        return
    assert result.kernels, "the case launches no kernel: give the tier smoke other values"
    assert {fact["arch"] for fact in result.kernels} == {arch}
    if result.status is tlmatrix.Status.SKIPPED:
        pytest.skip(str(result.reason))
    assert all(fact["registers"] for fact in result.kernels)


def test_every_architecture_has_a_family_that_is_assembled_for_it():
    assert {arch for _, arch in SAMPLE} == set(ARCHITECTURES)
    assert {path.stem for path in SPECS} >= EVERY_ARCHITECTURE
