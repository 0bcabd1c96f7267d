"""`cuda_graph`: a call is captured once and replayed with other data, on simulated ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from spec_results import results_of
from tlmatrix.backend.backends import InterpreterBackend, ProcessesBackend
from tlmatrix.problem.model import CapturedRelation
from tlmatrix.problem.relations import repeated
from tlmatrix.run import Status
from tlmatrix.run.other_calls import with_cuda_graph
from tlmatrix.run.plan import plan
from tlmatrix.spec import SpecError, parse_spec

HERE = Path(__file__).parent
TEXT = """
name: gather
problem: collective
entry: captured_entries:ENTRY
context: captured_entries:create_context
cuda_graph: GRAPH
axes:
  world: [3]
  operation: [all_gather]
  dtype: [bfloat16]
  rows: [25]
  cols: [64]
  uneven: [balanced]
  values: [normal]
"""
REFUSED = "{when: world == 1, otherwise: {raises: RuntimeError, message: cannot be captured}}"


def judged(runner, entry, graph="true"):
    text = TEXT.replace("ENTRY", entry).replace("GRAPH", graph)
    (made,) = results_of(text, HERE / f"{entry}.yaml", runner=runner, reruns={"repeat"})
    assert "cuda_graph" in made.relations or graph == "false"
    return made


@pytest.mark.parametrize("entry", ["barriers_on_both_sides", "collective"])
def test_a_call_that_can_be_captured_passes(runner, entry):
    result = judged(runner, entry)
    assert (result.status, result.findings) == (Status.PASSED, ())


def test_a_choice_that_the_host_made_at_capture_is_a_finding(runner):
    """As calls it is right: without `cuda_graph` nobody knows."""
    assert judged(runner, "halves_that_take_turns", "false").status is Status.PASSED
    found = judged(runner, "halves_that_take_turns").findings
    assert {each.check for each in found} == {"sanitizers"}
    assert "of a graph" in found[0].title
    assert "memory is used again before all have read it" in found[0].title


def test_a_call_that_writes_what_a_replay_still_reads_is_a_finding(runner):
    assert judged(runner, "barrier_before_a_graph_only", "false").status is Status.PASSED
    found = judged(runner, "barrier_before_a_graph_only").findings
    assert {each.check for each in found} == {"sanitizers"}
    assert "of a graph" in found[0].title


def test_stale_data_in_a_replay_is_a_finding(runner):
    (finding,) = judged(runner, "what_the_first_call_found").findings
    assert finding.title.startswith("cuda_graph: y: ")
    assert "captured to a CUDA graph once, and replayed with other data" in finding.detail
    assert "the entry keeps state" in finding.detail


def test_other_roundings_of_a_replay_are_a_finding_unless_declared(runner):
    (finding,) = judged(runner, "rounded_where_captured").findings
    assert finding.title.startswith("cuda_graph: y: ")
    assert "must be bit for bit equal" in finding.title
    # A gather is allowed nothing by itself.
    bounded = "{mode: bounded}\ntolerance: {default: {floor: 0.05}}"
    assert judged(runner, "rounded_where_captured", bounded).status is Status.PASSED
    (finding,) = judged(runner, "what_the_first_call_found", bounded).findings
    assert finding.title.startswith("cuda_graph: y: ")


def test_a_host_read_during_capture_is_a_finding_with_its_line(runner):
    (finding,) = judged(runner, "reading_on_the_host").findings
    assert finding.check == "repeat"
    assert "operation not permitted when stream is capturing" in finding.title
    assert "captured_entries.py" in finding.detail


def test_a_declared_refusal_is_tested(runner):
    assert judged(runner, "refusing", REFUSED).status is Status.PASSED
    (finding,) = judged(runner, "barriers_on_both_sides", REFUSED).findings
    assert finding.title == (
        "cuda_graph: the call was captured without an exception; expected "
        "RuntimeError with 'cannot be captured' in its message"
    )
    (finding,) = judged(runner, "reading_on_the_host", REFUSED).findings
    assert "expected RuntimeError with 'cannot be captured' in its message" in finding.title


def test_a_declared_refusal_is_tested_without_other_data_for_the_capture(runner):
    text = TEXT.replace("ENTRY", "refusing")
    for graph, tried in ((REFUSED, [True]), ("true", [])):
        spec = parse_spec(text.replace("GRAPH", graph), HERE / "refusing.yaml")
        (case,) = plan(spec).cases()
        problem = replace(runner.prepared(spec, case)[0], relations=lambda _kind: [])
        found = with_cuda_graph(spec, case, problem, runner.backend).relations("repeat")
        assert [isinstance(each, CapturedRelation) for each in found] == tried


def test_an_undeclared_refusal_is_a_finding(runner):
    (finding,) = judged(runner, "refusing").findings
    assert "this gather cannot be captured" in finding.title


def test_a_backend_without_graphs_captures_nothing(runner):
    spec = parse_spec(TEXT.replace("ENTRY", "collective").replace("GRAPH", "true"), HERE / "x.yaml")
    (case,) = plan(spec).cases()
    problem, _ = runner.prepared(spec, case)
    problem = replace(problem, relations=_one_repeat(problem))
    for backend, graphs in ((ProcessesBackend(), 0), (InterpreterBackend(), 1)):
        found = with_cuda_graph(spec, case, problem, backend)
        relations = found.relations("repeat")
        assert sum(isinstance(each, CapturedRelation) for each in relations) == graphs


def _one_repeat(problem):
    return lambda _kind: [repeated(problem, problem, "")]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  world: [3]\n", "", "'cuda_graph' needs several ranks"),
        ("axes:", "checks: [numeric]\naxes:", "'cuda_graph' has no effect"),
        ("GRAPH", "{when: overlap}", "unknown name 'overlap'"),
        ("GRAPH", "{unless: world == 1}", "unless"),
        ("GRAPH", "{otherwise: {raises: RuntimeError}}", "message"),
        ("GRAPH", "maybe", "cuda_graph"),
    ],
)
def test_what_is_wrong_with_the_key_is_said_at_its_place(old, new, words):
    text = TEXT.replace(old, new).replace("GRAPH", "true").replace("ENTRY", "collective")
    with pytest.raises(SpecError) as error:
        parse_spec(text, HERE / "wrong.yaml")
    assert any(words in issue.message and issue.line > 1 for issue in error.value.issues)
