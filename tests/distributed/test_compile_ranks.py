"""The backend `compile` where several ranks call the entry: what any of them launches, once."""

from pathlib import Path

import pytest

import tlmatrix
from tlmatrix.backend.assembly import find_toolkit
from tlmatrix.backend.backends import CompileBackend

pytestmark = pytest.mark.usefixtures("preloaded")

HERE = Path(__file__).parents[1] / "backend"
nvcc = pytest.mark.skipif(find_toolkit() is None, reason="no nvcc here")

SPEC = """\
name: doubled
problem:
  inputs:
    x: {shape: [n], dtype: float32}
  outputs: [y]
  reference: assembly_kernels:reference
entry: assembly_kernels:doubled_on_ranks
architectures: [sm_90a]
axes:
  world: [3]
  n: [100]
  kernel: [KERNEL]
shards: {x: {dim: 0, uneven: balanced}, y: {dim: 0, uneven: balanced}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(folder, monkeypatch):
    monkeypatch.setenv("TLMATRIX_CACHE", str(folder))


def assembled(tmp_path, kernel, more=""):
    (tmp_path / "assembly_kernels.py").symlink_to(HERE / "assembly_kernels.py")
    path = tmp_path / "doubled.yaml"
    path.write_text(SPEC.replace("KERNEL", kernel) + more)
    spec = tlmatrix.load(path)
    (case,) = tlmatrix.cases(spec)
    return tlmatrix.run_case(spec, case, CompileBackend())


def names(result):
    return [fact["kernel"] for fact in result.kernels]


@nvcc
def test_a_kernel_of_all_ranks_is_assembled_once(tmp_path):
    result = assembled(tmp_path, "double")
    assert result.status is tlmatrix.Status.PASSED, str(result)
    assert names(result) == ["double_elements"]
    assert result.kernels[0]["registers"]


@nvcc
def test_a_finding_in_the_kernel_of_one_rank(tmp_path):
    result = assembled(tmp_path, "not_assembled")
    (finding,) = result.findings
    assert finding.title.startswith("calls_nobody cannot be assembled for sm_90a")
    assert names(result) == ["double_elements", "calls_nobody"]


@nvcc
def test_a_kernel_that_waits_for_flags_is_assembled_without_their_signals(tmp_path):
    rule = "codegen: [{kernel: double_when_told, instructions: [ld.acquire.sys], spills: 0}]\n"
    result = assembled(tmp_path, "waiting", rule)
    assert result.status is tlmatrix.Status.PASSED, str(result)
    assert names(result) == ["double_elements", "double_when_told"]


def test_an_exception_during_tracing_names_the_rank(tmp_path, monkeypatch):
    monkeypatch.setattr("tlmatrix.backend.assembly.assembler.find_toolkit", lambda: None)
    (finding,) = assembled(tmp_path, "missing").findings
    assert finding.check == "entry"
    assert finding.title == (
        "rank 2 of 3, traced for sm_90a, raises ValueError: no kernel for the last rank"
    )


def test_a_collective_that_only_one_rank_calls_is_a_finding(tmp_path):
    found = assembled(tmp_path, "alone").findings
    assert [finding.check for finding in found] == ["ranks"], found
