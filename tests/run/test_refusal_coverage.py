"""Coverage of refusals: the parts of their conditions that no invalid input reaches are gaps."""

from pathlib import Path

from spec_results import results_of
from tlmatrix.interpreter.coverage import Coverage
from tlmatrix.options.table import RunOptions
from tlmatrix.run import Status
from tlmatrix.run.runner import Runner

HERE = Path(__file__).parent
SOURCE = (HERE / "refused_by.py").read_text().splitlines()
SPEC = """
name: refused_by
problem:
  inputs: {x: {shape: [rows], dtype: float32}}
  outputs: [y]
  reference: refused_by:scaled
entry: refused_by:tiled
axes: {rows: [5], tile: [[1, 1], [2, 4]], words: [''], part: [none]}
invalid_inputs:
"""
FIRST = "  - messages: {tile must divide: [{tile: [16]}, {tile: [16, 3]}]}\n"
WORDS = "  - {raises: AssertionError, messages: {words must be: {words: 1}}}\n"
REST = """  - messages:
      tile must divide: [{tile: [3, 64]}]
      part must not be all: {part: all}
      part must be at least 0: {part: -1}
      part must be absent: {part: 1}
  - {raises: AssertionError, messages: {words must be: {words: long}}}
"""


def gaps(invalid):
    """The gaps of the invalid inputs of a spec: the source line, which guard, what was not seen."""
    path = HERE / "refused_by.yaml"
    with Runner("interpreter", RunOptions({"coverage": "summary"})) as runner:
        results = results_of(SPEC + invalid, path, runner=runner, origins={"invalid"})
    assert {each.status for each in results} == {Status.PASSED}, [r.findings for r in results]
    found = Coverage.merged(each.coverage for each in results if each.coverage is not None)
    return [
        (SOURCE[each.first - 1].strip().partition("(")[0], each.what, each.never)
        for each in found.gaps()
    ]


def test_each_part_of_a_condition_that_no_invalid_input_reaches_is_a_gap():
    assert gaps(FIRST + WORDS)[:2] == [
        ("raise ValueError", "if 2 16 % tile[0]", ("true",)),
        ("assert isinstance", "if 2 not len(words) < 4", ("true",)),
    ]


def test_refusals_of_functions_that_ran_are_gaps_if_no_invalid_input_reaches_them():
    found = gaps(FIRST)
    assert ("refuse", "if part == 'all'", ("true",)) in found
    assert ("refuse", "if part < 0", ("true",)) in found
    assert ("raise ValueError", "", ("run",)) in found
    assert not [each for each in found if each[1] == "if part"]  # of a function that did not run


def test_invalid_inputs_for_every_part_leave_no_gap():
    assert gaps(FIRST + WORDS + REST) == []
