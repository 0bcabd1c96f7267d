"""What CI systems read of a run: JUnit XML, GitHub's annotations, and its job summary.

JUnit XML follows the schema that Jenkins, GitLab and pytest share: `testsuites` of one `testsuite`
for each spec, with a `testcase` for each case. GitHub's annotations are workflow commands
(https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tlmatrix.report.tally import Tally
from tlmatrix.report.text import count, describe_group, describe_result
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.triage.groups import group_failures

if TYPE_CHECKING:
    from tlmatrix.run.records import RunRecords
    from tlmatrix.triage.groups import Group

_ANNOTATIONS = 10
"""GitHub shows ten errors of a step."""
_FAULTS = 50
"""Faults in a job summary, which GitHub limits to one MiB."""
_OUTPUT = 20_000
"""Characters of the text of a failure."""
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 forbids."""


def junit_xml(records: RunRecords) -> str:
    """The results as JUnit XML; a failing case has its findings and the command that repeats it."""
    root = ET.Element("testsuites", name="tlmatrix")
    by_path: dict[str, list[CaseResult]] = {}
    for result in records.results:
        by_path.setdefault(result.path, []).append(result)
    for path, results in by_path.items():
        suite = ET.SubElement(
            root, "testsuite", name=_xml(path), timestamp=_xml(records.header.started)
        )
        _counts(suite, results)
        for result in results:
            suite.append(_case(result))
    _counts(root, records.results)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(element: ET.Element, results: Sequence[CaseResult]) -> None:
    tally = Tally(results)
    failures = tally.counts[Status.FAILED]
    element.set("tests", str(tally.cases))
    element.set("failures", str(failures))
    element.set("errors", str(tally.failed - failures))
    element.set("skipped", str(tally.other))
    element.set("time", f"{tally.seconds:.3f}")


def _case(result: CaseResult) -> ET.Element:
    case = ET.Element(
        "testcase",
        classname=_xml(result.path),
        name=_xml(result.case),
        time=f"{result.seconds:.3f}",
    )
    if result.failed:
        tag = "failure" if result.status is Status.FAILED else "error"
        found = ET.SubElement(case, tag, type=str(result.status), message=_xml(_title(result)))
        found.text = _xml("\n".join(describe_result(result, full=True))[:_OUTPUT])
    elif result.status is not Status.PASSED:
        words = f"{result.status}: {result.message}" if result.message else str(result.status)
        ET.SubElement(case, "skipped", message=_xml(words))
    return case


def _xml(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)


def _title(result: CaseResult) -> str:
    return result.findings[0].summary if result.findings else str(result.status)


def error_annotations(records: RunRecords, root: Path) -> Iterator[str]:
    """The lines that annotate files on GitHub: an error for each fault, the largest first.

    An error is on the line of the kernel that a sanitizer reported, else on the spec. Paths are
    relative to `root`, the repository.
    """
    groups = group_failures(records.results)
    for group in groups[:_ANNOTATIONS]:
        file, line = _place(group.example)
        path = os.path.relpath(Path(records.header.folder) / file, root)
        where = f"file={_property(path)}" + (f",line={line}" if line else "")
        title, *lines = describe_group(group, width=100)
        text = _data("\n".join(lines))
        yield f"::error {where},title={_property(title)}::{text}"
    if len(groups) > _ANNOTATIONS:
        more = count(len(groups) - _ANNOTATIONS, "more fault")
        yield f"::notice title=tlmatrix::{more} in the job summary"


def _place(result: CaseResult) -> tuple[str, int]:
    """The file of a finding and its line; the spec and 0 if no check knows the line."""
    for finding in result.shown.findings:
        if finding.line is not None:
            return finding.line
    return result.path, 0


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def job_summary(records: RunRecords) -> str:
    """The run as Markdown: a table of specs, then each fault in a section that folds."""
    whole = Tally(records.results)
    words = ", ".join(f"{whole.counts[each]:,} {each}" for each in Status if whole.counts[each])
    failed = count(whole.failed, "failure") if whole.failed else "no failure"
    lines = [f"### tlmatrix: {failed} in {count(whole.cases, 'case')}", ""]
    lines += [f"{words or 'nothing ran'}. `{records.header.command}`", ""]
    lines += ["| spec | cases | passed | failed | other | seconds |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    names = {result.path: result.spec.replace("|", "\\|") for result in records.results}
    for path in sorted(names):
        mine = Tally(result for result in records.results if result.path == path)
        bad = f"**{mine.failed}**" if mine.failed else "0"
        numbers = f"{mine.cases} | {mine.passed} | {bad} | {mine.other} | {mine.seconds:.1f}"
        lines.append(f"| {names[path]} | {numbers} |")
    groups = group_failures(records.results)
    for group in groups[:_FAULTS]:
        lines += _folded(group)
    if len(groups) > _FAULTS:
        lines += ["", f"{len(groups) - _FAULTS} more faults are in the results file."]
    return "\n".join(lines) + "\n"


def _folded(group: Group) -> list[str]:
    title, *lines = describe_group(group, width=100)
    text = "\n".join(lines)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text) or ["``"]))
    head = title.replace("&", "&amp;").replace("<", "&lt;")
    return ["", f"<details><summary>{head}</summary>", "", fence, text, fence, "", "</details>"]
