"""`tlmatrix show` and `diff` on results files of `run` and `fuzz`, and their reports for CI."""

from xml.etree import ElementTree as ET

from tlmatrix.exit_codes import ExitCode


def test_show_prints_what_the_run_printed(project):
    project.spec(how="[right, wrong]", rows="[5]")
    ran = project.tlmatrix("run", ".", "-n", "0", "--results", "a.jsonl")
    shown = project.tlmatrix("show", "a.jsonl", code=ran.code)
    report = ran.out[ran.out.index("spec  ") :]
    assert shown.out.endswith(report)
    assert shown.out.startswith("4 cases of 1 spec; quick tier, ")
    # Without a file: the last results of the project's folder.
    outcome = project.tlmatrix("show", code=ExitCode.USAGE)
    assert "no results in" in outcome.out


def test_diff_of_a_fixed_kernel(project):
    project.spec(how="[right, wrong]", rows="[5]")
    project.tlmatrix("run", ".", "-n", "0", "--results", "a.jsonl")
    project.tlmatrix("run", ".", "-n", "0", "-k", "how=right", "--results", "b.jsonl")
    outcome = project.tlmatrix("diff", "a.jsonl", "b.jsonl", code=ExitCode.OK)
    assert "2 cases in both runs, 0 only in the later, 2 only in the earlier" in outcome.out
    outcome = project.tlmatrix("diff", "b.jsonl", "a.jsonl", code=ExitCode.FINDINGS)
    assert "new faults: 1" in outcome.out
    outcome = project.tlmatrix("diff", "b.jsonl", "none.jsonl", code=ExitCode.USAGE)
    assert "no such file: none.jsonl" in outcome.out


def test_a_search_is_shown_compared_and_published(project):
    project.spec(how="[right, wrong]", rows="[5]", more="fuzz: {examples: {quick: 4}}")
    words = ("-n", "1", "--results")
    outcome = project.tlmatrix("fuzz", ".", *words, "a.jsonl", "--github", "--junitxml", "a.xml")
    assert outcome.code == ExitCode.FINDINGS
    assert "::error file=scale.yaml" in outcome.out
    assert ET.parse(project.folder / "a.xml").getroot().get("failures") != "0"
    shown = project.tlmatrix("show", "a.jsonl", code=ExitCode.FINDINGS)
    assert "1. scale: failed in " in shown.out
    outcome = project.tlmatrix("diff", "a.jsonl", "a.jsonl", code=ExitCode.OK)


def test_reports_for_ci(project, monkeypatch):
    project.spec(how="[right, wrong]", rows="[5]")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.folder / "summary.md"))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.folder))
    words = ("--results", "a.jsonl", "--github", "--junitxml", "out/junit.xml")
    outcome = project.tlmatrix("run", ".", "-n", "0", "--no-fuzz", *words, code=ExitCode.FINDINGS)
    assert "::error file=scale.yaml" in outcome.out
    assert "2 failures in 4 cases" in (project.folder / "summary.md").read_text()
    root = ET.parse(project.folder / "out/junit.xml").getroot()
    assert (root.get("tests"), root.get("failures")) == ("4", "2")
    again = project.tlmatrix("show", "a.jsonl", "-q", "--junitxml", "again.xml")
    assert again.code == ExitCode.FINDINGS
    assert (project.folder / "again.xml").read_text() == (
        project.folder / "out/junit.xml"
    ).read_text()
