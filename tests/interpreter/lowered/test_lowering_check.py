"""Source and lowered code are compared; what differs is a finding about TileLang's passes."""

import runpy
from dataclasses import replace

import pytest
import tilelang.language as T
import torch
from tilelang import tvm

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.frontend import lowering_check
from tlmatrix.interpreter.lowered import lowering


@jit_kernel(X="f32[64]", Y="f32[64]", threads=64)
def scaled(X, Y, factor=2.0):
    for i in T.Parallel(64):
        Y[i] = X[i] * factor


def with_factor(module, before, after):
    """A module with another constant."""
    tirx = tvm.tirx

    def replaced(node):
        changed = isinstance(node, tirx.FloatImm) and node.value == before
        return tirx.FloatImm("float32", after) if changed else None

    functions = {
        name: function.with_body(
            tirx.stmt_functor.ir_transform(function.body, None, replaced, ["ir.FloatImm"])
        )
        for name, function in module.functions.items()
    }
    return tvm.IRModule(functions)


@pytest.fixture
def broken_after(monkeypatch):
    """`broken_after(NAME, FACTOR)`: from that pass on lowered code multiplies by 3."""

    def install(name, factor):
        original = lowering.lower

        def lower(func, arch, configs, *, stages=False):
            right = original(func, arch, configs, stages=stages)
            names = [each for each, _ in right.stages]
            at = names.index(name) if stages else 0
            planted = [(n, with_factor(m, factor, 3.0)) for n, m in right.stages[at:]]
            device = with_factor(right.device, factor, 3.0)
            return replace(right, device=device, stages=(*right.stages[:at], *planted))

        monkeypatch.setattr(lowering, "lower", lower)
        monkeypatch.setattr(lowering_check, "lower", lower)

    return install


def launched(x, y, factor=2.0):
    with interpret(arch="sm_80", lowered=True, sanitize=True, on_report="keep") as run:
        scaled(factor)(x, y)
    return run.reports


def test_a_right_lowering_is_no_finding():
    x, y = torch.arange(64.0), torch.full((64,), float("nan"))
    assert launched(x, y) == []
    assert torch.equal(y, 2 * x)


def test_a_wrong_value_names_the_pass(broken_after, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLMATRIX_PROGRAMS", "off")
    broken_after("tl.VectorizeLoop", 4.0)
    (report,) = launched(torch.arange(64.0), torch.full((64,), float("nan")), 4.0)
    assert (report.sanitizer, report.buffer, report.index) == ("lowering", "Y", (1,))
    assert "Y[1] is 3, and the source gives 4" in report.message
    assert "the pass tl.VectorizeLoop brings it in" in report.message
    assert report.count == 63


def test_the_script_needs_no_tlmatrix(broken_after, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLMATRIX_PROGRAMS", "off")
    broken_after("tl.VectorizeLoop", 5.0)
    launched(torch.arange(64.0), torch.full((64,), float("nan")), 5.0)
    (script,) = tmp_path.glob(".tlmatrix/lowering/scaled-sm_80-*/show.py")
    assert "tlmatrix" not in script.read_text()
    # On this machine kernels are interpreted instead of compiled, which gives the source's values.
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with interpret(arch="sm_80"):
        runpy.run_path(str(script))


def test_elements_that_only_one_of_them_writes():
    before = torch.full((4,), float("nan"))
    source, lowered = torch.tensor([1, 0.3, float("nan"), 2]), torch.tensor([1, 0.3, 0.7, 2])
    lowered[3], source[2] = before[3], before[2]
    found = lowering_check.difference("Y", before, source, lowered)
    assert (found.index, found.count) == ((2,), 2)


def test_rounding_is_no_difference():
    before, source = torch.zeros(3), torch.tensor([0.0, 0.1, 5.0])
    lowered = torch.tensor([1e-8, 0.1000001, 5.0])
    assert lowering_check.difference("Y", before, source, lowered) is None


def test_whole_sums_of_float8_products_are_not_exact():
    """Tensor cores keep some 14 bits of them, in groups that source and lowered code may form
    otherwise."""
    before, source = torch.zeros(2), torch.tensor([49494.0, 3.0])
    lowered = torch.tensor([49485.0, 3.0])
    assert lowering_check.difference("C", before, source, lowered) is not None
    assert lowering_check.difference("C", before, source, lowered, float8=True) is None
    unwritten = torch.full((2,), float("nan"))
    lost = torch.tensor([float("nan"), 3.0])
    assert lowering_check.difference("C", unwritten, source, lost, float8=True) is not None


def test_large_numbers_of_float16_are_rounded():
    before = torch.full((2,), float("nan")).half()
    source, lowered = (
        torch.tensor([-14056.0, 1500.0]).half(),
        torch.tensor([-14048.0, 1501.0]).half(),
    )
    assert lowering_check.difference("Y", before, source, lowered) is None


@jit_kernel(X="f32[256]", Y="f16[256]", p="i32", threads=32)
def guarded_casts(X, Y, p):
    for i in T.Parallel(256):
        if p > 0:  # noqa: SIM102 - two guards, as in the report
            if p > 1:
                Y[i] = X[i]


def test_registers_that_are_stored_unwritten():
    # https://github.com/tile-ai/tilelang/issues/2616: only the outer guard survives
    x, y = torch.randn(256), torch.full((256,), 7.0).half()
    with interpret(arch="sm_80", lowered=True, sanitize=True, on_report="keep") as run:
        guarded_casts()(x, y, 1)
    (found,) = [report for report in run.reports if report.sanitizer == "lowering"]
    assert "the pass tl.DecoupleTypeCast brings it in" in str(found)
