"""A spec on simulated ranks: each fault names its rank, and what is right passes."""

from pathlib import Path

import pytest

from spec_results import results_of
from tlmatrix.run import Status

HERE = Path(__file__).parent
GEMM = """
name: all_gather_gemm
problem: gemm
entry: rank_entries:ENTRY
axes: {world: [WORLD], dtype: [float32], m: [17], n: [12], k: [12], values: [normal]}
shards: {a: {dim: m, uneven: balanced}, b: {dim: n}, c: {dim: n}}
invalid_inputs:
  multiple of 8: {k: 9}
"""
COLLECTIVE = """
name: collective
problem: collective
entry: rank_entries:ENTRY
axes:
  world: [WORLD]
  operation: [OPERATION]
  dtype: [bfloat16]
  rows: [12, 25]
  cols: [64]
  uneven: [balanced]
  values: [normal]
"""
CONTEXT = "context: rank_entries:create_context\n"


def results(runner, text, entry, *, world=3, operation="all_gather"):
    text = text.replace("ENTRY", entry).replace("WORLD", str(world))
    text = text.replace("OPERATION", operation)
    return results_of(text, HERE / f"{entry}.yaml", runner=runner, origins={"tier"})


def invalid(runner, text, entry):
    return results_of(text, HERE / f"{entry}.yaml", runner=runner, origins={"invalid"})


def findings(runner, text, entry, **options):
    return [each for result in results(runner, text, entry, **options) for each in result.findings]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_product_of_gathered_rows_passes_every_check(runner, world):
    (result,) = results(runner, GEMM, "all_gather_gemm", world=world)
    assert [finding.title for finding in result.findings] == []
    assert result.status is Status.PASSED


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(
    ("operation", "entry"), [("all_gather", "all_gather"), ("reduce_scatter", "reduce_scatter")]
)
def test_collectives_alone_pass_every_check(runner, world, operation, entry):
    text = COLLECTIVE + (CONTEXT if operation == "all_gather" else "")
    found = results(runner, text, entry, world=world, operation=operation)
    assert len(found) == 2
    assert [finding.title for result in found for finding in result.findings] == []


def test_the_shard_of_another_rank_is_a_finding_that_names_the_rank(runner):
    first = findings(runner, GEMM, "neighbours_shard")[0]
    assert (first.check, first.pattern) == ("numeric", "a shard")
    assert first.where == "n 4-7, all of rank 1"
    assert first.hint == "rank 1 has the shard of rank 2: the offset of another rank?"


def test_a_wrong_shard_shape_is_a_finding_with_rank_and_both_shapes(runner):
    (short,) = findings(runner, GEMM, "one_row_short")
    assert short.title == (
        "ranks 1 and 2 of 3: c has shape [16, 4], expected [17, 4], its shard of [17, 12]"
    )
    (whole,) = findings(runner, GEMM, "returning_all")
    assert whole.title.startswith("every rank: c has shape [17, 12], expected [17, 4]")
    assert "that is the whole" in whole.hint


def test_an_exception_names_its_rank_and_line(runner):
    (result,) = results(runner, GEMM, "raising")
    (finding,) = result.findings
    assert result.status is Status.ERROR
    assert finding.title == "rank 1 of 3 raises ValueError: no such shard"
    assert "rank_entries.py" in finding.detail


def test_a_deadlock_names_the_waiting_ranks_and_lines(runner):
    found = findings(runner, GEMM, "waiting_alone")
    told = "\n".join(f"{each.title}\n{each.detail}" for each in found)
    assert "rank 1" in told
    assert "barrier" in told
    assert "rank_entries.py" in told


def test_replicated_results_must_be_equal_on_all_ranks(runner):
    first = findings(runner, COLLECTIVE, "differing")[0]
    assert first.check == "ranks"
    assert first.title.startswith("rank 1 of 3: y: 1 of 1600 elements differ")
    assert "against that of rank 0" in first.title
    assert "largest error against the reference: rank 0 0, rank 1 1, rank 2 0" in first.detail


def test_repeated_calls_on_one_context_detect_leaked_state(runner):
    found = findings(runner, COLLECTIVE + CONTEXT, "stale_when_called_again")
    assert {each.check for each in found} == {"repeat"}


def test_a_context_must_support_the_shapes_of_later_calls(runner):
    found = findings(runner, COLLECTIVE + CONTEXT, "too_small_for_more")
    # Of rows 12 and 25, only a longer call after a shorter one shows it.
    assert {(each.check, each.tensor) for each in found} == {("repeat", "y")}
    assert all(each.title.startswith("other_options: ") for each in found)
    assert any("a call with rows=25 came before" in each.detail for each in found)


def test_low_precision_sums_are_a_finding(runner):
    text = COLLECTIVE + "tolerance: {default: {factor: 1.25}}\n"
    options = {"operation": "reduce_scatter", "world": 8}
    assert findings(runner, text, "reduce_scatter", **options) == []
    found = findings(runner, text, "reduce_scatter_in_low_precision", **options)
    assert "numeric" in {each.check for each in found}


def test_an_entry_that_writes_to_its_input_shard_is_a_finding(runner):
    first = findings(runner, COLLECTIVE, "writes_to_its_shard")[0]
    assert first.check == "guards"
    assert first.title.startswith("every rank: the entry changed its input x")


def test_an_invalid_input_must_raise_on_every_rank(runner):
    for entry, status in (("refusing", Status.PASSED), ("all_gather_gemm", Status.FAILED)):
        text = GEMM.replace("ENTRY", entry).replace("WORLD", "3").replace("k: [12]", "k: [16]")
        assert [result.status for result in invalid(runner, text, entry)] == [status]


def test_an_invalid_shard_length_must_raise(runner):
    """Every rank gets the invalid input; where the split length stays, its part of it."""
    base = (
        GEMM.replace("ENTRY", "refusing_rows").replace("WORLD", "3").partition("invalid_inputs:")[0]
    )
    changes = (
        ("a: {shape: [40, 12]}", "of 17 rows, got 40", Status.PASSED),
        ("a: {shape: [12]}", "of 17 rows, got 12", Status.PASSED),
        ("a: {shape: [17, 12]}", "rows, got", Status.FAILED),
    )
    for change, words, status in changes:
        text = f"invalid_inputs: {{'{words}': {{{change}}}}}\n"
        (result,) = invalid(runner, base + text, "refusing_rows")
        assert result.status is status, (change, result.findings, result.message)


def test_an_invalid_input_must_raise_after_a_valid_call_on_its_context(runner):
    base = GEMM.replace("WORLD", "2").partition("invalid_inputs:")[0] + CONTEXT
    base += "invalid_inputs: {'rows, got': [{a: {shape: [40, 12]}}, {a: {shape: [30, 12]}}]}\n"
    for entry, call in (("refusing_rows_once", "after a valid call"), ("refusing_rows", None)):
        for result in invalid(runner, base.replace("ENTRY", entry), entry):
            calls = [each.call for each in result.findings]
            assert calls == ([call] if call else []), result.findings


def test_an_invalid_tensor_is_not_copied_into_that_of_the_valid_call(runner):
    text = GEMM.replace("ENTRY", "refusing_meta").replace("WORLD", "2").partition("invalid_")[0]
    text += CONTEXT + "invalid_inputs: {a must be on the device of b: {a: {device: meta}}}\n"
    assert [result.findings for result in invalid(runner, text, "refusing_meta")] == [()]


def test_a_length_that_the_ranks_do_not_divide_is_a_spec_error(runner):
    (result,) = results(runner, GEMM.replace(", uneven: balanced", ""), "all_gather_gemm")
    (finding,) = result.findings
    assert (result.status, finding.check) == (Status.ERROR, "spec")
    assert "which 3 ranks cannot share evenly" in finding.title


PULLED = COLLECTIVE.replace("[12, 25]", "[12]").replace("[balanced]", "[none]") + CONTEXT


def test_reads_between_two_barriers_pass_every_check(runner):
    assert [each.title for each in findings(runner, PULLED, "pulled", world=2)] == []


def test_an_unordered_remote_read_is_a_race(runner):
    found = findings(runner, PULLED, "pulled_before_it_is_there", world=2)
    races = [each for each in found if each.check == "sanitizers"]
    assert races
    assert races[0].title.startswith("races: ")
    assert "by rank" in races[0].against
    assert "rank_entries.py" in races[0].source
    assert "a barrier of the ranks" in races[0].hint


def test_repeated_calls_detect_a_buffer_that_the_next_call_overwrites(runner):
    """One call alone is right: there is no barrier only between it and the next."""
    found = findings(runner, PULLED, "overwritten_while_others_pull", world=2)
    assert {each.check for each in found} >= {"sanitizers"}


def test_a_context_that_serves_one_stream_alone_is_named_as_such(runner):
    text = PULLED.replace("rows: [12]", f"rows: {list(range(2, 66, 2))}")
    found = findings(runner, text, "pulled_on_any_stream", world=2)
    assert found
    assert {each.check for each in found} == {"sanitizers"}
    assert all("gets another in each of these calls" in each.detail for each in found)


def test_a_race_that_depends_on_data_is_found_in_the_run_with_other_data(runner):
    """The run with huge values is watched as the first one is, and as calls in a row are."""
    found = findings(runner, PULLED, "unordered_for_huge_values", world=2)
    assert {each.check for each in found} >= {"sanitizers"}
    assert any(each.title.startswith("races: ") and "rank 1" in each.title for each in found)


def test_a_missing_signal_is_a_finding_with_the_waiting_ranks(runner):
    found = findings(runner, PULLED, "never_signalled", world=2)
    told = "\n".join(f"{each.title}\n{each.detail}" for each in found)
    assert "rank 0" in told
    assert "rank_entries.py" in told


CODE = """
import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def product():
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float16"), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128) as _:
            s = T.alloc_shared((32, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            T.copy(A, s)
            T.wgmma_gemm(s, s, acc, clear_accum=True)
            T.copy(acc, C)

    return main


def squared(a):
    c = a.new_empty(32, 32, dtype=torch.float32)
    product()(a, c)
    return c


def reference(a):
    wide = a.to(torch.promote_types(a.dtype, torch.float32))
    return wide @ wide
"""


def test_a_race_inside_a_kernel_is_no_deadlock(runner, code_folder):
    text = """
    name: squared
    problem:
      inputs: {a: {shape: [n, n], dtype: float16}}
      outputs: [c]
      reference: simulated_ranks_code:reference
    entry: simulated_ranks_code:squared
    axes: {world: [1], n: [32]}
    shards: {a: {dim: 0}, c: {dim: 0}}
    checks: [numeric, determinism]
    """
    (result,) = results_of(text, code_folder / "squared.yaml", runner=runner)
    (finding,) = result.findings
    assert finding.check == "sanitizers"
    assert finding.title.startswith("races: threads 0..127 read acc[0:32, 0:32]")
    assert "T.wait_wgmma(0)" in finding.hint
