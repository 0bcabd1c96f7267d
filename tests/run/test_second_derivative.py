"""A second derivative is right, or the entry refuses it."""

import pytest

from spec_results import results_of
from tlmatrix.backend.binding import execution
from tlmatrix.run import Status

SPEC = """
name: scaled
problem:
  inputs:
    x: {{shape: [rows, 8], dtype: {dtype}, grad: true}}
    w: {{shape: [8], dtype: {dtype}, grad: true}}
  outputs: [y]
  reference: second_derivative_code:reference
entry: second_derivative_code:{entry}
call: [x, w]
returns: [y]
axes: {{rows: [4]}}
checks: [numeric, gradients, relations]
strict_autograd: true
"""
CODE = """
import torch
from torch.autograd.function import once_differentiable


def reference(x, w):
    return torch.tanh(x) * w


class WithoutGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.tanh(x) * w

    @staticmethod
    def backward(ctx, dy):
        x, w = (each.detach() for each in ctx.saved_tensors)
        dy = dy.detach()
        tanh = torch.tanh(x)
        return dy * w * (1 - tanh * tanh), (dy * tanh).sum(0)


class Refuses(WithoutGraph):
    backward = staticmethod(once_differentiable(WithoutGraph.backward))


class Right(WithoutGraph):
    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        tanh = torch.tanh(x)
        return dy * w * (1 - tanh * tanh), (dy * tanh).sum(0)


class OnlyOfOutputGradients(WithoutGraph):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        ctx.tanh = torch.tanh(x)
        return ctx.tanh * w

    @staticmethod
    def backward(ctx, dy):
        (w,) = ctx.saved_tensors
        return dy * w * (1 - ctx.tanh * ctx.tanh), (dy * ctx.tanh).sum(0)


class NotOfOutputGradients(Right):
    @staticmethod
    def backward(ctx, dy):
        return Right.backward(ctx, dy.detach())


class KeepsInputs(Right):
    @staticmethod
    def forward(ctx, x, w):
        ctx.kept = x, w
        return torch.tanh(x) * w

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.kept
        tanh = torch.tanh(x)
        return dy * w * (1 - tanh * tanh), (dy * tanh).sum(0)


keeps_inputs = KeepsInputs.apply


def plain(x, w):
    return reference(x, w)


class WithoutGraphOfRows(WithoutGraph):
    @staticmethod
    def backward(ctx, dy):
        x, w = (each.detach() for each in ctx.saved_tensors)
        tanh = torch.tanh(x)
        return dy.detach() * w * (1 - tanh * tanh), dy.detach() * tanh


class RefusesOfRows(WithoutGraphOfRows):
    backward = staticmethod(once_differentiable(WithoutGraphOfRows.backward))


without_graph_of_rows = WithoutGraphOfRows.apply
refuses_of_rows = RefusesOfRows.apply
right = Right.apply
refuses = Refuses.apply
without_graph = WithoutGraph.apply
only_of_output_gradients = OnlyOfOutputGradients.apply
not_of_output_gradients = NotOfOutputGradients.apply
"""


@pytest.fixture
def run(code_folder):
    """Run the case of an entry."""

    def run(entry, dtype="float32"):
        text = SPEC.format(entry=entry, dtype=dtype)
        (result,) = results_of(text, code_folder / "scaled.yaml")
        return result

    return run


@pytest.mark.parametrize("entry", ["plain", "right", "refuses"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_right_or_refused_second_derivative_is_no_finding(run, entry, dtype):
    result = run(entry, dtype)
    assert result.status is Status.PASSED, result.findings


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("without_graph", "dx, dw without a graph, with create_graph=True"),
        ("only_of_output_gradients", "dx, dw differentiated by x, w"),
        ("not_of_output_gradients", "dx, dw differentiated by dy"),
    ],
)
def test_a_wrong_second_derivative_is_a_finding(run, entry, words):
    (finding,) = run(entry).findings
    assert finding.check == "relations"
    assert finding.title.startswith(f"second_derivative: {words}")
    assert "once_differentiable" in finding.hint


def test_gradients_of_ranks_have_a_graph_or_refuse_it(code_folder):
    def findings(entry):
        text = SPEC.format(entry=entry, dtype="float32").replace(
            "w: {shape: [8]", "w: {shape: [rows, 8]"
        )
        shards = "{x: &rows {dim: rows}, w: *rows, y: *rows}"
        text = text.replace("{rows: [4]}", f"{{world: [2], rows: [4]}}\nshards: {shards}")
        (result,) = results_of(text, code_folder / "ranks.yaml")
        return result.findings

    assert findings("plain") == findings("refuses_of_rows") == ()
    (finding,) = findings("without_graph_of_rows")
    assert finding.title.startswith("second_derivative: dx, dw without a graph")


def test_one_case_of_a_spec_is_differentiated_twice(code_folder, monkeypatch):
    made = []
    monkeypatch.setattr(
        execution, "check_second_derivative", lambda *given, **_: made.append(given)
    )
    text = SPEC.format(entry="plain", dtype="float32").replace("rows: [4]", "rows: [4, 5, 6]")
    results = results_of(text, code_folder / "three.yaml")
    assert {result.status for result in results} == {Status.PASSED}
    assert len(made) == 1


def test_an_input_changed_in_place_is_checked_once_for_each_input(run):
    titles = [finding.title for finding in run("keeps_inputs").findings]
    assert titles
    assert {title.partition(":")[0] for title in titles} == {"changed_input"}
