"""What a draft leaves out: sizes and values that are refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tlmatrix.check.finding import Finding
from tlmatrix.draft.calls import Call, Seen
from tlmatrix.draft.narrowing import _explained, keep_recorded
from tlmatrix.draft.sources import drafts_for, drafts_of_calls
from tlmatrix.draft.targets import target_of
from tlmatrix.draft.trial import tried
from tlmatrix.draft.verdicts import Trial
from tlmatrix.run.result import Status
from tlmatrix.spec.loader import load_spec

OPERATOR = """
import torch
from tlmatrix.interpreter.errors import Unsupported

def total(x):
    return x.sum((1, 2, 3))

def paired(x, y):
    if len(x) != len(y):
        raise ValueError("of one length")
    return x.sum() + y.sum()

def paired_reference(x, y):
    return x.sum() + y.sum()

def odd(x):
    if len(x) not in (7, 31):
        raise ValueError("neither 7 nor 31")
    return x * 2

def odd_reference(x):
    return x * 2

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

def limited(x):
    if x.shape[1] > 70 and x.shape[1] % 64:
        raise ValueError("wide rows must be multiples of 64")
    return x * 2

def limited_reference(x):
    return x + x

def several(x):
    if x[0].numel() == 1:
        raise ValueError("one element a row")
    return x * 3

def several_reference(x):
    return x + x + x

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

def wrong(x):
    if x.shape[1] % 8:
        raise ValueError("multiples of 8")
    return x * 7

def wrong_reference(x):
    return x * 9

def unknown(x):
    if len(x) != 31:
        raise ValueError("31 rows")
    raise Unsupported("an operation")

def cut(x):
    return x.detach() * 11

def cut_reference(x):
    return x[:, : x.shape[1] // 8 * 8] * 11

def nine(x, ids):
    return x[ids.long().clamp(max=8)]

def nine_reference(x, ids):
    return x[:9][ids.long()]
"""


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
    keep_recorded(late, recorded)
    assert late.results == [recorded]
    assert late.left_out == "only the recorded sizes: raises ValueError"
    assert late.draft.axes["rows"] == (31,)
    assert not late.draft.fuzz
    # So do the recorded ones of which no case ended in time, if all others are refused.
    refused = [replace(recorded, findings=(why,), values={**recorded.values, "rows": 5})]
    never = Trial(odd(), refused)
    keep_recorded(never, None)
    assert (never.results, never.draft.axes["rows"]) == ([], (31,))
    # Not if a case of other sizes is wrong.
    wrong = replace(recorded, status=Status.FAILED, findings=(Finding("numeric", "wrong"),))
    found = Trial(odd(), [*late.results, replace(recorded, findings=(why,)), wrong])
    keep_recorded(found, recorded)
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


def test_a_value_that_all_refused_cases_have_is_left_out(drafts, tmp_path):
    """No axis alone is refused, and the cases of the values that are left run."""
    several = drafts_for("totals:several", call="f(torch.randn(4, 5, 5, 5))")
    trial = tried(several, tmp_path / "s.yaml", [tmp_path], tier="each", prove=False)
    assert [line for line in trial.lines if "left out" in line] == [
        "  left out cols=1: raises ValueError: one element a row"
    ]
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert {result.values["values"] for result in trial.results} == {*trial.draft.axes["values"]}


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


def test_a_condition_of_the_lengths_of_sequences_is_none_of_two_axes(drafts):
    draft = replace(drafts(), axes={"lengths": ([3], [0, 3])}, fuzz={}, multiples={})
    why = Finding("entry", "raises ValueError", pattern="refuses")

    def result(lengths, *findings):
        status = Status.ERROR if findings else Status.PASSED
        given = {"values": {"lengths": lengths}, "status": status, "findings": findings}
        return SimpleNamespace(**given, failed=bool(findings))

    results = [result([3]), result([2]), result([0, 3], why)]
    assert _explained(draft, results, SimpleNamespace(case=result)) == (draft, [])


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


def test_indices_of_other_sizes_are_those_of_the_calls_if_more_cases_pass(drafts, tmp_path):
    """The recorded case has none above 8."""
    call = "f(torch.randn(9, 11), torch.arange(40).remainder(4).int())"
    nine = drafts_for("totals:nine", call=call)
    trial = tried(nine, tmp_path / "n.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert trial.left_out.startswith("drawn as recorded: ids from 0 to min(3, rows - 1): ")
    assert "rows" in trial.draft.fuzz["axes"]


def test_sizes_that_are_refused_are_left_out_of_code_that_is_always_wrong(drafts, tmp_path):
    wrong = drafts_for("totals:wrong", call="f(torch.randn(3, 64))")
    trial = tried(wrong, tmp_path / "w.yaml", [tmp_path], tier="each", prove=False)
    assert [rule for rule, _ in trial.draft.constraints] == ["cols % 8 == 0"]
    firsts = {each.findings[0].check for each in trial.results if each.values["values"] == "normal"}
    assert firsts == {"numeric"}, trial.lines


def test_sizes_of_which_results_have_another_shape_are_left_out_as_wrong(drafts, tmp_path):
    """The reference drops the last columns."""
    cut = drafts_for("totals:cut", call="f(torch.randn(3, 24))")
    trial = tried(cut, tmp_path / "c.yaml", [tmp_path], tier="each", prove=False)
    assert {str(result.status) for result in trial.results} == {"passed"}, trial.lines
    assert "has shape" in trial.wrong, trial.lines


def test_a_recorded_case_that_is_not_modelled_is_kept_if_others_are_refused(drafts, tmp_path):
    tensor = Seen((31,), "float32")
    call = Call("totals:unknown", {"x": tensor}, {"0": tensor})
    unknown = drafts_of_calls(target_of("totals:unknown"), [call])
    trial = tried(unknown, tmp_path / "u.yaml", [tmp_path], tier="each", prove=False)
    assert [str(result.status) for result in trial.results] == ["skipped"], trial.lines
    assert load_spec(tmp_path / "u.yaml").axes["rows"] == (31,)
