"""Which function is the reference, and how it returns the outputs."""

from dataclasses import replace

import pytest

from tlmatrix.draft.references import named_reference
from tlmatrix.draft.sources import drafts_for
from tlmatrix.draft.trial import tried
from tlmatrix.spec.loader import load_spec

OPERATOR = """
import torch

def total(x):
    return x.sum((1, 2, 3))

def other(x):
    return x.mean((1, 2, 3))

def right(x):
    return x.sum(3).sum(2).sum(1)

def first(x):
    return x[:, 0, 0, 0]

def product(a, b):
    return a @ b

def product_reference(a, b):
    return torch.eye(len(a), dtype=torch.float32) @ a @ b

def precise(a, b):
    return a @ b

def precise_reference(a, b):
    assert a.dtype == torch.float32
    return a @ b

def buffered(x, work):
    work.copy_(x * 2)
    return work + 1

def buffered_reference(x, work):
    return x * 2 + 1

def updated(x, state):
    state.copy_(state + x)
    return state + 1

def updated_reference(x, state):
    return state + x + 1

def scaled(x, scale):
    return x / scale.abs().clamp(min=1e-3)

def scaled_reference(x, scale):
    return x / (scale * scale) * scale.abs()

def shifted(x, scale):
    return x * scale.abs()

def shifted_reference(x, scale):
    return x * scale

def squared(x):
    return x * x

def squared_reference(x):
    x = x.clone().requires_grad_(True)
    x.retain_grad()
    y = x * x
    y.sum().backward()
    return y, x.grad

def sevenfold(x):
    return x * 7

def chosen(x, ids):
    return x[ids.long().clamp(max=3)]

def chosen_reference(x, ids):
    return x[:4][ids.long()]

def spread(x, ids):
    found = x[ids.long().clamp(max=3)]
    return found + 0 * found.roll(1, -1)

def spread_reference(x, ids):
    return x[:4][ids.long()]

def other_than_9(x, ids):
    assert len(x) != 9
    return x[ids.long()]

def other_than_9_reference(x, ids):
    return x[ids.long()]

def bound(x, ids):
    return x[ids.long()]

def bound_reference(x, ids):
    return x[ids.long().cummax(0).values]

def segments(x, cu):
    return x * 5, x.sum(1)

def segments_reference(x, cu):
    return x * 5

def torch_seven_times(data):
    return data * 7
"""


def test_of_several_references_the_first_with_which_a_case_passes_is_taken(drafts, tmp_path):
    drafts.interface = replace(
        drafts.interface, symbols=dict.fromkeys(drafts.interface.symbols, (4,))
    )
    drafts.references = [named_reference(f"totals:{name}") for name in ("other", "right")]
    trial = tried(drafts, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference.target == "totals:right"
    assert {str(result.status) for result in trial.results} == {"passed"}


def test_a_function_like_a_reference_that_agrees_by_chance_is_none(drafts, tmp_path):
    """It does in sizes of 1, the first of code that is only traced."""
    drafts.interface = drafts.interface.of_calls()
    drafts.references = [replace(named_reference("totals:first"), part=True)]
    trial = tried(drafts, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert not trial.draft.complete
    assert trial.refused.startswith("totals:first is no reference: out: ")


@pytest.mark.parametrize("name", ["product", "precise"])
def test_a_reference_that_refuses_float64_gets_the_dtypes_of_the_inputs(name, drafts, tmp_path):
    """One says so, and one has an assertion without words."""
    products = drafts_for(f"totals:{name}", call="f(torch.randn(3, 5), torch.randn(5, 7))")
    products.interface = replace(products.interface, dtypes=("float32",))
    trial = tried(products, tmp_path / "p.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference.same_dtype
    assert {str(result.status) for result in trial.results} == {"passed"}
    assert "dtype: same}\n" in (tmp_path / "p.yaml").read_text()


def test_what_is_written_and_never_read_after_it_is_scratch_memory(drafts, tmp_path):
    """The reference takes it, and does not read it."""
    call = "f(torch.randn(8, 5), torch.empty(8, 5))"
    buffered = drafts_for("totals:buffered", call=call)
    trial = tried(buffered, tmp_path / "b.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}
    assert trial.left_out == "does not judge work, which the reference does not return"
    spec = load_spec(tmp_path / "b.yaml")
    assert (spec.call["work"].inout, spec.call["work"].output) == ("work", "_")
    assert spec.problem.output_names == ("out",)
    # What it reads is a state, which must be judged.
    call = "f(torch.randn(8, 5), torch.randn(8, 5))"
    state = drafts_for("totals:updated", call=call)
    trial = tried(state, tmp_path / "u.yaml", [tmp_path], tier="each", prove=False)
    assert "state" in {each.name for each in state.interface.outputs}
    assert not trial.left_out


def test_scales_have_the_sign_that_they_had_in_all_calls_if_zeros_fail(drafts, tmp_path):
    call = "f(torch.randn(8, 5), torch.linspace(0.5, 1.5, 5)[None])"
    scaled = drafts_for("totals:scaled", call=call)
    trial = tried(scaled, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}
    assert trial.left_out.startswith("drawn as recorded: scale from 0 to 2: "), trial.lines
    inputs = load_spec(tmp_path / "s.yaml").problem.inputs
    assert (inputs["x"].between, inputs["scale"].between) == (None, (0, 2))
    # Wrong results of other values are findings.
    shifted = drafts_for("totals:shifted", call=call)
    trial = tried(shifted, tmp_path / "t.yaml", [tmp_path], tier="each", prove=False)
    assert any(result.failed for result in trial.results)
    assert load_spec(tmp_path / "t.yaml").problem.inputs["scale"].between is None


def test_a_reference_that_computes_its_gradients_judges_the_results_alone(drafts, tmp_path):
    squared = drafts_for("totals:squared", call="f(torch.randn(8, 5, requires_grad=True))")
    trial = tried(squared, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert trial.left_out == "without gradients, which the reference computes itself"
    assert not load_spec(tmp_path / "s.yaml").problem.inputs["x"].grad


def test_a_function_of_another_name_is_the_reference_if_it_agrees(drafts, tmp_path):
    seven = drafts_for("totals:sevenfold", call="f(torch.randn(8, 5))")
    trial = tried(seven, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference.target == "totals:torch_seven_times"
    assert {str(result.status) for result in trial.results} == {"passed"}


@pytest.mark.parametrize("name", ["chosen", "spread"])
def test_indices_are_those_of_the_calls_if_others_are_refused(name, drafts, tmp_path):
    call = "f(torch.randn(5, 9), torch.arange(40).remainder(4).int())"
    chosen = drafts_for(f"totals:{name}", call=call)
    trial = tried(chosen, tmp_path / "c.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert trial.left_out.startswith("drawn as recorded: ids from 0 to min(3, rows - 1): ")
    assert load_spec(tmp_path / "c.yaml").problem.inputs["ids"].between[0] == 0


def test_what_disagrees_where_integers_are_guesses_is_no_reference(drafts, tmp_path):
    """The reference is one of sorted numbers, which calls had."""
    call = "f(torch.randn(5, 9), torch.arange(40).div(8).int())"
    bound = drafts_for("totals:bound", call=call)
    trial = tried(bound, tmp_path / "b.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference is None
    assert trial.refused.startswith("totals:bound_reference is no reference: no recorded case")
    assert not any(result.failed for result in trial.results), trial.lines


def test_a_reference_is_kept_if_the_recorded_case_is_refused(drafts, tmp_path):
    call = "f(torch.randn(9, 11), torch.arange(40).remainder(9).int())"
    interface = drafts_for("totals:bound", call=call).interface
    refused = drafts_for("totals:other_than_9", call=call.replace("9", "8"))
    refused.interface = interface
    trial = tried(refused, tmp_path / "o.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference.target == "totals:other_than_9_reference"
    assert not trial.refused


def test_a_reference_of_sequences_may_return_fewer_outputs(drafts, tmp_path):
    """The code is bound again, whose file has other results now."""
    call = "f(torch.randn(12, 9), torch.tensor([0, 5, 6, 12], dtype=torch.int32))"
    segments = drafts_for("totals:segments", call=call)
    trial = tried(segments, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert trial.draft.reference.target == "totals:segments_reference"
    assert trial.draft.returns == ("out0", "_")
