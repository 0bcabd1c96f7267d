"""The check `sanitizers`: bugs that values do not show fail a case, by name, line and sequence."""

import inspect

import pytest
import watched_kernels as kernels

from tlmatrix.backend.backends import InterpreterBackend, ProcessesBackend
from tlmatrix.interpreter import SANITIZERS
from tlmatrix.report.text import describe_result
from tlmatrix.run import Status
from tlmatrix.run.plan import plan
from tlmatrix.run.result import CaseResult
from tlmatrix.run.runner import run_case
from tlmatrix.spec import parse_spec
from tlmatrix.spec.model.fields import SanitizerName

SPEC = """
name: doubling
problem: watched_kernels:{problem}
axes: {{lengths: [{lengths}]}}
checks: [{checks}]
"""
FACTORY = """
factory: watched_kernels:{name}
factory_args: {{{compile}}}
call: [{call}]
returns: [y]
"""


def run(
    binding,
    *,
    lengths="[20, 5, 30]",
    checks="sanitizers",
    more="",
    backend=None,
    problem="Doubling",
):
    head = SPEC.format(lengths=lengths, checks=checks, problem=problem)
    spec = parse_spec(head + binding + more)
    (case,) = plan(spec).cases()
    return run_case(spec, case, backend or InterpreterBackend())


def factory(name, sizes="total: total", call="x, y"):
    return FACTORY.format(name=name, compile=sizes, call=call)


def packed(bug):
    sizes = f"total: total, batch: 3, longest: longest, bug: \"'{bug}'\""
    return factory("packed_double", sizes, "x, cu_seqlens, y")


def entry(name):
    return f"entry: watched_kernels:{name}\n"


def line_of(name, mark):
    function = getattr(kernels, name)
    lines, first = inspect.getsourcelines(getattr(function, "func", function))
    return next(first + k for k, text in enumerate(lines) if f"# {mark}" in text)


def only(result):
    assert result.status is Status.FAILED, result
    (finding,) = result.findings
    assert finding.check == "sanitizers"
    return finding


def at(name, mark):
    return f"watched_kernels.py:{line_of(name, mark)}"


CLEAN = {
    "packed": packed("none"),
    "two launches write one output": entry("in_two_halves"),
    "a kernel writes a part of zeros": entry("onto_zeros"),
    "threads with roles": factory("with_roles"),
}


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_found_where_nothing_is_wrong(name):
    result = run(CLEAN[name], checks="numeric, poison, guards, sanitizers, determinism")
    assert (result.status, result.findings) == (Status.PASSED, ())


def test_a_store_into_the_next_sequence_that_its_owner_overwrites():
    assert run(packed("next sequence"), checks="numeric, poison").status is Status.PASSED
    result = run(packed("next sequence"), checks="numeric, poison, guards, sanitizers, determinism")
    finding = only(result)
    assert finding.title.startswith("sequences: write of target[25, 0] in row 25 of sequence 2")
    assert finding.tensor == "y"
    assert finding.index == {"sequence": 2, "position": 0, "position_tile": 0, "dim": 0}
    assert finding.source.endswith(at("packed_double", "full tile"))
    assert (finding.kernel, finding.block) == ("doubled", (0, 1))
    assert "bound the store by the length" in finding.hint
    # The same store seen by another sanitizer is evidence, not a second finding.
    assert "races: target[25, 0] is written by two blocks" in finding.detail


def summed(used):
    sizes = f"total: total, batch: 3, longest: longest, used: {used}"
    return factory("tiles_of_the_longest", sizes, "x, cu_seqlens, y")


def test_rows_of_another_sequence_that_are_read_and_masked_are_no_failure():
    watched = "numeric, poison, guards, sanitizers, determinism"
    result = run(summed(0), checks=watched, problem="Summing")
    assert (result.status, result.findings) == (Status.PASSED, ())
    # What is used of them shows, though nothing but the sanitizers looks.
    finding = only(run(summed(16), checks="sanitizers", problem="Summing"))
    assert finding.title.startswith("sequences: read of source[")
    assert finding.source.endswith(at("tiles_of_the_longest", "whole tile"))
    assert "results depend on it" in finding.hint


def test_a_finding_survives_the_results_file_and_reads_as_it_should():
    result = run(packed("next sequence"))
    assert CaseResult.from_json(result.to_json()).findings == result.findings
    text = "\n".join(describe_result(result, width=200))
    assert f"{at('packed_double', 'full tile')}, in kernel doubled, block (0, 1)" in text
    assert "element   y at sequence 2, position 0, position tile 0, dim 0" in text
    assert "repro     tlmatrix repro" in text


def test_two_blocks_that_write_the_same_value_to_one_element():
    finding = only(run(factory("overlapping_double"), checks="numeric, sanitizers, determinism"))
    assert finding.title == "races: target[16, 0] is written by two blocks"
    assert finding.against.startswith("a write by block (0,) at")
    assert finding.against.endswith(at("overlapping_double", "tall"))


def test_an_unwritten_row_is_told_once_with_the_store_that_should_have_written_it():
    finding = only(run(packed("unwritten"), checks="numeric, poison, sanitizers"))
    assert finding.title == "unwritten: y[19, 0] is never written, and 23 other elements"
    assert finding.index["sequence"] == 0
    assert finding.index["position"] == 19
    assert finding.source.endswith(at("packed_double", "guarded"))
    assert "24 of 440 elements were never written" in finding.detail
    assert "row 19 of sequence 0" in finding.detail


def test_an_unwritten_element_of_shared_memory_that_a_maximum_hides():
    finding = only(run(factory("staged_double", "total: total, bug: true"), checks="sanitizers"))
    assert finding.title == "uninitialised: stage[7] is read, never written"
    assert finding.tensor is None
    assert finding.source.endswith(at("staged_double", "staged"))


def test_a_workspace_that_another_kernel_left_unwritten():
    finding = only(run(entry("through_workspace"), checks="numeric, poison, sanitizers"))
    assert finding.title == "uninitialised: work[54, 0] is read, never written"
    assert finding.kernel == "redoubled"
    assert finding.source.endswith(at("redoubled_through", "from work"))


def test_values_that_are_not_finite_are_told_with_the_operation_that_made_the_first():
    (finding,) = run(factory("born_nan"), checks="numeric, sanitizers").findings
    assert finding.check == "numeric"
    assert "nonfinite: target[0, 0] becomes NaN" in finding.detail
    assert at("born_nan", "born") in finding.detail


def test_an_access_that_stops_the_kernel_is_a_finding_with_its_line():
    finding = only(run(factory("unguarded_double"), checks="numeric, sanitizers, determinism"))
    assert finding.title.startswith("bounds: index 55 of dimension 0 of source[55, 0] is outside")
    assert "also bounds: index 55 of dimension 0 of target" in finding.detail
    assert "not run: determinism" in finding.detail
    unwatched = run(factory("unguarded_double"), checks="numeric")
    assert unwatched.status is Status.ERROR


def test_a_spec_says_whose_the_rows_of_a_workspace_are():
    told = {
        "short": "sanitizers: {sequences: {work: cu_seqlens}}\n",
        "long": "sanitizers: {sequences: {work: {boundaries: cu_seqlens, dim: 0}}}\n",
    }
    assert only(run(entry("by_sequence"))).title.startswith("races: work[")
    for words in told.values():
        finding = only(run(entry("by_sequence"), more=words))
        assert finding.title.startswith("sequences: write of work[25, 0] in row 25 of sequence 2")


def test_boundaries_that_the_problem_does_not_have_are_an_error_at_their_line():
    result = run(entry("by_sequence"), more="sanitizers: {sequences: {work: cu_seqlen}}\n")
    (finding,) = result.findings
    assert result.status is Status.ERROR
    assert "7:32: sanitizers: 'cu_seqlen' is not a list of integers" in finding.title
    assert "did you mean 'cu_seqlens'?" in finding.title


def test_sanitizers_can_be_left_out_and_added():
    assert (
        run(factory("overlapping_double"), more="sanitizers: {without: [races]}\n").findings == ()
    )
    finding = only(
        run(factory("overlapping_double"), more="sanitizers: {also: [guarded], without: [races]}\n")
    )
    assert finding.title.startswith("guarded: ")


def test_a_backend_leaves_out_checks_that_it_does_not_support():
    backend = ProcessesBackend()
    assert "sanitizers" in backend.unsupported_checks
    assert run(packed("next sequence"), backend=backend).status is Status.PASSED


def test_the_spec_language_names_the_interpreters_sanitizers():
    assert set(SanitizerName.__args__) == set(SANITIZERS)
