"""The backend `compile`: kernels become machine code with no GPU, and what is wrong is found."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from assembly_kernels import allocating, double, laid_out, not_lowered
from shared_lowering import SharingAssembler, lowerer, shared_lowering
from tilelang import tvm

import preloaded_python
import tlmatrix
from tlmatrix.backend import ArchitectureError, CompileBackend
from tlmatrix.backend.assembly import Assembler, CompiledKernel, MachineCode, find_toolkit
from tlmatrix.backend.assembly.assembler import Lowerer, LoweringError
from tlmatrix.backend.assembly.toolkit import AssemblerError, Toolkit
from tlmatrix.cache_files import cache_folder
from tlmatrix.interpreter import interpret, traced
from tlmatrix.run.compilation import kernel_facts
from tlmatrix_kernels.attention import dense_attention
from tlmatrix_kernels.gemm import gemm

__all__ = ["lowerer", "shared_lowering"]

pytestmark = pytest.mark.usefixtures("preloaded")

HERE = Path(__file__).parent
nvcc = pytest.mark.skipif(find_toolkit() is None, reason="no nvcc here")

SPEC = """\
name: doubled
problem:
  inputs:
    x: {shape: [n], dtype: float32}
  outputs: [y]
  reference: assembly_kernels:reference
entry: assembly_kernels:doubled
architectures: [sm_90a]
axes:
  n: [100]
  kernel: [KERNEL]
"""


CACHE = cache_folder() / "assembly"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(folder, monkeypatch, shared_lowering):
    """A cache of these tests, so that each kernel is compiled once."""
    monkeypatch.setenv("TLMATRIX_CACHE", str(folder))


@pytest.fixture
def assembler(tmp_path, lowerer):
    return SharingAssembler(folder=tmp_path / "assembly", lowerer=lowerer)


def judged(tmp_path, kernel, more="", backend="compile"):
    (tmp_path / "assembly_kernels.py").unlink(missing_ok=True)
    (tmp_path / "assembly_kernels.py").symlink_to(HERE / "assembly_kernels.py")
    path = tmp_path / "doubled.yaml"
    path.write_text(SPEC.replace("KERNEL", kernel) + more)
    spec = tlmatrix.load(path)
    return [tlmatrix.run_case(spec, case, backend) for case in tlmatrix.cases(spec)]


def launched(function, arch):
    with traced(arch=arch) as kernels:
        function()
    return kernels


# What is traced -----------------------------------------------------------------------------


def test_forward_and_backward_are_traced_and_nothing_runs():
    def attend():
        q, k = (torch.ones(1, 9, heads, 32).half().requires_grad_() for heads in (4, 2))
        out, _ = dense_attention(q, k, k, backward="split")
        torch.autograd.grad(out.float().sum(), [q, k])

    names = [kernel.name for kernel in launched(attend, "sm_80")]
    assert names[0] == "dense_forward"
    assert {"dense_query_gradients", "dense_key_gradients"} <= set(names)
    assert len(names) == len(set(names)), "a kernel is noted once, however often it is launched"


def test_traced_kernels_are_not_cached_for_other_backends():
    a = torch.ones(8, 8).half()
    launched(lambda: gemm(a, a), "sm_90a")
    with interpret(arch="sm_90a"):
        assert (gemm(a, a) == 8).all()


def test_outputs_that_tilelang_allocates_have_their_shape():
    with traced(arch="sm_90a") as kernels:
        assert allocating()(torch.ones(5)).shape == (10,)
    assert [kernel.name for kernel in kernels] == ["twice_as_long"]


# A kernel, assembled -------------------------------------------------------------------------


@nvcc
def test_what_was_assembled_is_known_and_needs_no_compiler_again(assembler):
    """Kept for the next run, as by `make compile`; other families are assembled by their specs."""
    q, k = (torch.ones(1, 9, heads, 64).half() for heads in (4, 2))
    (kernel,) = launched(lambda: dense_attention(q, k, k, causal=True), "sm_80")
    assembler.folder = CACHE
    found = assembler.assemble(kernel, "sm_80")
    assert not found.error
    (part,) = found.parts
    assert part.has("mma.sync")
    assert 16 < part.registers <= 255
    assert part.spills == 0
    assert part.shared_memory < 166912
    assert assembler.assemble(kernel, "sm_80") is found
    again = Assembler(folder=assembler.folder, lowerer=None)
    assert again.assemble(kernel, "sm_80") == found, "what is kept on disk needs no compiler"


def test_a_kernel_at_another_line_of_another_file_is_not_compiled_again(
    assembler, tmp_path, monkeypatch
):
    lowered = []

    def lower(_ir, arch, _configs):
        lowered.append(arch)
        return {"source": "", "kernels": {}, "seconds": 0.0}

    monkeypatch.setattr(assembler.lowerer, "lower", lower)
    monkeypatch.setattr(assembler, "toolkit", SimpleNamespace(
        version="1", lacks=lambda _arch: "", assemble=lambda *_: (MachineCode("k", 1),),
    ))  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    text = (HERE / "assembly_kernels.py").read_text()
    places = []
    for name in ("first_file", "second_file"):
        (tmp_path / f"{name}.py").write_text(text)
        double = importlib.import_module(name).double
        (kernel,) = launched(lambda double=double: double()(torch.ones(8), torch.ones(8)), "sm_80")
        places.append(assembler.assemble(kernel, "sm_80").place)
        text = f"# A comment.\n{text}"
    assert len(lowered) == 1
    (first, line), (second, later) = (place.rsplit(":", 1) for place in places)
    assert first.endswith("first_file.py")
    assert second.endswith("second_file.py")
    assert int(later) == int(line) + 1


# Findings ------------------------------------------------------------------------------------


@nvcc
def test_a_correct_kernel_passes_and_its_facts_are_recorded(tmp_path):
    (result,) = judged(tmp_path, "double")
    assert result.status is tlmatrix.Status.PASSED
    (fact,) = result.kernels
    assert (fact["kernel"], fact["arch"]) == ("double_elements", "sm_90a")
    assert fact["registers"] > 0
    assert json.loads(json.dumps(result.to_json()))["kernels"] == [fact]


@nvcc
def test_too_much_shared_memory_is_a_finding_without_a_compiler_error(tmp_path):
    (result,) = judged(tmp_path, "greedy")
    (finding,) = result.findings
    assert "greedy_elements on sm_90a: 245760 bytes of shared memory" in finding.title
    assert "232448" in finding.title
    assert "assembly_kernels.py" in finding.where


@nvcc
def test_an_nvcc_error_is_reported_with_its_message(tmp_path):
    (result,) = judged(tmp_path, "not_assembled")
    (finding,) = result.findings
    assert "calls_nobody cannot be assembled for sm_90a" in finding.title
    assert "function_of_nobody" in finding.title


@nvcc
def test_budgets_of_the_spec_are_checked(tmp_path):
    rules = """\
codegen:
  - {kernel: double_elements, instructions: [wgmma.mma_async, ld.global]}
  - {when: "arch == 'sm_90a' and n == 100", registers: 2}
  - {when: "arch == 'sm_80'", registers: 1}
  - {kernel: doubble_elements, spills: 0}
"""
    (result,) = judged(tmp_path, "double", rules)
    titles = [finding.title for finding in result.findings]
    assert len(titles) == 3, titles
    assert titles[0] == "double_elements on sm_90a has no wgmma.mma_async"
    assert "registers per thread, the spec allows 2" in titles[1]
    assert "no kernel 'doubble_elements'" in titles[2]
    assert "double_elements" in titles[2]


@nvcc
def test_known_bugs_apply_to_each_architecture(tmp_path):
    bug = """\
known_bugs:
  - {when: "arch == 'sm_90a'", issue: "#1", expires: 2099-01-01}
"""
    (result,) = judged(tmp_path, "greedy", bug)
    assert result.status is tlmatrix.Status.KNOWN_BUG
    (result,) = judged(tmp_path, "double", bug)
    assert result.status is tlmatrix.Status.FAILED
    assert "passes, though known_bugs expects" in result.findings[0].title


def test_invalid_inputs_are_tested_on_this_backend(tmp_path):
    invalid = 'invalid_inputs: {raises: KeyError, messages: {"None": {kernel: none}}}\n'
    results = judged(tmp_path, "double", invalid)
    assert [result.status for result in results if result.origin == "invalid"] == [
        tlmatrix.Status.PASSED
    ]


def test_a_lowering_error_is_a_finding(assembler):
    def run():
        not_lowered()(torch.ones(64, 64).half(), torch.empty(64, 64))

    found = assembler.assemble(launched(run, "sm_80")[0], "sm_80")
    assert found.stage == "lower"
    assert "IntImm" in found.error
    assert kernel_facts(found)[0]["error"] == "lower"


def test_a_kernel_with_an_annotated_layout_is_lowered():
    x = torch.zeros(16, 16)
    (kernel,) = launched(lambda: laid_out()(x, x.clone()), "sm_90a")
    lowerer = Lowerer()
    try:
        ir = str(tvm.ir.save_json(kernel.prim_func))
        source = lowerer.lower(ir, "sm_90a", kernel.pass_configs)["source"]
    finally:
        lowerer.close()
    assert "AtomicAddx2" in source


def test_the_next_kernel_is_lowered_after_a_compiler_crash():
    lowerer = Lowerer()
    try:
        child = lowerer._start()
        os.kill(child.pid, signal.SIGSEGV)
        child.wait()
        lowerer._start = lambda: child
        with pytest.raises(LoweringError, match="ended with signal SIGSEGV"):
            lowerer.lower("{}", "sm_90a", {})
        del lowerer._start
        with pytest.raises(LoweringError) as refused:
            lowerer.lower("no IR", "sm_90a", {})
        assert "crashed" not in str(refused.value)
    finally:
        lowerer.close()


def test_a_hanging_compiler_is_killed(monkeypatch):
    # Its imports take longer than this.
    monkeypatch.setattr(sys, "executable", preloaded_python.PLAIN)
    lowerer = Lowerer(seconds=0.1)
    with pytest.raises(LoweringError, match=r"did not end in 0\.1 s"):
        lowerer.lower("{}", "sm_90a", {})
    assert lowerer._child is None


# The toolkit ---------------------------------------------------------------------------------


def test_a_toolkit_too_old_for_an_architecture_skips_with_that_reason(tmp_path, monkeypatch):
    old = Toolkit(Path("/nowhere/nvcc"), "11.0", frozenset({"sm_80"}))
    monkeypatch.setattr("tlmatrix.backend.assembly.assembler.find_toolkit", lambda: old)
    monkeypatch.setattr("tlmatrix.backend.assembly.Assembler", lambda: Assembler(toolkit=old))
    (result,) = judged(tmp_path, "double")
    assert result.status is tlmatrix.Status.SKIPPED
    assert result.reason == "toolkit"
    assert result.message == "sm_90a: nvcc 11.0 does not know sm_90a"


def test_the_output_of_ptxas_is_parsed(tmp_path):
    tool = tmp_path / "nvcc"
    tool.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -o ]; do shift; done\n'
        'printf ".visible .entry k(\\n)\\n{\\n@%%p1 bra L;\\n'
        "{ .reg .pred p; @p tcgen05.mma.cta_group::1.kind::f16 [%%r1], 1; }\\n"
        "tcgen05.ld.sync.aligned.32x32b.x2.b32{%%r1,%%r2}, [%%r3];\\n"
        "tcgen05.st.sync.aligned.32x32b.x2.b32[%%r3],{%%r1,%%r2};\\n"
        'L: ret;\\n}\\n" > "$2"\n'
        "cat <<'END'\n"
        "ptxas info    : Compiling entry function 'k' for 'sm_100a'\n"
        "ptxas info    : Function properties for k\n"
        "    64 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 16 barriers, 64 bytes cumulative stack size, "
        "1024 bytes smem\n"
        "END\n"
    )
    tool.chmod(0o755)
    source = "tl::tmem_allocate((&(a[0])), 128);\ntl::tmem_allocate((&(b[0])), 512);\n"
    toolkit = Toolkit(tool, "1", frozenset({"sm_100"}))
    (part,) = toolkit.assemble(source, "sm_100a", {"k": {"shared": 4096, "threads": 384}}, [])
    assert (part.registers, part.spills, part.stack, part.barriers) == (168, 44, 64, 16)
    assert part.shared_memory == 5120
    assert part.tensor_memory == 640
    assert part.threads == 384
    assert part.has("tcgen05.mma")
    assert part.has("tcgen05.ld")
    assert part.has("tcgen05.st")
    assert part.instructions["bra"] == 1
    assert not part.has("tcgen05.m")
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'error: no' >&2; exit 1\n")
    failing.chmod(0o755)
    with pytest.raises(AssemblerError, match="error: no"):
        Toolkit(failing, "1", frozenset()).assemble(source, "sm_100a", {}, [])


def test_too_much_tensor_memory_is_a_finding():
    from tlmatrix.backend.assembly import check_budgets

    part = MachineCode("k_kernel", 100, tensor_memory=640)
    spec = tlmatrix.load(Path(__file__).parents[2] / "specs/gemm_kernel.yaml")
    (finding,) = check_budgets(spec, {}, [CompiledKernel("k", "sm_100a", "0", parts=(part,))])
    assert finding.title == "k on sm_100a: 640 columns of tensor memory, sm_100a has 512"


def test_forbidden_instruction_is_a_finding():
    from tlmatrix.backend.assembly import check_budgets

    spec = tlmatrix.load(Path(__file__).parents[2] / "specs/atomic_add_layout.yaml")
    values = {"order": "quads", "form": "tile", "width": 4, "parts": 1, "dtype": "float32"}
    for instruction, titles in (
        ("red.global.add.v2.f32", []),
        ("red.global.add.v4.f32", ["k on sm_90a has red.global.add.v4, which the spec forbids"]),
    ):
        part = MachineCode("k_kernel", 32, instructions={instruction: 2})
        kernel = CompiledKernel("k", "sm_90a", "0", parts=(part,))
        findings = check_budgets(spec, values, [kernel])
        assert [each.title for each in findings] == titles


COPY = "tl::tcgen05_ld_32dp32bNx<64, false>(scores[0], {offset}, (&(s[0])));"
ADD = "AtomicAddx4((&(dq_sum[((((int64_t)((int)threadIdx.x)) & (int64_t)31) * (int64_t)4)])), x);"


@pytest.mark.parametrize(
    ("groups", "changes", "titles"),
    [
        (1, {}, []),
        (1, {"(((int)threadIdx.x) >> 7) * 64": "0"}, ["matches tcgen05_(ld|st)"]),
        (1, {"* (int64_t)4": "* (int64_t)128"}, ["no line of the CUDA source"]),
        (1, {"dq_sum": "dk"}, ["no line of the CUDA source", r"matches Atomic\w*\("]),
        (3, {}, ["no line of the CUDA source", "no line of the CUDA source"]),
    ],
)
def test_patterns_of_the_source_pin_offsets_and_atomics(groups, changes, titles):
    """The rules of a spec, on lines as TileLang 0.1.15 generates them, and on wrong ones."""
    from tlmatrix.backend.assembly import check_budgets

    source = f"{COPY.format(offset='((((int)threadIdx.x) >> 7) * 64)')}\n  {ADD}\n"
    for right, wrong in changes.items():
        assert right in source
        source = source.replace(right, wrong)
    instructions = ["tcgen05.alloc", "tcgen05.mma", "tcgen05.ld", "tcgen05.commit"]
    instructions += ["cp.async.bulk.tensor", "atom.global.add.v4.f32"]
    part = MachineCode("k", 200, instructions=dict.fromkeys(instructions, 1))
    name = "sm100_reordered_gradients"
    kernel = CompiledKernel(name, "sm_100a", "0", parts=(part,), source=source)
    spec = tlmatrix.load(Path(__file__).parents[2] / "specs/attention_sm100_backward.yaml")
    findings = check_budgets(spec, {"groups": groups}, [kernel])
    assert len(findings) == len(titles), findings
    for finding, title in zip(findings, titles, strict=True):
        assert title in finding.title


# Architectures -------------------------------------------------------------------------------


def test_architectures_are_those_of_the_spec_or_the_requested_ones():
    assert CompileBackend().architectures(["sm_100a"]) == ("sm_100a",)
    assert CompileBackend().architectures([]) == ("sm_80", "sm_90a", "sm_100a")
    assert CompileBackend(requested=("sm_90a",)).architectures([]) == ("sm_90a",)
    asked = CompileBackend(requested=("sm_100a", "sm_90a"))
    assert asked.architectures(["sm_90a"]) == ("sm_90a",)
    with pytest.raises(ArchitectureError, match="sm_80"):
        asked.architectures(["sm_80"])


@nvcc
def test_one_command_shows_kernels_by_architecture(tmp_path):
    judged(tmp_path, "double")
    command = [Path(sys.executable).with_name("tlmatrix"), "run", "doubled.yaml", "-n", "0"]
    command += ["--backend", "compile", "--arch", "sm_90a"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("double_elements")]
    assert row.split()[1:4] == ["sm_90a", "1", "0"]
    command[-1] = "sm_90"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "with a letter from sm_90 on" in done.stdout + done.stderr


def test_lowered_code_is_kept_beside_the_results(tmp_path, assembler):
    from tlmatrix.backend.assembly import Keep

    (kernel,) = launched(lambda: double()(torch.ones(8), torch.ones(8)), "sm_90a")
    assembler.folder = None  # where other tests leave it
    compiled = assembler.assemble(kernel, "sm_90a")
    kinds = "ir,cuda,ptx" if assembler.toolkit else "ir,cuda"
    Keep.parse(kinds, tmp_path / "run.jsonl").write("doubled", kernel, compiled, assembler)
    kept = {path.suffix: path.read_text() for path in (tmp_path / "run-kernels/doubled").iterdir()}
    name = f"{kernel.name}-sm_90a-{compiled.key[:8]}.cu"
    assert (tmp_path / "run-kernels/doubled" / name).is_file()
    assert "T.prim_func" in kept[".tir"]
    assert kept[".cu"] == compiled.source
    if assembler.toolkit:
        assert ".target sm_90a" in kept[".ptx"]
    with pytest.raises(ValueError, match="'sass' cannot be kept; one or more of ir, cuda, ptx can"):
        Keep.parse("ir,sass", tmp_path / "run.jsonl")
