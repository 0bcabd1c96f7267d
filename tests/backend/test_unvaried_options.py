"""`tlmatrix check` names options of entries, and values of them, that no case passes."""

import pytest

from outside_project import command_line
from tlmatrix.backend.axes import unvaried_options
from tlmatrix.problem import family_for
from tlmatrix.spec import load_spec

SPEC = """
name: {name}
problem:
  inputs: {{x: {{shape: [rows], dtype: float32, grad: {grad}}}}}
  outputs: [y]
  reference: torch:clone
entry: options_code:{entry}
axes: {{rows: [1, 5], {axes}}}
{more}
"""
CODE = """
from typing import Literal

import torch

import options_kinds
from options_kinds import How

Side = Literal["left", "right"]


def scaled(x, rows, scale=1.0):
    return x * scale


def sided(x, *, side: Side = "left", how: "How | None" = None, exact: bool = False):
    return x


def given(x, out=None, y=None, values=None):
    return x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, exact: bool = False):
        return x
"""


@pytest.fixture
def warnings(tmp_path):
    (tmp_path / "options_code.py").write_text(CODE)
    kinds = "from typing import Literal\n\nHow = Literal['one', 'two']\n"
    (tmp_path / "options_kinds.py").write_text(kinds)

    def warnings(*specs):
        plans = []
        for number, given in enumerate(specs):
            entry, axes, grad, more = (*given, *("", "false", "")[len(given) - 1 :])
            path = tmp_path / f"s{number}.yaml"
            path.write_text(
                SPEC.format(name=f"s{number}", entry=entry, axes=axes, grad=grad, more=more)
            )
            spec = load_spec(path)
            plans.append((spec, family_for(spec)))
        return [issue.message for issue in unvaried_options(plans)]

    return warnings


def test_an_option_that_no_case_passes(warnings):
    (message,) = warnings(("scaled", ""))
    assert message.startswith("no case passes scale to options_code:scaled: list its values")


@pytest.mark.parametrize(
    ("axes", "more"),
    [
        ("scale: [1.0, 2.0]", ""),
        ("scale: [1.0]", ""),
        ("scale: [1.0]", "fuzz: {axes: {scale: 1..3}}"),
        ("scale: [1.0]", "extra_cases: [{scale: 2.0}]"),
    ],
)
def test_an_option_with_an_axis(warnings, axes, more):
    assert warnings(("scaled", axes, "false", more)) == []


def test_values_that_an_annotation_lists(warnings):
    found = warnings(("sided", "side: [left, right], how: [none, one], exact: [false, true]"))
    assert [each.split(" to ")[0] for each in found] == ["no case passes how='two'"]
    assert warnings(("sided", "side: [left], how: [one, two, none], exact: [true, false]")) == []


def test_specs_of_one_entry_count_together(warnings):
    assert warnings(("scaled", ""), ("scaled", "scale: [1.0, 2.0]")) == []


def test_an_option_must_vary_where_gradients_are_checked(warnings):
    (message,) = warnings(("scaled", "", "true"), ("scaled", "scale: [1.0, 2.0]"))
    assert message.startswith("no case that checks gradients passes scale to options_code:scaled")
    assert warnings(("scaled", ""), ("scaled", "scale: [1.0, 2.0]", "true")) == []


def test_tensors_and_names_of_the_problem_are_no_options(warnings):
    assert warnings(("given", "")) == []


def test_check_prints_them(warnings, tmp_path):
    warnings(("scaled", ""))
    outcome = command_line("check", str(tmp_path), code=0)
    assert "s0.yaml:7:1: no case passes scale" in outcome.out


def test_check_counts_specs_beside_those_that_are_named(warnings, tmp_path):
    warnings(("scaled", ""), ("scaled", "scale: [1.0, 2.0]"))
    (tmp_path / "broken.yaml").write_text("axes: [\nentry: options_code:scaled")
    outcome = command_line("check", str(tmp_path / "s0.yaml"))
    assert "warning" not in outcome.out, outcome.out


def test_the_specs_of_the_project_vary_every_option():
    outcome = command_line("check", "specs", code=0)
    assert "warning" not in outcome.out


def test_check_names_options_that_a_sample_leaves_out(warnings, tmp_path):
    axes = "side: [left, right], exact: [false, true], how: [one, two, none]"
    tiers = "tiers: {{quick: {{strategy: {}}}}}"
    for strategy, missing in (("sample, size: 1", 3), ("1-wise", 0), ("sample, size: 99", 0)):
        warnings(("sided", axes, "false", tiers.format(strategy).replace("{{", "{")))
        outcome = command_line("check", str(tmp_path), code=0)
        assert outcome.out.count("that the tier 'quick' samples has") == missing, outcome.out


def test_an_autograd_function_has_the_options_of_its_forward(warnings):
    (message,) = warnings(("Doubled.apply", "", "false", "call: [x]"))
    assert message.startswith("no case passes exact to options_code:Doubled.apply")
    assert warnings(("Doubled.apply", "exact: [false, true]", "true", "call: [x, exact]")) == []


@pytest.mark.parametrize(
    ("call", "axes", "expected"),
    [
        ("[x, rows]", "", "scale"),
        ("[x, rows, scale]", "scale: [1.0, 2.0]", ""),
        ("[x, rows, by]", "by: [1.0, 2.0]", ""),
        ("{x: x, rows: rows, scale: by}", "by: [1.0, 2.0]", ""),
        ("{x: x, rows: rows, scale: 2.0}", "", ""),
        ("{x: x, rows: rows}", "", "scale"),
    ],
)
def test_options_that_a_call_passes_by_position_or_name(warnings, call, axes, expected):
    found = warnings(("scaled", axes, "false", f"call: {call}"))
    assert [each.split(" to ")[0] for each in found] == (
        [f"no case passes {expected}"] if expected else []
    )
