"""Kernels that the interpreter does not support: skipped, counted, or errors."""

import pytest

from tlmatrix.run import Status, read_records

_FUZZ = """\
fuzz:
  axes: {rows: 1..300}
  examples: {quick: 6}
"""
_WHY = "the interpreter does not model T.call_extern"


def _said(outcome):
    """Its words, wherever lines end."""
    return " ".join(outcome.out.split())


def _statuses(project):
    (path,) = project.folder.rglob("*.jsonl")
    return {result.status for result in read_records(path).results}


def test_skipped_cases_are_counted_in_the_last_line(project):
    project.spec(how="[right, unknown]", rows="[1]")
    outcome = project.tlmatrix("run", "scale.yaml", "-n", "0", code=0)
    assert f"2 cases skipped: {_WHY}" in _said(outcome)
    assert "2 passed, 2 skipped (2 unsupported); 2 cases not judged: the interpreter" in _said(
        outcome
    )


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_of_unsupported_cases_alone_fails(project, workers):
    project.spec(how="[unknown]", rows="[1]")
    outcome = project.tlmatrix("run", "scale.yaml", "-n", workers, code=1)
    assert "2 skipped (2 unsupported); nothing was judged" in _said(outcome)


def test_pytest_fails_if_all_cases_are_unsupported(project):
    project.spec(how="[unknown]", rows="[1]")
    outcome = project.pytest("scale.yaml", code=1)
    assert "tlmatrix: nothing was judged" in _said(outcome)


def test_pytest_succeeds_with_other_tests_and_reports_unsupported_cases(project):
    project.spec(how="[unknown]", rows="[1]")
    (project.folder / "test_own.py").write_text("def test_own():\n    pass\n")
    outcome = project.pytest("scale.yaml", "test_own.py", code=0)
    assert "tlmatrix: nothing was judged" in _said(outcome)


def test_with_fail_every_case_is_an_error_with_its_command(project):
    project.spec(how="[right, unknown]", rows="[1]")
    outcome = project.tlmatrix("run", "scale.yaml", "-n", "0", "--unsupported", "fail", code=1)
    assert f"unsupported: not judged: {_WHY}" in _said(outcome)
    assert "how=unknown-rows=1'" in _said(outcome)
    assert _statuses(project) == {Status.PASSED, Status.ERROR}


def test_the_configuration_can_set_fail(project):
    (project.folder / "pyproject.toml").write_text('[tool.tlmatrix]\nunsupported = "fail"\n')
    project.spec(how="[right, unknown]", rows="[1]")
    assert project.tlmatrix("run", "scale.yaml", "-n", "0").code == 1
    project.tlmatrix("run", "scale.yaml", "-n", "0", "--unsupported", "skip", code=0)


@pytest.mark.parametrize(
    ("how", "more", "code", "words"),
    [
        ("[unknown]", (), 1, "nothing was judged"),
        ("[right, unknown]", (), 0, "not judged: the interpreter does not model"),
        ("[right, unknown]", ("--unsupported", "fail"), 1, "unsupported: not judged"),
    ],
)
def test_fuzzing_reports_unsupported_cases(project, how, more, code, words):
    project.spec(how=how, rows="[1]", more=_FUZZ)
    outcome = project.tlmatrix("fuzz", "scale.yaml", "-n", "1", *more, code=code)
    assert words in _said(outcome)
    assert more or f"skipped: {_WHY}" in _said(outcome)
