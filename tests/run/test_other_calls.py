"""Calls with other options or data before a call, and between its forward and its backward pass."""

import sys
from pathlib import Path

import pytest
import torch

from tlmatrix.problem.model import Problem, ReferenceFailedError
from tlmatrix.run import Status
from tlmatrix.run import harness as harness_module
from tlmatrix.run.other_calls import another_case
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import load_spec, parse_spec

SPECS = Path(__file__).parents[2] / "specs"
SPEC = """
name: scaled
problem:
  inputs: {{x: {{shape: [rows, 8], dtype: float32, grad: true}}}}
  outputs: [y]
  reference: {{function: other_calls_code:reference, call: [x, scale, shifted]}}
entry: other_calls_code:{entry}
call: [x, scale, shifted]
returns: [y]
axes: {{rows: [4], scale: [1.0, 3.0], shifted: [false, true]}}
checks: [numeric, gradients, repeat]
{more}
"""
CODE = """
import torch

latest = {}
prepared = {}


def reference(x, scale, shifted):
    return x * x * scale + (x if shifted else 0)


class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, shifted):
        ctx.save_for_backward(x)
        ctx.options = latest["options"] = scale, shifted
        return reference(x, scale, shifted)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        scale, shifted = ctx.options
        return dy * (2 * x * scale + shifted), None, None


class OptionsOfTheLatestForward(Right):
    @staticmethod
    def backward(ctx, dy):
        ctx.options = latest["options"]
        return Right.backward(ctx, dy)


def right(x, scale, shifted):
    return Right.apply(x, scale, shifted)


def options_of_the_latest_forward(x, scale, shifted):
    return OptionsOfTheLatestForward.apply(x, scale, shifted)


class DataOfTheLatestForward(Right):
    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        scale, shifted = ctx.options
        longest = latest["longest"]
        return torch.where(x.abs() <= longest, dy * (2 * x * scale + shifted), 0), None, None


def data_of_the_latest_forward(x, scale, shifted):
    latest["longest"] = x.abs().max()
    return DataOfTheLatestForward.apply(x, scale, shifted)


def key_without_an_option(x, scale, shifted):
    call = prepared.setdefault((x.shape, scale), lambda x: right(x, scale, shifted))
    return call(x)


def wrong_if_shifted(x, scale, shifted):
    return right(x, scale, shifted) + (1 if shifted else 0)


def stack_of_calls(x, scale, shifted):
    return LatestOfAStack.apply(x, scale, shifted)


class LatestOfAStack(Right):
    stack = []

    @staticmethod
    def forward(ctx, x, scale, shifted):
        LatestOfAStack.stack.append(x)
        ctx.save_for_backward(x)
        ctx.options = scale, shifted
        return reference(x, scale, shifted)

    @staticmethod
    def backward(ctx, dy):
        x = LatestOfAStack.stack.pop()
        scale, shifted = ctx.options
        return dy * (2 * x * scale + shifted), None, None


class Shared(Right):
    @staticmethod
    def forward(ctx, x, scale, shifted):
        ctx.save_for_backward(x)
        ctx.options = scale, shifted
        out = latest.setdefault(x.shape, torch.empty_like(x))
        return out.copy_(reference(x, scale, shifted)).view_as(x)


def shares_a_result(x, scale, shifted):
    return Shared.apply(x, scale, shifted)


def keyed_by_address_and_version(x, scale, shifted):
    key = x.data_ptr(), x._version
    largest = latest.setdefault(key, x.detach().abs().max().item())
    return right(x, scale, shifted) + (x.detach().abs().max().item() - largest)


def keyed_by_address(x, scale, shifted):
    largest = latest.setdefault(x.data_ptr(), x.detach().abs().max().item())
    return right(x, scale, shifted) + (x.detach().abs().max().item() - largest)


def keyed_by_tensor_and_version(x, scale, shifted):
    key = x.data_ptr(), x._version
    if key not in latest:
        latest[key] = x.detach(), x.detach().abs().max().item()  # holds the memory
    largest = latest[key][1]
    return right(x, scale, shifted) + (x.detach().abs().max().item() - largest)


def holds_lengths(x, scale, shifted):
    latest.setdefault("all", []).append(x.detach())
    return right(x, scale, shifted)


def refuses_shifts(x, scale, shifted):
    if shifted:
        raise ValueError("no shifts")
    return right(x, scale, shifted)
"""


@pytest.fixture
def run(code_folder, monkeypatch):
    """Run the four cases of an entry, each in a process state of its own."""
    monkeypatch.setattr(harness_module, "_OTHER_OPTIONS", 1)  # a test may set another

    def run(entry, more=""):
        spec = parse_spec(SPEC.format(entry=entry, more=more), code_folder / "scaled.yaml")
        results = []
        for case in plan(spec).cases():
            monkeypatch.delitem(sys.modules, "other_calls_code", raising=False)
            results.append(Runner("interpreter").run(spec, case))
        return results

    return run


def test_no_finding_for_a_correct_entry(run):
    assert {result.status for result in run("right")} == {Status.PASSED}


def test_a_call_that_fails_by_itself_is_left_out(run):
    results = run("refuses_shifts")
    assert {result.status for result in results if not result.values["shifted"]} == {Status.PASSED}


def test_a_call_of_a_known_bug_is_left_out(run):
    bug = "known_bugs: [{when: shifted, issue: https://example.org/1, expires: 2999-01-01}]"
    results = run("refuses_shifts", bug)
    assert {result.status for result in results if not result.values["shifted"]} == {Status.PASSED}


@pytest.mark.parametrize("entry", ["options_of_the_latest_forward", "key_without_an_option"])
def test_state_of_a_call_with_other_options_is_a_finding(run, entry):
    findings = [finding for result in run(entry) for finding in result.findings]
    assert {finding.check for finding in findings} == {"repeat"}
    assert all(finding.title.startswith("other_options: ") for finding in findings)
    words = {
        "options_of_the_latest_forward": "between the forward and the backward pass",
        "key_without_an_option": "the results are right with the options of the first call",
    }
    assert all(words[entry] in finding.detail for finding in findings)


def test_state_of_a_call_with_other_data_is_a_finding(run, monkeypatch):
    monkeypatch.setattr(harness_module, "_OTHER_OPTIONS", 1 << 64)
    findings = [
        finding for result in run("data_of_the_latest_forward") for finding in result.findings
    ]
    assert findings
    for finding in findings:
        assert (finding.check, finding.tensor) == ("repeat", "dx")
        assert "it came between forward and backward, too" in finding.detail


def test_an_option_that_is_wrong_by_itself_is_a_finding_of_its_own_cases_alone(run):
    for result in run("wrong_if_shifted"):
        assert result.status is (Status.FAILED if result.values["shifted"] else Status.PASSED)


@pytest.mark.parametrize("entry", ["keyed_by_address_and_version", "keyed_by_address"])
def test_values_kept_by_the_address_of_a_tensor_are_a_finding(run, monkeypatch, entry):
    monkeypatch.setattr(harness_module, "_OTHER_OPTIONS", 1 << 64)
    findings = [finding for result in run(entry) for finding in result.findings]
    assert {finding.check for finding in findings} == {"repeat"}


def test_memory_that_an_entry_holds_gets_no_new_tensor(run, monkeypatch):
    monkeypatch.setattr(harness_module, "_OTHER_OPTIONS", 1 << 64)
    for entry in ("keyed_by_tensor_and_version", "holds_lengths"):
        assert {result.status for result in run(entry)} == {Status.PASSED}


class TestCallHistory:
    """Calls of a case and of the same case with other data, whose passes have any order."""

    @pytest.fixture(autouse=True)
    def only_histories(self, run, monkeypatch):
        monkeypatch.setattr(harness_module, "_OTHER_OPTIONS", 1 << 64)
        monkeypatch.setattr(harness_module, "_HISTORIES", 1)

    @pytest.mark.parametrize("entry", ["right", "keyed_by_tensor_and_version", "holds_lengths"])
    def test_no_finding_for_a_correct_entry(self, run, entry):
        assert {result.status for result in run(entry)} == {Status.PASSED}

    def test_backward_passes_that_take_the_latest_forward_are_a_finding(self, run):
        findings = [each for result in run("stack_of_calls") for each in result.findings]
        assert findings
        for finding in findings:
            assert (finding.check, finding.tensor) == ("repeat", "dx")
            assert finding.title.startswith("history: dx: ")
            # The shortest history: of two calls, the one that began first also ends first.
            begun = finding.call.partition(";")[0].split(", ")
            passes = [step.partition("(")[0] for step in begun]
            assert passes[:3] == ["forward", "forward", "backward"]
            assert begun[0].removeprefix("forward") == begun[2].removeprefix("backward")

    def test_the_other_call_of_some_has_another_option(self, run):
        findings = [
            each for result in run("options_of_the_latest_forward") for each in result.findings
        ]
        differences = {each.call.partition("; b has ")[2].partition("=")[0] for each in findings}
        assert differences & {"scale", "shifted"}

    def test_a_result_that_a_later_call_overwrites_is_a_finding(self, run):
        findings = [each for result in run("shares_a_result") for each in result.findings]
        assert {finding.check for finding in findings} >= {"repeat"}


def test_a_case_of_many_ranks_gets_one_relation_of_each_kind():
    spec = load_spec(SPECS / "sequence_attention_varlen.yaml")
    harness = Runner("interpreter")._harness
    names = {}
    for case in plan(spec, "quick").cases():
        if case.origin == "tier" and case.values["world"] > 1:
            problem = harness.problem(harness.bind_case(spec, case), spec, case, 0)
            for kind in ("isolation", "repeat", "relations"):
                found = [relation.name for relation in problem.relations(kind)]
                names.setdefault((case.values["world"] > 4, kind), []).append(found)
    for (many, kind), found in names.items():
        assert any(len(each) > 1 for each in found) != many, kind
        assert not many or len({name for each in found for name in each}) > 1
    assert all(each[0] == "repeat" and "cuda_graph" in each for each in names[False, "repeat"])


TURNED = """
name: turned
problem:
  inputs: {{x: {{shape: [cols if turned else rows, rows if turned else cols], dtype: float32}}}}
  outputs: {{y: {{shape: [rows, cols]}}}}
  reference: {{function: other_calls_code:unturned, call: [x, turned]}}
entry: other_calls_code:{entry}
call: [x, turned, first, second, third]
returns: [y]
axes:
  rows: [6]
  cols: [{cols}]
  turned: [false, true]
  first: [false, true]
  second: [false, true]
  third: [false, true]
checks: [numeric, repeat]
"""


def test_an_option_that_the_shape_of_a_square_input_hides(tmp_path, monkeypatch):
    """What is kept by shapes is found again for the transposed input, in every such case."""
    (tmp_path / "other_calls_code.py").write_text(
        CODE
        + """

def unturned(x, turned, *_others):
    return (x.T if turned else x) * 1.0


def keyed_by_shape(x, turned, *_others):
    return unturned(x, prepared.setdefault(x.shape, turned))
"""
    )
    monkeypatch.setattr(harness_module, "_OTHER_OPTIONS", 1)

    def findings(entry, cols):
        spec = parse_spec(TURNED.format(entry=entry, cols=cols), tmp_path / "turned.yaml")
        for case in plan(spec).cases():
            monkeypatch.delitem(sys.modules, "other_calls_code", raising=False)
            yield Runner("interpreter").run(spec, case).findings

    assert not any(findings("unturned", 6))
    assert not any(findings("keyed_by_shape", 5))
    for found in findings("keyed_by_shape", 6):
        assert found[0].title.startswith("other_options: y: ")
        assert found[0].call.startswith("turned ")


def test_another_case_of_which_the_reference_fails_is_no_other_call(tmp_path):
    spec = parse_spec(SPEC.format(entry="right", more=""), tmp_path / "scaled.yaml")
    case = next(iter(plan(spec).cases()))
    inputs = {"x": torch.ones(4, 8)}
    problem = Problem(values={}, names={}, inputs=inputs, outputs={}, returns=())

    def make(_values):
        raise ReferenceFailedError("other_calls_code:reference", IndexError("no rows"))

    assert another_case(spec, case, problem, make, {}, allowed=lambda _values: True) is None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_other_call_has_its_tensors_where_those_of_the_case_are(tmp_path, device):
    # meta in place of a GPU, where checks of large cases are made.
    spec = parse_spec(SPEC.format(entry="right", more=""), tmp_path / "scaled.yaml")
    case = next(iter(plan(spec).cases()))

    def make(device):
        inputs = {"x": torch.ones(4, 8, device=device)}
        return Problem(values={}, names={}, inputs=inputs, outputs={}, returns=())

    found = another_case(
        spec, case, make("cpu"), lambda _values: make(device), {}, allowed=lambda _values: True
    )
    assert (found is not None) == (device == "cpu")
