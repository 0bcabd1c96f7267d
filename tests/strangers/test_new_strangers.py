"""`tlmatrix new` writes specs of the strangers' kernels that pass as they stand.

A factory is traced; of an operator one small call is shown, as its author would try it.
"""

import shutil
import sys
from pathlib import Path

import pytest

from outside_project import Project
from tlmatrix.exit_codes import ExitCode

PROJECT = Path(__file__).parent / "project"

SCAN = """
import torch
from selective_scan import selective_scan

batch, length, dim, state = 2, 37, 40, 8
u, dt = torch.randn(2, batch, length, dim, device="cuda").half().unbind(0)
B, C = torch.randn(2, batch, length, state, device="cuda").half().unbind(0)
A_log = torch.randn(dim, state, device="cuda")
bias, D = torch.randn(2, dim, device="cuda").unbind(0)
out, last = torch.empty_like(u), torch.empty(batch, dim, state, device="cuda")
selective_scan(u, dt, bias, A_log, B, C, D, out=out, last_state=last)
"""
APPEND = """
import torch
from paged_append import append

cu_new = torch.tensor([0, 3, 4, 24], dtype=torch.int32)
lens = torch.tensor([7, 1, 37], dtype=torch.int32)
key, value = torch.randn(2, 24, 2, 12).half().unbind(0)
pools = torch.zeros(2, 9, 16, 2, 12).half().unbind(0)
table = torch.tensor([[4, -1, -1], [0, -1, -1], [2, 7, 5]], dtype=torch.int32)
append(key, value, *pools, table, cu_new, lens, 20)
"""
CU = "torch.tensor([0, 5, 8, 69], dtype=torch.int32)"
CALLS = {
    "segment_softmax:segment_softmax_kernel": [],
    "moe_grouped_gemm:grouped_gemm": [],
    "sinkhorn:sinkhorn_kernel": [],
    "quantize_int8:quantize_per_token": [],
    "selective_scan:selective_scan": ["--script", SCAN],
    "paged_append:append": ["--script", APPEND],
    "cross_entropy:cross_entropy": [
        "--call",
        "f(torch.randn(13, 200), torch.randint(0, 200, (13,)))",
    ],
    "varlen_conv1d:CausalConv1d.apply": [
        "--call",
        f"f(torch.randn(69, 40), torch.randn(40, 4), torch.randn(40), {CU}, 61)",
    ],
    "packed_rope:apply_rope_": [
        "--call",
        (
            "f(torch.randn(69, 3, 16).half(), torch.randn(69, 1, 16).half(), "
            f"torch.randn(61, 8), torch.randn(61, 8), {CU})"
        ),
    ],
    "topk_routing:route": [
        "--call",
        (
            "f(torch.randn(40, 6), torch.arange(3).repeat_interleave("
            "torch.tensor([5, 20, 15])).int(), 3)"
        ),
    ],
    "ragged:pad_packed": ["--call", f"f(torch.randn(69, 40), {CU}, 61)"],
    "layer_norm:LayerNorm": ["--call", "f(40)(torch.randn(17, 40).half())"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for path in PROJECT.glob("*.py"):
        shutil.copy(path, tmp_path)
        monkeypatch.delitem(sys.modules, path.stem, raising=False)  # another test's
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for path in PROJECT.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("target", CALLS, ids=lambda target: target.partition(":")[0])
def test_generated_spec_passes_unedited(target, folder):
    options = list(CALLS[target])
    if options[:1] == ["--script"]:
        (folder / "example.py").write_text(options[1])
        options[1] = "example.py"
    project = Project(folder)
    outcome = project.tlmatrix("new", target, *options, "-o", "new.yaml", "--no-run")
    assert outcome.code == ExitCode.OK, outcome.out
    text = (folder / "new.yaml").read_text()
    assert "?" not in text, "nothing is left for a person to decide"
    # Every value of its axes, and cases that are drawn; pairs of values are `test_strangers`'.
    for words in (["--tier", "each"], *([["-k", "fuzz"]] if "\nfuzz:" in text else [])):
        outcome = project.tlmatrix("run", "new.yaml", "-n", "0", *words, code=ExitCode.OK)
