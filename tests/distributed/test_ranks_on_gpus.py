"""Ranks as processes with one GPU each: passing cases, faults, and cases after a fault."""

from pathlib import Path

import pytest

from tlmatrix.run import SkipReason, Status
from tlmatrix.run.plan import plan
from tlmatrix.spec import parse_spec

pytestmark = pytest.mark.cuda

HERE = Path(__file__).parent
GEMM = """
name: all_gather_gemm
problem: gemm
entry: rank_entries:ENTRY
axes: {world: [2], dtype: [float32], m: [17], n: [8], k: [16], values: [normal]}
shards: {a: {dim: m, uneven: balanced}, b: {dim: n}, c: {dim: n}}
"""
GATHER = """
name: gather
problem: collective
entry: ENTRY
context: CONTEXT
axes:
  world: [WORLD]
  operation: [all_gather]
  dtype: [bfloat16]
  rows: [12, 64]
  cols: [64]
  uneven: [none]
  values: [normal]
"""
OURS = "tlmatrix_kernels.distributed:all_gather", "tlmatrix_kernels.distributed:create_context"
PULLED = "rank_entries:pulled", "rank_entries:create_context"


SECONDS = 30
"""For a call, and twice that for the first of a case, which compiles."""


@pytest.fixture(scope="module")
def runner():
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    from tlmatrix.backend import backend_named
    from tlmatrix.run.runner import Runner

    found = Runner(backend_named("cuda"), rank_seconds=SECONDS)
    yield found
    found.close()


def run(runner, text, entry):
    spec = parse_spec(text.replace("ENTRY", entry), HERE / f"{entry}.yaml")
    return [runner.run(spec, case) for case in plan(spec).expansion]


@pytest.mark.parametrize(("entry", "context"), [OURS, PULLED])
def test_a_gather_over_symmetric_memory_passes_every_check(runner, entry, context):
    text = GATHER.replace("WORLD", "2").replace("CONTEXT", context)
    found = run(runner, text, entry)
    assert [finding.title for result in found for finding in result.findings] == []
    assert {result.status for result in found} == {Status.PASSED}


def test_collectives_of_nccl_pass_every_check(runner):
    (result,) = run(runner, GEMM, "all_gather_gemm")
    assert [finding.title for finding in result.findings] == []


def test_a_neighbours_shard_is_found(runner):
    (result,) = run(runner, GEMM, "neighbours_shard")
    assert result.findings[0].where == "n 4-7, all of rank 1"


def test_a_rank_that_raises_is_named_and_later_cases_run(runner):
    (result,) = run(runner, GEMM, "raising")
    assert result.findings[0].title == "rank 1 of 2 raises ValueError: no such shard"
    (result,) = run(runner, GEMM, "all_gather_gemm")
    assert result.status is Status.PASSED


@pytest.mark.parametrize("entry", ["kernel_waits_for_nobody", "stream_waits_for_nobody"])
def test_a_gpu_that_waits_for_ever_is_ended_and_later_cases_run(runner, entry):
    text = GATHER.replace("WORLD", "2").replace("CONTEXT", PULLED[1])
    (result,) = run(runner, text.replace("[12, 64]", "[12]"), f"rank_entries:{entry}")
    (finding,) = result.findings
    assert finding.title == f"every rank did not come back within {2 * SECONDS} s"
    assert {result.status for result in run(runner, text, PULLED[0])} == {Status.PASSED}


def test_more_ranks_than_gpus_are_skipped_with_that_reason(runner):
    text = GATHER.replace("WORLD", "64").replace("CONTEXT", PULLED[1])
    result = run(runner, text, PULLED[0])[0]
    assert (result.status, result.reason) == (Status.SKIPPED, SkipReason.GPUS)
