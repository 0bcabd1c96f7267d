"""What trying a draft changes: sizes, conditions, the reference."""

import math
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tlmatrix.check.finding import Finding
from tlmatrix.draft.calls import Call, Seen
from tlmatrix.draft.references import named_reference
from tlmatrix.draft.sources import drafts_for, drafts_of_calls
from tlmatrix.draft.targets import target_of
from tlmatrix.draft.text import write_spec
from tlmatrix.draft.trial import (
    Limit,
    Trial,
    _agrees,
    _conditions,
    _explained,
    _keep_recorded,
    _recorded_sizes,
    _refused,
    _relaxed,
    _worst,
    tried,
)
from tlmatrix.exit_codes import UsageError
from tlmatrix.run.result import Status
from tlmatrix.spec.loader import load_spec


def conditions(accepts, cases):
    """The conditions found where the code under test takes the cases that `accepts` says."""
    results = [SimpleNamespace(values=case, failed=not accepts(**case)) for case in cases]
    return _conditions(results, ["refused" if result.failed else "" for result in results])


def cases(*pairs):
    return [{"a": a, "b": b} for a, b in pairs]


@pytest.mark.parametrize(
    ("accepts", "found"),
    [
        (lambda a, b: a == b, "a == b"),
        (lambda a, b: a % b == 0, "a % b == 0"),
        (lambda a, b: a <= b, "a <= b"),
        (lambda a, b: a % 8 == 0, "a % 8 == 0"),
        (lambda a, b: a * b < 40, None),
    ],
)
def test_the_condition_that_exactly_the_accepted_cases_satisfy(accepts, found):
    pairs = [(a, b) for a in (1, 2, 4, 6, 8, 12, 16, 24) for b in (1, 2, 4, 6, 8, 12, 16, 24)]
    assert conditions(accepts, cases(*pairs))[:1] == ([found] if found else [])


def test_no_condition_divides_by_a_size_that_may_be_0():
    def accepts(a, b):
        return b in (3, 6)

    found = conditions(accepts, cases((12, 3), (12, 6), (12, 0), (12, 5), (9, 6), (9, 2)))
    assert not any("% b" in each for each in found)


OPERATOR = """
import time

import torch
def total(x):
    return x.sum((1, 2, 3))

def other(x):
    return x.mean((1, 2, 3))

def right(x):
    return x.sum(3).sum(2).sum(1)

def paired(x, y):
    if len(x) != len(y):
        raise ValueError("of one length")
    return x.sum() + y.sum()

def paired_reference(x, y):
    return x.sum() + y.sum()

def product(a, b):
    return a @ b

def product_reference(a, b):
    return torch.eye(len(a), dtype=torch.float32) @ a @ b

def precise(a, b):
    return a @ b

def precise_reference(a, b):
    assert a.dtype == torch.float32
    return a @ b

def odd(x):
    if len(x) not in (7, 31):
        raise ValueError("neither 7 nor 31")
    return x * 2

def odd_reference(x):
    return x * 2

def named(x):
    return x * 3

def named_reference(x):
    return x.missing()

def ends(x, cu):
    return torch.cat([x[b - 1 : b] for a, b in zip(cu[:-1].tolist(), cu[1:].tolist())])

def ends_reference(x, cu):
    parts = [x[a:b] for a, b in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.stack([part.flip(0)[0] for part in parts])

def wide(x, y):
    if len(x) % 8:
        raise ValueError("multiples of 8")
    return x.sum() + y.sum()

def wide_reference(x, y):
    return x.sum() + y.sum()

def joined(x, y):
    if len(x) % 8:
        raise ValueError("multiples of 8")
    return (x * y).sum()

def joined_reference(x, y):
    return (x * y).sum()

def slow(x):
    if len(x) % 8:
        raise ValueError("multiples of 8")
    if len(x) > 8:
        time.sleep(60)
    return x * 2

def slow_reference(x):
    return x * 2

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

def squared(x):
    return x * x

def squared_reference(x):
    x = x.clone().requires_grad_(True)
    x.retain_grad()
    y = x * x
    y.sum().backward()
    return y, x.grad

def limited(x):
    if x.shape[1] > 70 and x.shape[1] % 64:
        raise ValueError("wide rows must be multiples of 64")
    return x * 2

def limited_reference(x):
    return x + x

def halves(x):
    if x.shape[1] % 2:
        raise ValueError("an even number of columns")
    return x * 2 + 0 * x.roll(1, -1)

def halves_reference(x):
    return x + x

def spread(x):
    return x * 2 + (0 * x.roll(1, -1) if x.shape[1] > 70 else 0)

def spread_reference(x):
    return x + x

class Tiles:
    rows = 16

def tiled(x, bias=None, tiles=None):
    return x * 2 + (0 if bias is None else bias)

def tiled_reference(x, bias=None):
    return x + x if bias is None else x + x + bias

def sevenfold(x):
    return x * 7

def torch_seven_times(data):
    return data * 7
"""


@pytest.fixture
def drafts(tmp_path, monkeypatch):
    (tmp_path / "totals.py").write_text(OPERATOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield drafts_for("totals:total", call="f(torch.randn(31, 21, 9, 11))")
    sys.modules.pop("totals", None)


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


def test_a_recorded_case_is_tried_with_smaller_sizes_of_the_same_steps(drafts):
    recorded = {"m": 4001, "n": 576, "k": 8192, "small": 200, "flag": True}
    first, kept, second, last = _recorded_sizes(replace(drafts(), recorded=recorded))
    assert last == recorded
    # Code may take one odd size alone.
    assert kept == {**recorded, "k": 128}
    for values in (first, second):
        assert values["m"] % 2 == 1
        assert math.gcd(values["n"], 128) == 64
        assert values["k"] % 128 == 0
        assert max(values["m"], values["n"], values["k"]) <= 512
        assert len({*values.values()}) == len(values)
        assert (values["small"], values["flag"]) == (200, True)


def test_a_recorded_case_is_tried_with_few_of_what_is_counted(drafts):
    recorded = {"batch": 132, "heads": 16, "kv_heads": 4, "n": 64}
    few, batch, last = _recorded_sizes(replace(drafts(), recorded=recorded))
    assert few == {"batch": 2, "heads": 2, "kv_heads": 4, "n": 64}
    assert batch == {**recorded, "batch": 2}
    assert last == recorded
    large = dict.fromkeys("mnk", 8192)
    assert all(
        max(each.values()) <= 512 * 3 for each in _recorded_sizes(replace(drafts(), recorded=large))
    )


def test_of_several_references_the_first_with_which_a_case_passes_is_taken(drafts, tmp_path):
    drafts.interface = replace(
        drafts.interface, symbols=dict.fromkeys(drafts.interface.symbols, (4,))
    )
    drafts.references = [named_reference(f"totals:{name}") for name in ("other", "right")]
    trial = tried(drafts, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference.target == "totals:right"
    assert {str(result.status) for result in trial.results} == {"passed"}


@pytest.mark.parametrize("name", ["product", "precise"])
def test_a_reference_that_refuses_float64_gets_the_dtypes_of_the_inputs(name, drafts, tmp_path):
    """One says so, and one has an assertion without words."""
    products = drafts_for(f"totals:{name}", call="f(torch.randn(3, 5), torch.randn(5, 7))")
    products.interface = replace(products.interface, dtypes=("float32",))
    trial = tried(products, tmp_path / "p.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference.same_dtype
    assert {str(result.status) for result in trial.results} == {"passed"}
    assert "dtype: same}\n" in (tmp_path / "p.yaml").read_text()


def test_sizes_that_no_condition_tells_leave_the_recorded_ones(drafts, tmp_path):
    odd = drafts_for("totals:odd", call="f(torch.randn(31))")
    odd.interface = replace(odd.interface, symbols={"rows": (31,)})
    trial = tried(odd, tmp_path / "o.yaml", [tmp_path], tier="each", prove=False)
    assert load_spec(tmp_path / "o.yaml").axes["rows"] == (31,)
    assert {str(result.status) for result in trial.results} == {"passed"}
    # So does the end of the time, before it is known what is refused.
    recorded = trial.results[0]
    why = Finding("entry", "raises ValueError", pattern="refuses")
    late = Trial(odd(), [replace(recorded, findings=(why,))])
    _keep_recorded(late, recorded)
    assert late.results == [recorded]
    assert late.left_out == "only the recorded sizes: raises ValueError"
    assert late.draft.axes["rows"] == (31,)
    assert not late.draft.fuzz
    # Not if a case of other sizes is wrong.
    wrong = replace(recorded, status=Status.FAILED, findings=(Finding("numeric", "wrong"),))
    found = Trial(odd(), [*late.results, replace(recorded, findings=(why,)), wrong])
    _keep_recorded(found, recorded)
    assert wrong in found.results


@pytest.mark.parametrize(
    ("accepts", "found"),
    [
        (lambda a, b, c: a % b == 0, ["a % b == 0"]),
        (lambda a, b, c: a * b * c < 9, []),
        (lambda a, b, c: a <= c, ["a <= c"]),
    ],
)
def test_a_condition_of_two_axes_of_which_each_alone_is_accepted(drafts, accepts, found):
    """Few cases fit several conditions by chance; more of them tell which one holds."""

    def case(draft, values):
        fine = accepts(**{name: values[name] for name in "abc"})
        why = Finding("entry", "raises ValueError", pattern="refuses")
        status = Status.PASSED if fine else Status.ERROR
        findings = () if fine else (why,)
        return SimpleNamespace(values=values, status=status, findings=findings, failed=not fine)

    draft = replace(drafts(), axes=dict.fromkeys("abc", (1, 2, 3, 4)), fuzz={}, multiples={})
    first = [(4, 1, 1), (1, 2, 1), (3, 2, 1), (4, 2, 2), (2, 1, 2), (3, 1, 4)]
    results = [case(draft, dict(zip("abc", each, strict=True))) for each in first]
    results.sort(key=lambda each: each.failed)
    narrowed, _ = _explained(draft, results, SimpleNamespace(case=case))
    assert [condition for condition, _ in narrowed.constraints] == found


def test_of_sizes_that_are_left_out_the_wrong_ones_are_named(drafts):
    """Of others the caller learns by a message."""

    def result(rows, check, title, pattern=""):
        findings = (Finding(check, title, pattern=pattern),) if check else ()
        return SimpleNamespace(values={"rows": rows}, findings=findings, failed=bool(check))

    draft = replace(drafts(), multiples={"rows": 64})
    refused = result(1, "entry", "raises ValueError", "refuses")
    launch = result(1, "launch", "cannot be launched")
    wrong = result(65, "numeric", "y: 1 element is wrong")
    reasons = [_refused(draft, each) for each in (refused, launch, wrong, result(64, "", ""))]
    named = "rows=65 is not refused, and is wrong: numeric: y: 1 element is wrong"
    assert reasons[2] == _worst(reasons) == named
    assert (_worst(reasons[:1]), _worst([])) == ("raises ValueError", "")
    # A size that passes is not why another value of another axis is wrong.
    assert not _refused(draft, wrong, result(65, "", ""))
    # The draft has the dtype of one call.
    other = result(64, "numeric", "y is int32, expected float32")
    assert _refused(draft, other) == "y is int32, expected float32"
    # A GPU refuses the launch.
    large = result(64, "sanitizers", "budget: the kernel needs 300000 bytes")
    assert _refused(draft, large) == "budget: the kernel needs 300000 bytes"


def test_a_function_with_the_name_of_a_reference_that_never_works_is_none(drafts, tmp_path):
    named = drafts_for("totals:named", call="f(torch.randn(8))")
    assert named().reference.target == "totals:named_reference"
    trial = tried(named, tmp_path / "n.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference is None
    assert not trial.draft.complete
    assert trial.results
    assert not any(each.failed for each in trial.results)
    assert trial.refused.startswith("totals:named_reference is no reference: reference error")


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


def test_numbers_that_differ_in_each_row_of_all_calls_do_so_in_cases(drafts, tmp_path):
    """The reference makes a mask of them, in which a number that occurs twice counts once."""
    call = "f(torch.randn(9, 16), torch.rand(9, 16).argsort(1)[:, :5].int())"
    picks = drafts_for("totals:picked", call=call)
    trial = tried(picks, tmp_path / "p.yaml", [tmp_path], prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert load_spec(tmp_path / "p.yaml").problem.inputs["ids"].distinct
    # Two rows of two numbers differ by chance.
    few = drafts_for("totals:picked", call="f(torch.randn(2, 16), torch.tensor([[1, 2], [9, 3]]))")
    assert "distinct" not in few().inputs["ids"]


def test_a_running_maximum_that_begins_at_0_is_a_finding(drafts, tmp_path):
    """Right where a row has a number that is not far below 0."""
    shares = drafts_for("totals:shares", call="f(torch.randn(8, 40))")
    trial = tried(shares, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    failed = [result.values["values"] for result in trial.results if result.failed]
    assert failed == ["shifted"], trial.lines


def test_a_reference_that_computes_its_gradients_judges_the_results_alone(drafts, tmp_path):
    squared = drafts_for("totals:squared", call="f(torch.randn(8, 5, requires_grad=True))")
    trial = tried(squared, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert trial.left_out == "without gradients, which the reference computes itself"
    assert not load_spec(tmp_path / "s.yaml").problem.inputs["x"].grad


def test_random_cases_have_no_sizes_that_are_refused_beyond_the_listed_ones(drafts, tmp_path):
    limited = drafts_for("totals:limited", call="[f(torch.randn(8, n)) for n in (32, 64)]")
    trial = tried(limited, tmp_path / "w.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    spec = load_spec(tmp_path / "w.yaml")
    assert (spec.axes["cols"], [*spec.fuzz.axes]) == ((32, 33, 64), ["rows"])
    assert any("no other cols in random cases: raises ValueError: " in e for e in trial.lines)


def test_what_the_largest_size_shows_of_nan_is_no_finding(drafts, tmp_path):
    spread = drafts_for("totals:spread", call="[f(torch.randn(8, n)) for n in (32, 64)]")
    trial = tried(spread, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert trial.draft.without == ("propagation",)
    assert "cols" in trial.draft.fuzz["axes"]


def test_a_recorded_case_that_spreads_nan_is_where_axes_are_varied_from(drafts, tmp_path):
    halves = drafts_for("totals:halves", call="f(torch.randn(8, 6))")
    halves.adapted = (lambda draft: replace(draft, axes=draft.axes | {"cols": (5, 7)}),)
    trial = tried(halves, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert trial.draft.without == ("propagation",)
    assert "cols % 2 == 0" in dict(trial.draft.constraints)


def test_objects_with_a_default_are_left_out_and_optional_tensors_kept(drafts, tmp_path):
    """A form of calls that half as many have as another one covers more of the code."""
    call = "[(f(x, x[0], Tiles()), f(x), f(x[1:])) for x in [torch.randn(8, 5)]]"
    tiled = drafts_for("totals:tiled", call=call)
    trial = tried(tiled, tmp_path / "t.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert [*load_spec(tmp_path / "t.yaml").problem.inputs] == ["x", "bias"]


def test_a_function_of_another_name_is_the_reference_if_it_agrees(drafts, tmp_path):
    seven = drafts_for("totals:sevenfold", call="f(torch.randn(8, 5))")
    trial = tried(seven, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert trial.draft.reference.target == "totals:torch_seven_times"
    assert {str(result.status) for result in trial.results} == {"passed"}


def test_two_sizes_that_must_be_equal_have_common_values(drafts, tmp_path):
    pairs = drafts_for("totals:paired", call="f(torch.randn(31), torch.randn(31))")
    parameters = [
        replace(each, shape=(name,))
        for each, name in zip(pairs.interface.tensors, "mn", strict=True)
    ]
    symbols = {"m": (31,), "n": (31,)}
    pairs.interface = replace(pairs.interface, parameters=tuple(parameters), symbols=symbols)
    trial = tried(pairs, tmp_path / "p.yaml", [tmp_path], prove=False)
    assert not trial.error
    assert trial.draft.constraints[0][0] in ("m == n", "n == m")
    assert trial.draft.axes["m"] == trial.draft.axes["n"]
    assert {str(result.status) for result in trial.results} == {"passed"}


def test_only_the_axis_that_is_refused_is_narrowed(drafts, tmp_path):
    wide = drafts_for("totals:wide", call="f(torch.randn(16), torch.randn(31))")
    axes = wide().axes
    trial = tried(wide, tmp_path / "w.yaml", [tmp_path], tier="each", prove=False)
    assert [rule for rule, _ in trial.draft.constraints] == ["rows % 8 == 0"]
    assert {**trial.draft.axes, "rows": ()} == {**axes, "rows": ()}
    assert {str(result.status) for result in trial.results} == {"passed"}


def test_two_equal_axes_are_narrowed_together(drafts, tmp_path):
    joined = drafts_for("totals:joined", call="f(torch.randn(16), torch.randn(16))")
    parameters = [
        replace(each, shape=(name,))
        for each, name in zip(joined.interface.tensors, "mn", strict=True)
    ]
    symbols = {"m": (16,), "n": (16,)}
    joined.interface = replace(joined.interface, parameters=tuple(parameters), symbols=symbols)
    trial = tried(joined, tmp_path / "j.yaml", [tmp_path], prove=False)
    rules = [rule for rule, _ in trial.draft.constraints]
    assert rules[0] in ("m == n", "n == m")
    assert {*rules[1:]} & {"m % 8 == 0", "n % 8 == 0"}
    assert {str(result.status) for result in trial.results} == {"passed"}


def test_right_code_need_not_keep_a_nan_from_what_a_mask_hides(drafts, tmp_path):
    finding = SimpleNamespace(check="propagation", title="out: 3 elements change")
    draft, lines = _relaxed(drafts(), [SimpleNamespace(findings=[finding])])
    assert lines == ["  without propagation, as out: 3 elements change"]
    write_spec(draft, tmp_path / "s.yaml")
    assert "propagation" not in load_spec(tmp_path / "s.yaml").checks
    assert _relaxed(draft, [SimpleNamespace(findings=[finding])]) == (draft, [])


def test_empty_sequences_that_are_refused_are_neither_listed_nor_generated(drafts, tmp_path):
    call = "f(torch.randn(12, 3), torch.tensor([0, 5, 6, 12], dtype=torch.int32))"
    trial = tried(drafts_for("totals:ends", call=call), tmp_path / "e.yaml", [tmp_path])
    assert [rule for rule, _ in trial.draft.constraints] == ["min(seqlens) > 0"]
    assert "IndexError" in trial.draft.constraints[0][1]
    spec = load_spec(tmp_path / "e.yaml")
    assert len(spec.axes["seqlens"]) > 2
    assert all(min(lengths) > 0 for lengths in spec.axes["seqlens"])
    assert spec.fuzz.seqlens.length.low == 1
    assert {str(result.status) for result in trial.results} == {"passed"}


def test_a_reference_agrees_whatever_else_is_found(drafts):
    def result(status, *checks):
        return SimpleNamespace(status=status, findings=[SimpleNamespace(check=c) for c in checks])

    assert _agrees(result("passed"))
    assert _agrees(result("failed", "sanitizers", "relations"))
    assert not _agrees(result("failed", "sanitizers", "numeric"))
    assert not _agrees(result("error", "entry"))
    assert not _agrees(result("timeout"))


def test_time_that_other_programs_take_counts_a_quarter(monkeypatch):
    passed = [100.0, 5.0]
    monkeypatch.setattr("tlmatrix.draft.trial.time.monotonic", lambda: passed[0])
    monkeypatch.setattr("tlmatrix.draft.trial.time.process_time", lambda: passed[1])
    limit = Limit(10)
    for passed[:], left in (([104, 5], 9), ([104, 8], 7), ([142, 8], -0.5), ([104, 16], -1)):
        assert limit.left == left


def test_what_was_found_before_the_time_ended_is_kept(drafts, tmp_path):
    slow = drafts_for("totals:slow", call="f(torch.randn(8))")
    start = time.monotonic()
    trial = tried(slow, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False, seconds=6)
    assert time.monotonic() - start < 40
    assert not trial.error
    assert [value for value in trial.draft.axes["rows"] if value % 8] == []
    assert not any(result.failed for result in trial.results)
    spec = load_spec(tmp_path / "s.yaml")
    assert spec.axes["rows"] == trial.draft.axes["rows"]
