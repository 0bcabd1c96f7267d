"""Results files that are incomplete, damaged or of another version; outputs of commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from report.synthetic import case, recorded
from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import RecordsWriter, Status, read_records

_READERS = (
    ("show", "a.jsonl"),
    ("diff", "a.jsonl", "a.jsonl"),
    ("report", "a.jsonl"),
    ("coverage", "a.jsonl"),
    ("merge", "a.jsonl", "-o", "m.jsonl"),
    ("run", "--resume", "a.jsonl"),
    ("run", "--lf", "--results", "a.jsonl"),
)


def _recorded(project):
    """A run of three cases that passed, all that were planned."""
    file = project.folder / "a.jsonl"
    file.unlink(missing_ok=True)
    results = [case(number, key=f"x:{number}") for number in (1, 2, 3)]
    recorded(file, results)
    writer = RecordsWriter(file)
    writer.plan({"specs/x.yaml": [result.case for result in results]})
    writer.close()
    return file


def test_an_incomplete_run_is_said_and_exits_with_1(project):
    file = _recorded(project)
    text = file.read_text()
    assert project.tlmatrix("show", "a.jsonl").code == ExitCode.OK
    assert project.tlmatrix("diff", "a.jsonl", "a.jsonl").code == ExitCode.OK
    more = {"record": "plan", "cases": {"specs/x.yaml": ["n=8", "n=9"]}}
    file.write_text(text + json.dumps(more) + "\n")
    for words in (("show", "a.jsonl"), ("diff", "a.jsonl", "a.jsonl")):
        outcome = project.tlmatrix(*words, code=ExitCode.FINDINGS)
        assert "2 of 5 planned cases have no result" in outcome.out
    lines = text.splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "summary" not in line))
    outcome = project.tlmatrix("show", "a.jsonl", code=ExitCode.FINDINGS)
    assert "the run did not finish" in outcome.out
    assert "tlmatrix run --resume a.jsonl" in outcome.out


def test_a_run_plans_its_cases(project):
    project.spec(how="[wrong, right]")
    for words in (("-x", "-n", "0"), ("-x", "-n", "1")):
        project.tlmatrix("run", ".", "--results", "b.jsonl", *words)
        records = read_records(project.folder / "b.jsonl")
        assert len(records.missing) == 8 - len(records.results)
        assert records.incomplete
        (project.folder / "b.jsonl").unlink()


@pytest.mark.parametrize("words", _READERS, ids=" ".join)
def test_a_file_of_another_format_is_refused(project, words):
    file = _recorded(project)
    first, *rest = file.read_text().splitlines(keepends=True)
    header = json.loads(first) | {"format": 7, "versions": {"tlmatrix": "9.1"}}
    file.write_text(json.dumps(header) + "\n" + "".join(rest))
    outcome = project.tlmatrix(*words, code=ExitCode.USAGE)
    assert "a.jsonl: has results format 7, and this tlmatrix reads 1; use tlmatrix 9.1" in (
        outcome.out.replace("\n", " ")
    )
    history = project.tlmatrix("history", ".")
    assert "no results files" in history.out


@pytest.mark.parametrize("words", _READERS, ids=" ".join)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seconds":', '"seconds":"long","was":'),
        ('"findings":', '"findings":[3],"was":'),
        ('"ratio":', '"pictures":[{"size":3}],"ratio":'),
        ('"path":"', '"path":"\\udc80'),
        ('{"record":"case"', "[" * 100_000),
    ],
)
def test_damaged_records_are_no_internal_error(project, words, old, new):
    file = _recorded(project)
    recorded(file, [case(4, Status.FAILED)])
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    outcome = project.tlmatrix(*words)
    assert outcome.code != ExitCode.INTERNAL, outcome.out
    assert "Traceback" not in outcome.out


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("report", "a.jsonl", "-o"), "-o"),
        (("show", "a.jsonl", "--junitxml"), "--junitxml"),
        (("copy-spec", "rms_norm", "-o"), "-o"),
    ],
)
@pytest.mark.parametrize("output", ["/dev/full", "file/below.yaml", "folder.yaml"])
def test_an_output_that_cannot_be_written_exits_with_3(project, words, option, output):
    _recorded(project)
    (project.folder / "file").touch()
    (project.folder / "folder.yaml").mkdir()
    outcome = project.tlmatrix(*words, output)
    if words[0] == "copy-spec" and output == "folder.yaml":
        assert outcome.code == ExitCode.USAGE  # it exists
        return
    assert outcome.code == ExitCode.INTERNAL, outcome.out
    assert f"tlmatrix: {option} {output}" in outcome.out
    assert ": cannot be written: " in outcome.out
    assert Path("/dev/full").is_char_device()


def test_a_standard_output_that_is_full_exits_with_3(project):
    _recorded(project)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tlmatrix", "show", "a.jsonl"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == ExitCode.INTERNAL, done.stderr
    assert "the output cannot be written: No space left on device" in done.stderr
