"""One case of each family, a spec's tier `smoke`, becomes machine code, as `make compile` does."""

from pathlib import Path

import pytest

import tlmatrix
from tlmatrix.backend import CompileBackend
from tlmatrix.backend.assembly import find_toolkit
from tlmatrix.backend.backends import ARCHITECTURES

FOLDER = Path(__file__).parents[2] / "specs"
FAMILIES = {
    "gqa_dense": "mha_dense attention_forward_kernel",
    "gqa_varlen": "padded",
    "sink_varlen": "sink_dense",
    "dq_reordered": "dq_reordered_dense",
    "atomic_add_layout": "atomics",
    "attention_sm100": "",
    "attention_sm100_backward": "",
    "gemm": "gemm_kernel",
    "gemm_mixed": "",
    "gemm_split_k": "",
    "gemm_sm90": "",
    "gemm_sm100": "",
    "decode_paged": "decode",
    "rms_norm": "",
    "all_gather_gemm": "all_gather",
    "gemm_reduce_scatter": "gemm_bias_reduce_scatter reduce_scatter reduce_scatter_two_level",
    "sequence_attention_varlen": "sequence_attention sequence_attention_reference",
}
"""By the spec that is assembled here those of its family, which are left to `make compile`."""
FIRST = "sm_90a"
"""What a spec's case is assembled for, if the spec names it; else the first that it names."""
EVERY_ARCHITECTURE = {"gemm", "gemm_mixed", "gemm_split_k"}
"""Specs whose case is assembled for all that they name: a quick kernel or two each."""


def architectures(spec):
    named = spec.architectures or ARCHITECTURES
    if spec.name in EVERY_ARCHITECTURE:
        return named
    return [FIRST if FIRST in named else named[0]]


PATHS = [FOLDER / f"{name}.yaml" for name in FAMILIES]
SAMPLE = [(path, arch) for path in PATHS for arch in architectures(tlmatrix.load(path))]


@pytest.mark.skipif(find_toolkit() is None, reason="no nvcc here")
@pytest.mark.timeout(1200)  # minutes where the compilers share the cores with much else
@pytest.mark.parametrize(
    ("path", "arch"), SAMPLE, ids=[f"{path.stem}-{arch}" for path, arch in SAMPLE]
)
def test_a_case_of_each_family_is_compiled_within_its_budget(path, arch):
    backend = CompileBackend(requested=(arch,))
    results = tlmatrix.run_specs(
        path, tier="smoke", backend=backend, select=lambda case: case.origin == "tier"
    )
    assert len(results) == 1, "a smoke case is one case"
    (result,) = results
    assert not result.failed, str(results)
    assert result.kernels, "the case launches no kernel: give the tier smoke other values"
    assert {fact["arch"] for fact in result.kernels} == {arch}
    if result.status is tlmatrix.Status.SKIPPED:
        pytest.skip(str(result.reason))
    assert all(fact["registers"] for fact in result.kernels)


def test_every_architecture_and_every_spec_is_covered():
    assert {arch for _, arch in SAMPLE} == set(ARCHITECTURES)
    of_families = {*FAMILIES, *" ".join(FAMILIES.values()).split()}
    assert of_families == {path.stem for path in FOLDER.glob("*.yaml")}
    assert FAMILIES.keys() >= EVERY_ARCHITECTURE
