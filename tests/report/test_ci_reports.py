"""JUnit XML, GitHub's annotations and job summary."""

import re
from xml.etree import ElementTree as ET

from report.synthetic import case, recorded
from tlmatrix.check.finding import Finding
from tlmatrix.report.ci import error_annotations, job_summary, junit_xml
from tlmatrix.run import Status


def test_junit_counts_and_names_every_case(tmp_path):
    records = recorded(
        tmp_path / "run.jsonl",
        [
            case(1),
            case(2, Status.FAILED),
            case(3, Status.SKIPPED, message="needs sm_90"),
            case(4, Status.CRASHED, findings=(Finding("crash", "ended"),)),
            case(5, path="specs/y.yaml"),
        ],
    )
    root = ET.fromstring(junit_xml(records))
    counts = [root.get(name) for name in ("tests", "failures", "errors", "skipped", "time")]
    assert counts == ["5", "1", "1", "1", "1.250"]
    x, y = root.findall("testsuite")
    assert (x.get("name"), x.get("tests"), y.get("tests")) == ("specs/x.yaml", "4", "1")
    failure = x.find("testcase[@name='dtype=float32-n=2']/failure")
    assert failure is not None
    assert failure.get("message", "").startswith("numeric: Y: largest error 504 times")
    assert "tlmatrix repro 'specs/x.yaml::dtype=float32-n=2'" in (failure.text or "")
    skipped = x.find("testcase[@name='dtype=float16-n=3']/skipped")
    assert skipped is not None
    assert skipped.get("message") == "skipped: needs sm_90"


def test_junit_is_well_formed_whatever_an_exception_says(tmp_path):
    # Control characters, a lone surrogate, the end of CDATA.
    found = Finding("raised", "bad \x00\x1b[31m \udc80 ]]> & <tag>", detail="\x07" * 30_000)
    results = [case(1, Status.ERROR, findings=(found,))]
    records = recorded(tmp_path / "run.jsonl", results)
    text = junit_xml(records)
    text.encode("utf-8")
    error = ET.fromstring(text).find(".//error")
    assert error is not None
    assert "]]> & <tag>" in error.get("message", "")
    assert len(text) < 30_000


def test_annotations_are_one_line_each_on_the_kernel_or_the_spec(tmp_path):
    race = Finding("sanitizers", "race: 100% of, all", source="kernels/k.py:57", kernel="k")
    results = [
        case(1),
        case(2, Status.FAILED),
        case(3, Status.FAILED, findings=(race,), path="specs/y.yaml"),
    ]
    records = recorded(tmp_path / "sub/run.jsonl", results)
    lines = sorted(error_annotations(records, tmp_path))
    assert len(lines) == 2
    assert lines[0].startswith(
        "::error file=sub/kernels/k.py,line=57,title=x%3A failed in 1 case::"
    )
    assert "100%25 of, all" in lines[0]
    assert lines[1].startswith("::error file=sub/specs/x.yaml,title=")
    assert "%0A" in lines[1]
    assert not any("\n" in line for line in lines)


def test_github_shows_ten_annotations_so_the_rest_are_counted(tmp_path):
    results = [case(n, Status.FAILED, path=f"specs/{n}.yaml") for n in range(14)]
    lines = list(error_annotations(recorded(tmp_path / "run.jsonl", results), tmp_path))
    assert sum(line.startswith("::error ") for line in lines) == 10
    assert "4 more faults" in lines[-1]


def test_job_summary_has_a_table_and_the_faults(tmp_path):
    found = Finding("raised", "raised ValueError", detail="```\nfence\n```")
    results = [case(1), case(2, Status.ERROR, findings=(found,))]
    text = job_summary(recorded(tmp_path / "run.jsonl", results))
    assert "### tlmatrix: 1 failure in 2 cases" in text
    assert "| x | 2 | 1 | **1** | 0 | 0.5 |" in text
    # The fence is longer than any in the text, so that the section ends where it should.
    opening = re.search(r"</summary>\n\n(`+)\n", text)
    assert opening is not None
    assert len(opening[1]) == 4
