"""What trying a draft gives: cases that pass, what is left out, an end in time."""

import math
import time

import pytest
import torch

from tlmatrix.draft.calls import Call, Comparison, Seen, seen_tensor
from tlmatrix.draft.sources import drafts_for, drafts_of_calls
from tlmatrix.draft.targets import target_of
from tlmatrix.draft.trial import tried
from tlmatrix.exit_codes import UsageError
from tlmatrix.spec.loader import load_spec

OPERATOR = """
import time
import torch

def total(x):
    return x.sum((1, 2, 3))

def named(x):
    return x * 3

def named_reference(x):
    return x.missing()

def broken(x, ids):
    return x * SCALE

def broken_reference(x, ids):
    return x * 2

def marked(x, out):
    out[:, 0] = x[:, 0]

def slow(x):
    if len(x) % 8:
        raise ValueError("multiples of 8")
    if len(x) > 8:
        time.sleep(60)
    return x * 2

def slow_reference(x):
    return x * 2

def picked(x, ids):
    return x.gather(1, ids.clamp(min=0).long()).masked_fill(ids < 0, 0).sum(1)

def picked_reference(x, ids):
    chosen = torch.zeros_like(x).scatter(1, ids.clamp(min=0).long(), (ids >= 0).to(x.dtype))
    return (x * chosen).sum(1)

def shares(x):
    p = (x.float() - x.float().amax(-1, keepdim=True).clamp(min=0)).exp()
    return (p / p.sum(-1, keepdim=True)).to(x.dtype)

def shares_reference(x):
    return x.softmax(-1)

def masked(x):
    return x * 2

def torch_masked(x):
    raise NotImplementedError("not on a CPU")

def tall(x):
    if len(x) % 8:
        raise ValueError("multiples of 8")
    return x * 13

def cut(x):
    return x[:, 3:] * 2

def cut_expected(x, n):
    return x[:, -n:] * 2

class Tiles:
    rows = 16

def tiled(x, bias=None, tiles=None):
    return x * 2 + (0 if bias is None else bias)

def tiled_reference(x, bias=None):
    return x + x if bias is None else x + x + bias
"""


def test_a_dtype_that_specs_do_not_have_is_reported(drafts):
    call = Call(
        "totals:total", {"x": Seen((3, 4), "float4_e2m1fn_x2")}, {"0": Seen((3,), "float32")}
    )
    with pytest.raises(UsageError, match="specs have no dtype float4_e2m1fn_x2, that of x"):
        drafts_of_calls(target_of("totals:total"), [call])


def test_tensors_of_a_draft_have_sizes_that_a_case_can_take(drafts):
    axes = drafts_for("totals:total", call="f(torch.randn(127, 97, 61, 23))")().axes
    sizes = [max(axes[name]) for name in axes if name not in ("dtype", "values")]
    assert len(sizes) == 4
    assert math.prod(sizes) <= 1 << 24
    assert min(sizes) > 11


def test_a_function_with_the_name_of_a_reference_that_never_works_is_none(drafts, tmp_path):
    named = drafts_for("totals:named", call="f(torch.randn(8))")
    assert named().reference.target == "totals:named_reference"
    trial = tried(named, tmp_path / "n.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference is None
    assert not trial.draft.complete
    assert trial.results
    assert not any(each.failed for each in trial.results)
    assert trial.refused.startswith("totals:named_reference is no reference: reference error")


@pytest.mark.parametrize("name", ["masked", "tall"])
def test_a_reference_of_a_test_that_never_works_here_is_none(name, drafts, tmp_path):
    """The code under test may refuse most sizes before it is called."""
    tensors, results = {"x": Seen((8, 5), "float32")}, {"0": Seen((8, 5), "float32")}
    compared = (Comparison("0", "totals:torch_masked", {"x": "$x"}),)
    call = Call(f"totals:{name}", tensors, results, compared=compared)
    masked = drafts_of_calls(target_of(f"totals:{name}"), [call])
    trial = tried(masked, tmp_path / "m.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert trial.refused.startswith("totals:torch_masked is no reference: reference error")


def test_what_a_guessed_reference_also_takes_is_named(drafts, tmp_path):
    compared = (Comparison("0", "totals:cut_expected", {"x": "$x", "n": ""}, guessed=True),)
    tensors, results = {"x": Seen((8, 5), "float32")}, {"0": Seen((8, 2), "float32")}
    cut = drafts_of_calls(
        target_of("totals:cut"), [Call("totals:cut", tensors, results, compared=compared)]
    )
    cut.found, *_ = cut.references = cut.references[:1]  # others of the module have such names
    trial = tried(cut, tmp_path / "c.yaml", [tmp_path], tier="each", prove=False)
    missing = "totals:cut_expected also takes n: give each a value"
    assert trial.refused == f"totals:cut_expected is no reference: {missing}"


def test_numbers_that_differ_in_each_row_of_all_calls_do_so_in_cases(drafts, tmp_path):
    """The reference makes a mask of them, in which a number that occurs twice counts once."""
    call = "f(torch.randn(9, 16), torch.rand(9, 16).argsort(1)[:, :5].int())"
    picks = drafts_for("totals:picked", call=call)
    trial = tried(picks, tmp_path / "p.yaml", [tmp_path], prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert load_spec(tmp_path / "p.yaml").problem.inputs["ids"].distinct
    assert trial.draft.constraints == (("size3 <= cols", "ids has distinct numbers"),)
    # So they do if rows are filled up with the size.
    ids = torch.rand(9, 16).argsort(1).where(torch.arange(16) < torch.arange(9)[:, None], 16)
    assert seen_tensor(ids).distinct
    assert not seen_tensor(ids.clamp(min=4)).distinct
    # Two rows of two numbers differ by chance.
    few = drafts_for("totals:picked", call="f(torch.randn(2, 16), torch.tensor([[1, 2], [9, 3]]))")
    assert "distinct" not in few().inputs["ids"]


def test_a_running_maximum_that_begins_at_0_is_a_finding(drafts, tmp_path):
    """By its values where they are shifted, and by `low_logits` in each other case."""
    shares = drafts_for("totals:shares", call="f(torch.randn(8, 40))")
    trial = tried(shares, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    checks = {r.values["values"]: r.findings[0].check for r in trial.results if r.failed}
    others = ("normal", "large", "zero_rows", "rising")
    assert checks == {"shifted": "numeric", **dict.fromkeys(others, "relations")}, trial.lines


def test_objects_with_a_default_are_left_out_and_optional_tensors_kept(drafts, tmp_path):
    """A form of calls that half as many have as another one covers more of the code."""
    call = "[(f(x, x[0], Tiles()), f(x), f(x[1:])) for x in [torch.randn(8, 5)]]"
    tiled = drafts_for("totals:tiled", call=call)
    trial = tried(tiled, tmp_path / "t.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert [*load_spec(tmp_path / "t.yaml").problem.inputs] == ["x", "bias"]


def test_what_was_found_before_the_time_ended_is_kept(drafts, tmp_path):
    slow = drafts_for("totals:slow", call="f(torch.randn(8))")
    start = time.monotonic()
    trial = tried(slow, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False, seconds=3)
    assert time.monotonic() - start < 40
    assert not trial.error
    assert [value for value in trial.draft.axes["rows"] if value % 8] == []
    assert not any(result.failed for result in trial.results)
    spec = load_spec(tmp_path / "s.yaml")
    assert spec.axes["rows"] == trial.draft.axes["rows"]


def test_what_an_operator_writes_without_a_reference_may_be_a_part(drafts, tmp_path):
    tensors = dict.fromkeys(("x", "out"), Seen((8, 5), "float32"))
    call = Call("totals:marked", tensors, {}, changed=frozenset({"out"}))
    marked = drafts_of_calls(target_of("totals:marked"), [call])
    trial = tried(marked, tmp_path / "m.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert not trial.draft.complete


def test_a_name_that_is_not_defined_is_a_finding_whatever_is_no_reference(drafts, tmp_path):
    tensors = {"x": Seen((8, 5), "float32"), "ids": Seen((4,), "int32", values=(0, 0, 0, 0))}
    results = {"0": Seen((8, 5), "float32")}
    broken = drafts_of_calls(target_of("totals:broken"), [Call("totals:broken", tensors, results)])
    trial = tried(broken, tmp_path / "b.yaml", [tmp_path], tier="each", prove=False)
    assert [each.findings[0].pattern for each in trial.results] == ["NameError"]
