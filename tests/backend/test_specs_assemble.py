"""One case of each family, a spec's tier `smoke`, becomes machine code, as `make compile` does."""

from pathlib import Path

import pytest

import tlmatrix
from tlmatrix.backend import CompileBackend
from tlmatrix.backend.assembly import find_toolkit
from tlmatrix.backend.backends import ARCHITECTURES
from tlmatrix.run.runner import Runner

pytestmark = pytest.mark.usefixtures("preloaded")

FOLDER = Path(__file__).parents[2] / "specs"
FAMILIES = {
    "gqa_varlen": "gqa_dense mha_dense attention_forward_kernel padded sink_varlen sink_dense",
    "dq_specialized": "dq_specialized_dense dq_reordered dq_reordered_dense",
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
    "gemm_reduce_scatter": "gemm_bias_reduce_scatter reduce_scatter reduce_scatter_two_level "
    "gemm_reduce_scatter_two_level gemm_bias_reduce_scatter_two_level",
    "sequence_attention_varlen": "sequence_attention sequence_attention_reference "
    "sequence_attention_specialized",
}
"""By the spec that is assembled here those of its family, which are left to `make compile`."""
FIRST = "sm_90a"
"""What a spec's case is assembled for, if the spec names it; else the first that it names."""
OTHERS = {"gemm": ARCHITECTURES, "gemm_mixed": ("sm_80", "sm_90a"), "rms_norm": ("sm_80",)}
"""Specs that are assembled for others, which have an `mma` of their own."""


def architectures(spec):
    named = spec.architectures or ARCHITECTURES
    return OTHERS.get(spec.name, [FIRST if FIRST in named else named[0]])


PATHS = [FOLDER / f"{name}.yaml" for name in FAMILIES]
SAMPLE = [(path, arch) for path in PATHS for arch in architectures(tlmatrix.load(path))]


@pytest.fixture(scope="module")
def runners():
    """A runner for each architecture, whose lowering process serves all tests."""
    found = {arch: Runner(CompileBackend(requested=(arch,))) for arch in ARCHITECTURES}
    yield found
    for runner in found.values():
        runner.close()


@pytest.mark.skipif(find_toolkit() is None, reason="no nvcc here")
@pytest.mark.timeout(1200)  # minutes where the compilers share the cores with much else
@pytest.mark.parametrize(
    ("path", "arch"), SAMPLE, ids=[f"{path.stem}-{arch}" for path, arch in SAMPLE]
)
def test_a_case_of_each_family_is_compiled_within_its_budget(path, arch, runners):
    spec = tlmatrix.load(path)
    cases = [case for case in tlmatrix.cases(spec, "smoke") if case.origin == "tier"]
    assert len(cases) == 1, "the tier smoke has one case"
    result = runners[arch].run(spec, cases[0])
    assert not result.failed, str(result)
    assert result.kernels, "the case launches no kernel: give the tier smoke other values"
    assert {fact["arch"] for fact in result.kernels} == {arch}
    if result.status is tlmatrix.Status.SKIPPED:
        pytest.skip(str(result.reason))
    assert all(fact["registers"] for fact in result.kernels)


def test_every_architecture_has_a_family_and_every_spec():
    assert {arch for _, arch in SAMPLE} == set(ARCHITECTURES)
    of_families = {*FAMILIES, *" ".join(FAMILIES.values()).split()}
    assert of_families == {path.stem for path in FOLDER.glob("*.yaml")}
    assert FAMILIES.keys() >= OTHERS.keys()
