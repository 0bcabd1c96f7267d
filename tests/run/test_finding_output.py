"""What a finding says beyond its numbers: inputs, what is not judged, whose fault it is."""

from __future__ import annotations

import pytest

import tlmatrix
from tlmatrix.backend.backends import InterpreterBackend
from tlmatrix.cli import main
from tlmatrix.report.text import describe_result
from tlmatrix.run.result import CaseResult

CODE = """
import functools

import torch

@functools.lru_cache
def deep(number):
    raise KeyError("deep inside")

def right(x):
    return 2 * x

def wrong(x):
    y = 2 * x
    y[-1:] += 1
    return y

def raises(x):
    return deep(len(x))

def two(x):
    return x, x

calls = []

def wrong_once(x):
    calls.append(x)
    return wrong(x) if len(calls) == 2 else right(x)

def nan(x):
    return 2 * x + torch.where(x == x.max(), torch.nan, 0.0)
"""
SPEC = """\
name: told
problem:
  inputs: {{x: {{shape: [rows, 3], dtype: float32}}}}
  outputs: [y]
  reference: {module}:{reference}
entry: {module}:{entry}
axes: {{rows: [5]{axes}}}
relations: [{{split: rows}}]
"""


@pytest.fixture
def made(tmp_path, monkeypatch, request):
    """A spec of these functions, in a project of its own."""
    module = "told_" + "".join(each if each.isalnum() else "_" for each in request.node.name)
    (tmp_path / f"{module}.py").write_text(CODE)
    (tmp_path / "pyproject.toml").write_text("[tool.tlmatrix]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(entry, reference="right", axes=""):
        text = SPEC.format(module=module, entry=entry, reference=reference, axes=axes)
        (tmp_path / "told.yaml").write_text(text)
        return tmp_path / "told.yaml"

    return make


def only(path):
    (result,) = tlmatrix.run_specs(path, backend="interpreter").results
    return result, result.findings[0]


@pytest.mark.parametrize(
    ("axes", "words"), [("", ", which the seed of the case picks"), (", values: [ramp]", "ramp")]
)
def test_a_failing_case_reports_the_distribution_of_its_inputs(made, axes, words):
    result, _ = only(made("wrong", axes=axes))
    (line,) = [line for line in describe_result(result) if line.startswith("  inputs")]
    assert line == f"  inputs    {result.distribution}{words}" or line.endswith(f"    {words}")
    assert CaseResult.from_json(result.to_json()).distribution == result.distribution != ""


@pytest.mark.parametrize(("entry", "passes_again"), [("wrong_once", True), ("wrong", False)])
def test_a_failure_that_does_not_show_again_says_so_where_threads_are_concurrent(
    made, monkeypatch, entry, passes_again
):
    monkeypatch.setattr(InterpreterBackend, "concurrent", True)
    _, finding = only(made(entry))
    assert finding.check == "numeric"
    assert ("the case passed when it ran again" in finding.detail) == passes_again


def test_skipped_checks_are_named_and_run_with_keep_going(made, capsys):
    path = made("wrong")
    _, finding = only(path)
    assert finding.check == "numeric"
    assert "not run: repeat and relations: wrong values make them fail too" in finding.detail
    assert main(["repro", f"{path}::rows=5", "--keep-going"]) == 1
    told = capsys.readouterr().out
    assert "relations: rows_split: y:" in told
    assert "--keep-going" not in told


def test_repro_compares_its_finding_with_the_recorded_one(made, capsys):
    path = made("wrong")
    main(["run", str(path), "-n", "0"])
    capsys.readouterr()
    main(["repro", "told.yaml::rows=5"])
    assert "  recorded  the same finding as in .tlmatrix/run-" in capsys.readouterr().out
    made("raises")
    main(["repro", "told.yaml::rows=5"])
    assert "  recorded  another finding in .tlmatrix/run-" in capsys.readouterr().out


def test_frames_of_the_standard_library_are_left_out(made):
    _, finding = only(made("raises"))
    assert finding.title == "raises KeyError: 'deep inside'"
    lines = finding.detail.splitlines()
    assert len(lines) == 2
    assert "in raises: return deep(len(x))" in lines[0]
    assert "in deep" in lines[1]


@pytest.mark.parametrize(
    ("reference", "title"),
    [
        ("raises", "raises raised KeyError: 'deep inside'"),
        ("two", "returned 2 results, expected 1: y"),
        ("nan", "y: the reference gives NaN in 1 of 15 elements where the entry gives numbers"),
    ],
)
def test_an_error_of_the_reference_is_a_reference_error(made, reference, title):
    result, finding = only(made("right", reference=reference, axes=", values: [normal]"))
    assert result.failed
    assert finding.check == "reference"
    assert finding.title.startswith("reference error: ")
    assert title in finding.title
