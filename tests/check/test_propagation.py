"""NaN and infinity reach the results that depend on them, and no others."""

import pytest
from packed_attention import attention

from spec_results import findings_of
from tlmatrix.check.registry import CHECKS, rotation_order
from tlmatrix.problem.relations.propagation import with_propagation
from tlmatrix.spec import parse_spec

CODE = """
import torch


def softmax(x):
    return x.softmax(-1)


def finite_only(x):
    return x.nan_to_num(0.0, 0.0, 0.0).softmax(-1)


def through_rows(x):
    return torch.eye(len(x)) @ x.softmax(-1)


def narrow(x):
    return x.softmax(-1).to(torch.float8_e4m3fn)


def narrow_finite_only(x):
    return finite_only(x).to(torch.float8_e4m3fn)


def two(x):
    return x.softmax(-1), x + 0


def two_masked(x):
    return x.nan_to_num(0.0, 0.0, 0.0).softmax(-1), x + 0


def two_of_where(x):
    return torch.where(x.isnan(), 0.0, x).softmax(-1), x + 0


def two_through_rows(x):
    return through_rows(x), x + 0


def refused(x):
    if not x.isfinite().all():
        raise ValueError("x must be finite")
    return x.softmax(-1)


def fails(x):
    if not x.isfinite().all():
        raise IndexError("list index out of range")
    return x.softmax(-1)


def clamped(x):
    return x.clamp(-1, 1)


def clamped_by_comparisons(x):
    x = torch.where(x > -1, x, -1.0)
    return torch.where(x < 1, x, 1.0)


def gated(x):
    return torch.where(x <= 0, 0.0, x.roll(1, 1))


def gated_the_other_way(x):
    return torch.where(x > 0, x.roll(1, 1), 0.0)


def gated_by_another_row(x):
    return gated(x) + 0.5 * x[:, :1].isnan().any()


def counted(x):
    return torch.bincount(x.nan_to_num(9.0).argmax(1), minlength=8).double()[:8] + 0 * x.sum(0)


def _by_comparisons(x, nothing):
    place, best = torch.full((len(x),), nothing), torch.full((len(x),), -torch.inf)
    for column in range(8):
        larger = x[:, column] > best
        place, best = place.where(~larger, column), best.where(~larger, x[:, column])
    counts = torch.zeros(8).index_add(0, place, torch.ones(len(x)))
    return counts + 0 * x.sum(0)


def counted_by_comparisons(x):
    return _by_comparisons(x, 0)


def counted_outside(x):
    return _by_comparisons(x, 8)


def ordered(x):
    return x.sort(1, descending=True).values


def sorted_numbers(x):
    return ordered(x.masked_fill(x.isnan(), -torch.inf))


def sorted_by_swaps(x):
    y = x.clone()
    for start in range(9):
        for column in range(start % 2, 7, 2):
            one, two = y[:, column].clone(), y[:, column + 1].clone()
            swap = one < two
            y[:, column], y[:, column + 1] = one.where(~swap, two), two.where(~swap, one)
    return y


def sorted_by_swaps_beside(x):
    y = sorted_by_swaps(x)
    return torch.cat([y[:1], y[1:] + 0 * y[:1]])


def failing_reference(x):
    if not x.isfinite().all():
        raise ValueError("x must be finite")
    return x.softmax(-1)


def _masked(scores):
    return torch.ones_like(scores).triu(1).bool()


def attention(x, k):
    scores = x @ k.mT
    return scores.masked_fill(_masked(scores), float("-inf")).softmax(-1) @ k.nan_to_num()


def attention_by_where(x, k):
    scores = x @ k.mT
    return torch.where(_masked(scores), -1e9, scores).softmax(-1) @ k.nan_to_num()


def attention_by_index(x, k):
    scores = x @ k.mT
    scores[_masked(scores)] = float("-inf")
    return scores.softmax(-1) @ k.nan_to_num()


def attention_by_sum(x, k):
    scores = x @ k.mT
    scores = torch.zeros_like(scores).masked_fill(_masked(scores), float("-inf")) + scores
    return scores.softmax(-1) @ k.nan_to_num()


def attention_of_other_heads(x, k):
    out = attention_by_sum(x, k)
    return out + 0 * out.sum(0)


def segments(x, lengths):
    return torch.cat([part.softmax(0) for part in x.split(lengths)])


def segments_by_tiles(x, lengths):
    # Rows of the next segment have the weight 0.
    parts, start = [], 0
    for length in lengths:
        weight = (torch.arange(len(x)) < start + length) & (torch.arange(len(x)) >= start)
        total = weight.float() @ x.exp()
        parts.append(x[start : start + length].exp() / total)
        start += length
    return torch.cat(parts)

def pooled(x):
    return torch.nn.functional.max_pool1d(x[None], 2, 1)[0]


def pooled_numbers(x):
    known = torch.where(x.isnan(), -torch.inf, x)
    _, at = torch.nn.functional.max_pool1d(known[None], 2, 1, return_indices=True)
    return x.gather(1, at[0])


def largest(x):
    at = (x == x.amax(0)).int().argmax(0)
    return x.gather(0, at[None])[0]


def largest_number(x):
    at = torch.where(x.isnan(), -torch.inf, x).argmax(0)
    return x.gather(0, at[None])[0]


def largest_number_but_zero_without_any(x):
    return torch.where(x.isnan().all(0), 0.0, largest_number(x))


def largest_number_of_other_columns(x):
    return largest_number(x.roll(1, 1))


def pooled_of_the_row_before(x):
    return pooled_numbers(x.roll(1, 0))


def running(x, w):
    sums = []
    for row in range(len(x)):
        sums.append(x[row] * w if row == 0 else sums[-1] + x[row] * w)
    return torch.stack(sums)


def running_by_tiles(x, w):
    return torch.ones(len(x), len(x)).tril() @ (x * w)


def running_over_columns(x, w):
    return running_by_tiles(x, w) + 0 * x.sum(1, keepdim=True)
"""
ROWS = """
name: special
problem:
  inputs:
    x: {{shape: [rows, 8], dtype: float32}}
  outputs: [y]
  reference: propagation_code:{reference}
entry: propagation_code:{entry}
returns: [y]
axes: {{rows: [2, 3, 4, 5, 6, 7, 8, 9]}}
checks: [numeric, propagation]
{more}
"""
PACKED = """
name: segments
problem:
  inputs:
    x: {{shape: [sum(lengths), 4], dtype: float32}}
  outputs:
    y: {{shape: [sum(lengths), 4]}}
  reference: propagation_code:segments
entry: propagation_code:{entry}
returns: [y]
axes: {{lengths: [[3, 2, 4], [1, 5], [2, 2, 2], [7, 1]]}}
checks: [numeric, propagation]
propagation: {propagation}
"""


@pytest.fixture(scope="module")
def found(code_folder):
    def findings(text, more="propagation: exact", **names):
        return findings_of(text.format(more=more, **names), code_folder / "special.yaml")

    return findings


@pytest.mark.parametrize("entry", ["softmax", "refused"])
def test_no_finding_for_a_correct_entry(found, entry):
    assert found(ROWS, entry=entry, reference="softmax") == []


def test_results_of_8_bits_are_compared(found):
    narrow = "outputs: {{y: {{shape: [rows, 8], dtype: float8_e4m3fn}}}}"
    text = ROWS.replace("outputs: [y]", narrow)
    assert found(text, entry="narrow", reference="softmax") == []
    findings = found(text, entry="narrow_finite_only", reference="softmax")
    assert {finding.check for finding in findings} == {"propagation"}


def test_no_finding_if_the_reference_refuses_nan(found):
    assert found(ROWS, entry="finite_only", reference="failing_reference") == []


@pytest.mark.parametrize(
    ("entry", "reference"), [("finite_only", "softmax"), ("clamped_by_comparisons", "clamped")]
)
def test_swallowed_nan_is_found(found, entry, reference):
    findings = found(ROWS, entry=entry, reference=reference)
    assert findings
    assert {finding.check for finding in findings} == {"propagation"}
    assert all("that depend on" in finding.title for finding in findings)


@pytest.mark.parametrize("more", ["propagation: exact", ""])
def test_a_comparison_with_nan_may_go_either_way(found, more):
    assert found(ROWS, more=more, entry="gated_the_other_way", reference="gated") == []
    findings = found(ROWS, more=more, entry="gated_by_another_row", reference="gated")
    assert {finding.check for finding in findings} == {"propagation"}


def test_the_gradient_of_a_selection_may_pass_over_a_nan(found):
    few, many = (f"{list(range(2, end))}, values: [cancelling]" for end in (10, 50))
    text = ROWS.replace("[2, 3, 4, 5, 6, 7, 8, 9]", few).replace("float32", "float32, grad: true")
    text = text.replace("[numeric, propagation]", "[numeric, gradients, propagation]")
    assert found(text, more="", entry="pooled_of_the_row_before", reference="pooled")
    assert found(text, more="", entry="largest_number_of_other_columns", reference="largest")
    text = text.replace(few, many)
    assert found(text, more="", entry="pooled_numbers", reference="pooled") == []
    assert found(text, more="", entry="largest_number", reference="largest") == []
    text = text.replace(many, "[1], values: [normal, large, ramp, opposed, cancelling]")
    some = found(text, more="", entry="largest_number_but_zero_without_any", reference="largest")
    assert some == []


def test_an_index_that_no_comparison_with_rows_of_nan_has_set_is_found(found):
    assert found(ROWS, more="", entry="counted_by_comparisons", reference="counted") == []
    findings = found(ROWS, more="", entry="counted_outside", reference="counted")
    assert findings
    assert all("rows_of_nan: raised EntryError: IndexError" in each.title for each in findings)


def test_a_selection_that_passes_over_a_nan_may_end_with_minus_infinity(found):
    assert found(ROWS, more="", entry="sorted_numbers", reference="ordered") == []


def test_a_sort_by_comparisons_may_leave_a_nan_anywhere_in_its_row(found):
    many = f"{list(range(2, 20))}, values: [zero_rows, normal]"
    text = ROWS.replace("[2, 3, 4, 5, 6, 7, 8, 9]", many)
    assert found(text, more="", entry="sorted_by_swaps", reference="ordered") == []
    findings = found(text, more="", entry="sorted_by_swaps_beside", reference="ordered")
    assert {finding.check for finding in findings} == {"propagation"}


def test_by_default_nan_may_vanish_and_reach_other_rows_of_packed_tensors_alone(found):
    assert found(PACKED, entry="segments_by_tiles", propagation="null") == []
    assert found(ROWS, more="", entry="finite_only", reference="softmax") == []
    assert found(ROWS, more="", entry="through_rows", reference="softmax")


def test_nan_in_another_row_is_found(found):
    findings = found(ROWS, entry="through_rows", reference="softmax")
    assert findings
    assert all("do not depend on" in finding.title for finding in findings)
    assert "x[" in findings[0].detail


def test_another_exception_is_found(found):
    findings = found(ROWS, entry="fails", reference="softmax")
    assert findings
    assert all("IndexError" in finding.title for finding in findings)


def test_packed_tiles_may_be_declared(found):
    spread = found(PACKED, entry="segments_by_tiles", propagation="exact")
    assert {finding.check for finding in spread} == {"propagation"}
    assert found(PACKED, entry="segments_by_tiles", propagation="packed") == []
    assert found(PACKED, entry="segments", propagation="exact") == []


def test_problem_without_inputs_to_replace_has_no_such_relation():
    problem = attention()
    text = PACKED.format(entry="segments", propagation="exact")
    assert with_propagation(parse_spec(text), problem, 1) is problem


def test_order_of_the_other_checks_does_not_depend_on_it():
    older = [check for check in CHECKS if check != "propagation"]
    first = set()
    for seed in range(100):
        order = rotation_order(CHECKS, seed)
        first.add(order[0])
        assert [check for check in order if check != "propagation"] == rotation_order(older, seed)
    assert first == set(CHECKS)


TWO = ROWS.replace("outputs: [y]", "outputs: [y, copy]").replace("[y]", "[y, copy]")


@pytest.mark.parametrize("reference", ["two_masked", "two_of_where"])
@pytest.mark.parametrize("fill", ["normal", "one_hot"])
@pytest.mark.parametrize("more", ["propagation: exact", ""])
def test_a_kernel_need_not_mask_the_nan_that_its_reference_masks(found, reference, fill, more):
    text = TWO.replace("float32}}", f"float32, fill: {fill}}}}}", 1)  # NaN becomes 0, as it was
    assert found(text, entry="two", reference=reference, more=more) == []
    assert found(text, entry="two_masked", reference=reference, more=more) == []


def test_a_nan_in_other_rows_says_that_the_reference_masks_it(found):
    findings = found(TWO, entry="two_through_rows", reference="two_masked")
    assert findings
    assert all("the reference masks NaN" in finding.hint for finding in findings)
    findings = found(TWO, entry="two_through_rows", reference="two")
    assert all("0 * NaN is NaN" in finding.hint for finding in findings)


ATTENTION = ROWS.replace(
    "x: {{shape: [rows, 8], dtype: float32}}",
    "x: {{shape: [2, rows, 8], dtype: float32}}\n    k: {{shape: [2, rows, 8], dtype: float32}}",
)


@pytest.mark.parametrize("reference", ["attention", "attention_by_where", "attention_by_index"])
def test_a_nan_in_a_masked_score_may_stay_where_the_kernel_adds_the_mask(found, reference):
    assert found(ATTENTION, entry=reference, reference=reference, more="") == []
    assert found(ATTENTION, entry="attention_by_sum", reference=reference, more="") == []
    findings = found(ATTENTION, entry="attention_by_sum", reference=reference)
    assert findings
    assert all("write `propagation: packed`" in finding.hint for finding in findings)


def test_a_nan_in_another_head_is_found_unless_the_axis_is_named(found):
    names = {"entry": "attention_of_other_heads", "reference": "attention", "more": ""}
    findings = found(ATTENTION, **names)
    assert findings
    hint = "`outputs: {y: {dims: [batch, position, head, dim]}}`"
    assert all(hint in finding.hint for finding in findings)
    named = ATTENTION.replace("[y]", "{{y: {{dims: [batch, position, dim]}}}}", 1)
    assert found(named, **names) == []


def test_the_hint_of_a_kernel_that_selects_values_is_to_leave_the_key_out(found):
    names = {"entry": "attention_by_sum", "reference": "attention"}
    findings = found(ATTENTION, more="propagation: selected", **names)
    assert findings
    assert all("leave `propagation` out" in finding.hint for finding in findings)
    assert found(ATTENTION, more="", **names) == []


def test_a_nan_may_reach_earlier_rows_of_a_running_sum_but_no_other_column(found):
    text = ROWS.replace("float32}}", "float32}}\n    w: {{shape: [8], dtype: float32}}", 1)
    names = {"reference": "running", "more": ""}
    assert found(text, entry="running_by_tiles", **names) == []
    exact = found(text, entry="running_by_tiles", reference="running")
    assert any("do not depend on a NaN" in finding.title for finding in exact)
    columns = found(text, entry="running_over_columns", **names)
    assert any("do not depend on a NaN" in finding.title for finding in columns)
