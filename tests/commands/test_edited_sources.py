"""Kernels that are edited during a run, a search, or before it is resumed."""

import json

import pytest

from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import Status, read_records

_EDIT = """
FACTOR = 2


def _edit(how, rows):
    import pathlib

    file = pathlib.Path(__file__)
    if FACTOR == 2 and how == "edit" and rows >= 4:
        file.write_text(file.read_text().replace("FACTOR = 2", "FACTOR = 3"))
        if rows == 4:
            os._exit(3)
"""


def _editing(project, rows):
    """A kernel that edits its own file with 4 rows or more, and with 4 ends its process."""
    file = project.folder / f"{project.module}.py"
    text = file.read_text().replace(
        "    y = 2 * x\n", "    _edit(how, len(x))\n    y = FACTOR * x\n"
    )
    file.write_text(text + _EDIT)
    path = project.spec(how="[edit]", rows=rows)
    path.write_text(path.read_text().replace("[float32, float16]", "[float32]"))


def _by_rows(records):
    found = {}
    for result in records.results:
        found.setdefault(result.values["rows"], set()).add(result.status)
    return found


@pytest.mark.parametrize("workers", ["auto", "1"])
@pytest.mark.parametrize("rows", ["[1, 4, 2, 3]", "[1, 5, 2, 3]"])
def test_no_case_is_judged_after_an_edit(project, workers, rows):
    """Also if the edited source is imported by a new process, as the last one ended."""
    _editing(project, rows)
    outcome = project.tlmatrix("run", ".", "-n", workers, "--results", "a.jsonl")
    assert outcome.code == ExitCode.FINDINGS, outcome.out
    assert f"not judged: {project.module}.py changed since the run began" in outcome.out
    records = read_records(project.folder / "a.jsonl")
    found = _by_rows(records)
    assert found.pop(1) == {Status.PASSED}
    assert found.pop(4, {Status.CRASHED}) <= {Status.CRASHED, Status.ERROR}
    assert set.union(*found.values()) == {Status.ERROR}
    assert len({result.sources for result in records.results if result.sources}) <= 2


def test_a_resumed_run_repeats_what_passed_before_an_edit(project):
    project.spec()
    other = project.folder / "other.yaml"
    other.write_text(
        (project.folder / "scale.yaml").read_text().replace("name: scale", "name: other")
    )
    project.tlmatrix("run", ".", "-n", "0", "--results", "a.jsonl")
    outcome = project.tlmatrix("run", "--resume", "a.jsonl", "-n", "0")
    assert "nothing to run" in outcome.out
    other.write_text(other.read_text().replace("rows: [1, 5]", "rows: [1, 6]"))
    outcome = project.tlmatrix("run", "--resume", "a.jsonl", "-n", "0", code=ExitCode.OK)
    assert "4 cases run again: other.yaml changed since" in outcome.out
    assert "4 cases in" in outcome.out
    module = project.folder / f"{project.module}.py"
    # Of another size: Python takes bytecode for current by a module's size and its second.
    module.write_text(module.read_text().replace("y = 2 * x", "y = 30 * x"))
    outcome = project.pytest(".", "-n", "1", "--tlmatrix-resume", "a.jsonl")
    assert f"tlmatrix: 8 cases run again: {module.name} changed since" in outcome.out
    assert outcome.code == ExitCode.FINDINGS


def test_a_resumed_run_repeats_what_other_versions_and_settings_passed(project):
    project.spec()
    project.tlmatrix("run", ".", "-n", "0", "--results", "a.jsonl")
    outcome = project.tlmatrix("run", "--resume", "a.jsonl", "-n", "0", "--seed", "3")
    assert "4 cases run again: the seed is 3, was 0" in outcome.out
    file = project.folder / "a.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line.pop("sources", None)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = project.tlmatrix("run", "--resume", "a.jsonl", "-n", "0", "--seed", "3")
    assert "4 cases run again: the results file does not say" in outcome.out


def test_a_search_ends_when_its_kernel_is_edited(project):
    _editing(project, "[1]")
    path = project.folder / "scale.yaml"
    path.write_text(path.read_text() + "fuzz:\n  axes: {rows: 1..300}\n  examples: {quick: 12}\n")
    outcome = project.tlmatrix("fuzz", "scale.yaml", "-n", "1", "--examples", "40")
    assert outcome.code == ExitCode.FINDINGS, outcome.out
    assert f"{project.module}.py changed since the search began" in outcome.out
    (file,) = project.folder.rglob("*.jsonl")
    statuses = [result.status for result in read_records(file).results]
    assert len(statuses) < 40
    assert Status.FAILED not in statuses
