"""Ranks as processes with a gloo group: right entries pass, and each fault names its rank.

The processes are started once, and again after a rank was lost.
"""

from pathlib import Path

import pytest

from spec_results import results_of
from tlmatrix.backend import backend_named
from tlmatrix.run import Status
from tlmatrix.run.runner import Runner

pytestmark = pytest.mark.usefixtures("preloaded")

HERE = Path(__file__).parent
GEMM = """
name: all_gather_gemm
problem: gemm
entry: rank_entries:ENTRY
axes: {world: [2], dtype: [float32], m: [17], n: [8], k: [12], values: [normal]}
shards: {a: {dim: m, uneven: balanced}, b: {dim: n}, c: {dim: n}}
checks: [numeric, poison, guards, determinism, repeat]
"""


@pytest.fixture(scope="module")
def runner():
    found = Runner(backend_named("processes"), rank_seconds=5.0)
    yield found
    found.close()


def run(runner, entry, text=GEMM):
    text = text.replace("ENTRY", entry)
    (result,) = results_of(text, HERE / f"{entry}.yaml", runner=runner)
    return result


def test_an_entry_runs_on_all_ranks_and_its_results_are_put_together(runner):
    result = run(runner, "all_gather_gemm")
    assert [finding.title for finding in result.findings] == []
    assert result.status is Status.PASSED
    assert result.backend == "processes"


def test_a_neighbours_shard_is_found_and_the_rank_is_named(runner):
    result = run(runner, "neighbours_shard")
    finding = result.findings[0]
    assert (finding.check, finding.pattern) == ("numeric", "a shard")
    assert finding.where == "n 4-7, all of rank 1"
    assert finding.hint == "rank 1 has the shard of rank 0: the offset of another rank?"
    assert finding.index["rank"] == 1


def test_a_shard_of_another_shape_is_reported_with_rank_and_both_shapes(runner):
    (short,) = run(runner, "one_row_short").findings
    assert short.title == (
        "rank 1 of 2: c has shape [16, 4], expected [17, 4], its shard of [17, 8]"
    )
    (whole,) = run(runner, "returning_all").findings
    assert whole.title.startswith("every rank: c has shape [17, 8], expected [17, 4]")
    assert "that is the whole" in whole.hint


def test_a_rank_that_raises_is_named_with_its_line(runner):
    result = run(runner, "raising")
    (finding,) = result.findings
    assert result.status is Status.ERROR
    assert finding.title == "rank 1 of 2 raises ValueError: no such shard"
    assert "rank_entries.py" in finding.detail
    assert "rank 0 was still waiting" in finding.detail


def test_a_rank_that_hangs_is_ended_and_the_line_of_every_rank_is_reported(runner):
    (finding,) = run(runner, "hanging").findings
    assert finding.check == "ranks"
    assert finding.title == "every rank did not come back within 5 s"
    lines = finding.detail.splitlines()
    assert any(line.startswith("rank 1 is at") and "in hanging" in line for line in lines)
    assert any(line.startswith("rank 0 is at") and "in gathered" in line for line in lines)
    # Who comes next finds ranks that work.
    assert run(runner, "all_gather_gemm").status is Status.PASSED


def test_a_process_that_ends_is_reported_with_its_output(runner):
    (finding,) = run(runner, "leaving").findings
    assert finding.title == "rank 1 of 2: its process ended with status 3"
    assert "the last words of rank 1" in finding.detail
