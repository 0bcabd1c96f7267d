"""Commands and a spec with the axis `world`: they work, or refuse by name."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.backend.backends import CudaBackend
from tlmatrix.backend.gpus import ALL_GPUS, all_visible_gpus
from tlmatrix.processes import idle_rank, without_launcher
from tlmatrix.run import Status
from tlmatrix.run.harness import Harness
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import SpecError, parse_spec

pytestmark = pytest.mark.usefixtures("preloaded")

BESIDE = Path(__file__).with_name("ranks.yaml")
GEMM = """
name: all_gather_gemm
problem: gemm
entry: rank_entries:all_gather_gemm
axes: {world: [2], dtype: [float32], m: [8], n: [4], k: [16], values: [normal]}
shards: {a: {dim: m}, b: {dim: n}, c: {dim: n}}
"""


def only_case(spec):
    (case,) = plan(spec).expansion
    return case


def test_a_case_of_more_gpus_than_there_are_is_skipped_with_that_reason(monkeypatch):
    import torch

    monkeypatch.setenv(ALL_GPUS, "0")
    spec = parse_spec(GEMM, BESIDE)
    harness = Harness(backend_named("interpreter"))
    bound = harness.bind(spec)
    problem = harness.problem(bound, spec, only_case(spec), seed=0)
    backend = CudaBackend(torch.device("cuda", 0), "sm_90")
    run = harness.entry(replace(bound.binding, backend=backend))
    with pytest.raises(RuntimeError, match="needs 2 GPUs, and 1 is visible; `--backend interp"):
        run(problem)


def test_a_worker_with_one_gpu_knows_those_of_the_user(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert all_visible_gpus() == ("3",)
    monkeypatch.setenv(ALL_GPUS, "0,1,3")
    assert all_visible_gpus() == ("0", "1", "3")


def test_a_tensor_that_the_problem_does_not_have_is_an_error_of_the_plan():
    spec = parse_spec(GEMM.replace("a: {dim: m}", "q: {dim: m}"), BESIDE)
    with pytest.raises(SpecError, match=r"the problem has no tensor 'q'\. Its tensors: a, b, c"):
        plan(spec)


def test_an_axis_that_only_shards_name_is_read():
    text = GEMM.replace("values:", "order: [contiguous, zigzag], values:")
    spec = parse_spec(text.replace("{dim: m}", "{dim: m, order: $order}"), BESIDE)
    runner = Runner(backend_named("interpreter"))
    statuses = {case["order"]: runner.run(spec, case).status for case in plan(spec).expansion}
    # Rows gathered of a zigzag are not those of the whole.
    assert statuses == {"contiguous": Status.PASSED, "zigzag": Status.FAILED}


def test_of_the_processes_of_torchrun_the_first_alone_does_what_is_asked(tmp_path):
    (tmp_path / "gemm.yaml").write_text(GEMM)
    told = []
    for rank in "01":
        env = {**os.environ, "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": rank}
        command = [sys.executable, "-m", "tlmatrix", "list", str(tmp_path / "gemm.yaml")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0
        told.append((done.stdout, done.stderr))
    assert "all_gather_gemm" in told[0][0]
    assert told[1][0] == ""
    assert told[1][1].startswith(
        "tlmatrix: this process is rank 1 of 2 of torchrun: rank 0 runs all"
    )


def test_the_environment_of_our_ranks_has_nothing_of_a_launcher():
    given = {"RANK": "1", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "a", "HOME": "/here"}
    assert without_launcher(given) == {"HOME": "/here"}
    assert idle_rank({"RANK": "1", "WORLD_SIZE": "2"}) == "", "a rank of the user's own launcher"
    assert idle_rank({**given, "RANK": "0"}) == ""
