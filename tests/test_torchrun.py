"""Specs under torchrun: rank 0 runs all cases; the other ranks succeed without cases."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("preloaded")

SPEC = """
name: all_gather_gemm
problem: gemm
entry: rank_entries:all_gather_gemm
axes: {world: [2], dtype: [float32], m: [8], n: [4], k: [16], values: [normal]}
shards: {a: {dim: m}, b: {dim: n}, c: {dim: n}}
checks: [numeric]
"""
ENTRY = """
import os

import torch
import torch.distributed as dist


def all_gather_gemm(a, b):
    assert not [name for name in os.environ if name.startswith("TORCHELASTIC_")]
    parts = [torch.empty_like(a) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, a)
    return torch.cat(parts) @ b
"""


def test_rank_0_runs_every_case_and_the_other_ranks_run_none(tmp_path):
    (tmp_path / "gemm.yaml").write_text(SPEC)
    (tmp_path / "rank_entries.py").write_text(ENTRY)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", "-m", "pytest", "gemm.yaml", "--tlmatrix-backend", "processes"]
    done = subprocess.run(
        [*command, "--tlmatrix-results", "r.jsonl"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    statuses = [line["status"] for line in lines if "status" in line]
    assert statuses == ["passed"], "one record: rank 1 runs nothing"
    assert "rank 1 of 2 of torchrun: rank 0 runs all cases" in told
