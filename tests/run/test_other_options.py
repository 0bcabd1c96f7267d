"""Hints name the option of which wrong results have another value."""

import pytest

from tlmatrix.matrix import Case
from tlmatrix.run.runner import run_case
from tlmatrix.spec import parse_spec

SPEC = """
name: shifted
problem:
  inputs: {x: {shape: [rows, 7], dtype: float32}}
  outputs: [y]
  reference: other_options_code:reference
entry: other_options_code:ENTRY
axes:
  rows: [4, 9]
  shift: [none, 2, 3]
  side: [left, right]
  same: [one, other]
"""
CODE = """
import torch


def reference(x, shift, side, same):
    count = 1 if shift is None else shift
    return x + x.roll(count if side == "left" else -count, 1)


def without_shift(x, shift=None, side="left", same="one"):
    return reference(x, None, side, same)


def one_too_many(x, shift=None, side="left", same="one"):
    return reference(x, shift + 1, side, same)


def other_side_of_one_row(x, shift=None, side="left", same="one"):
    y = reference(x, shift, side, same)
    y[2:4] = reference(x, shift, "right" if side == "left" else "left", same)[2:4]
    return y


def of_nothing(x, shift=None, side="left", same="one"):
    return x * 1.5 + 0.25


def of_two_options(x, shift=None, side="left", same="one"):
    # Of 7 columns, 4 to one side are 3 to the other.
    return reference(x, 4, side, same)
"""


@pytest.fixture(scope="module")
def hint(code_folder):
    def hint(entry, **values):
        spec = parse_spec(SPEC.replace("ENTRY", entry), code_folder / "shifted.yaml")
        usual = {"rows": 9, "shift": 2, "side": "left", "same": "one", "values": "normal"}
        case = Case("shifted", usual | values)
        (finding,) = run_case(spec, case, "interpreter").findings
        return finding.hint

    return hint


def test_an_option_that_is_dropped(hint):
    assert hint("without_shift") == "the results are those of shift=none or 1, not 2"


def test_a_number_that_is_one_too_large(hint):
    assert hint("one_too_many") == "the results are those of shift=3, not 2"


def test_wrong_elements_may_have_another_value_alone(hint):
    expected = "in the wrong elements the results are those of side=right, not left"
    assert hint("other_side_of_one_row") == expected


def test_results_of_no_other_value_name_no_option(hint):
    assert "results are those" not in (hint("of_nothing") or "")


def test_two_options_with_one_effect_name_neither(hint):
    assert "results are those" not in (hint("of_two_options", shift=3) or "")
