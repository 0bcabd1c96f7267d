"""Text of findings, results and groups, for pytest's output, `tlmatrix run` and `repro`."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from tlmatrix.check.finding import MASKED
from tlmatrix.words import quoted, shortened

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.run.result import CaseResult
    from tlmatrix.triage.groups import Group

_LABEL = 10
_MOST = 1000
"""Most characters of one text of a finding; records have all of it."""
_UNDER = " " * (_LABEL + 2)


def count(items: int, noun: str) -> str:
    """`1 case`, `1,024 cases`."""
    return f"{items:,} {noun}" if items == 1 else f"{items:,} {noun}s"


def number(value: float | None) -> str:
    """A number with six digits; `?` for None."""
    if value is None:
        return "?"
    return f"{value:.6g}" if math.isfinite(value) else str(value)


def unsupported_text(cases: int, *, nothing: bool) -> str:
    """A note on cases that the interpreter does not support; `nothing` if these are all cases."""
    if nothing:
        return "nothing was judged: the interpreter does not model these kernels"
    return f"{count(cases, 'case')} not judged: the interpreter does not model their kernels"


def describe_finding(finding: Finding, *, width: int = 100, full: bool = False) -> list[str]:
    """The lines of a finding, beginning with its title; `full` does not shorten details."""
    lines = _wrap(finding.summary, width, "", "  ")
    for name, text in _facts(finding):
        lines += _wrap(text, width, f"  {name:<{_LABEL}}", _UNDER)
    if finding.detail:
        detail = finding.detail.splitlines()
        shown = detail if full or len(detail) <= 12 else [*detail[:4], "…", *detail[-7:]]
        for line in shown:
            indent = " " * (4 + len(line) - len(line.lstrip()))
            lines += _wrap(line.strip(), width, indent, indent + "  ")
    return lines


def describe_result(
    result: CaseResult, *, width: int = 100, full: bool = False, brief: bool = False
) -> list[str]:
    """The lines of a case that did not pass, or of its shrunk case; the repro command is last.

    `brief` shows only the titles of all findings but the first.
    """
    if result.smaller is not None:
        *lines, command = describe_result(result.smaller, width=width, full=full, brief=brief)
        return [*lines, f"  {'found as':<{_LABEL}}{result.case}", command]
    lines = []
    for number, finding in enumerate(result.findings):
        if brief and number:
            lines += _wrap(finding.summary, width, f"  {'also':<{_LABEL}}", _UNDER)
        else:
            lines += describe_finding(finding, width=width, full=full)
    if not lines:
        lines = [str(result.status)]
    if result.distribution and result.findings:
        lines.append(f"  {'inputs':<{_LABEL}}{distribution_words(result)}")
    if result.message:
        lines += _wrap(result.message, width, f"  {'because':<{_LABEL}}", _UNDER)
    # Not wrapped, so that it can be copied.
    lines.append(f"  {'repro':<{_LABEL}}{result.command}")
    return lines


def distribution_words(result: CaseResult) -> str:
    """The distribution of a case's inputs, and whether its seed picks it."""
    chosen = result.values.get("values") is not None
    return f"{result.distribution}{'' if chosen else ', which the seed of the case picks'}"


def describe_group(group: Group, *, width: int = 100, brief: bool = True) -> list[str]:
    """The lines of a group: its size and shared values, one case, and the other patterns.

    `brief` applies to the case, as in `describe_result`. The first line is the title. The line that
    begins with `repro` may be longer than `width`.
    """
    return [
        *_group_heading(group, width),
        *describe_result(group.example, width=width, brief=brief),
        *_second_pass(group, width),
        *_other_patterns(group, width),
    ]


def _group_heading(group: Group, width: int) -> list[str]:
    """The number of cases, and the values that they share."""
    example, evidence = group.example, group.evidence
    cases = count(len(group.results), "case")
    lines = [f"{example.spec}: {example.status} in {cases}"]
    if evidence.shared:
        passed = f"{count(evidence.passing, 'case')}" if evidence.passing else "no case"
        words = f"all have {', '.join(evidence.shared)}; {passed} with that passed"
        if evidence.passing_only:
            words += f", only with {evidence.passing_only}"
        lines += _wrap(words, width, "", "  ")
    elif evidence.passing_only:
        lines += _wrap(f"only cases with {evidence.passing_only} passed", width, "", "  ")
    elif group.none_passed and len(group.results) > 1:
        lines.append("no case of this spec passed")
    alike = len(group.results) - sum(pattern.cases for pattern in group.others)
    if alike > 1:
        lines.append(f"the smallest of {alike} with its pattern:")
    elif group.others:
        lines.append("the smallest:")
    return lines


def _second_pass(group: Group, width: int) -> list[str]:
    """A line for each finding of a second pass over another case than the example."""
    known = {finding.check for finding in group.example.findings}
    lines = []
    for result in group.results:
        for finding in result.findings:
            if MASKED in (finding.detail or "") and finding.check not in known:
                known.add(finding.check)
                words = f"{finding.summary} (in {result.case})"
                lines += _wrap(words, width, f"  {'also':<{_LABEL}}", _UNDER)
    return lines


def _other_patterns(group: Group, width: int) -> list[str]:
    """A line for each other pattern of the group, with a selection of one case."""
    if not group.others:
        return []
    lines = _wrap("other patterns, with a selection of one case each:", width, "", "  ")
    longest = max(len(pattern.name) for pattern in group.others)
    for pattern in group.others:
        start = f"{count(pattern.cases, 'case'):>9}  {pattern.name:<{longest}}  "
        select = f"-k {quoted(pattern.select)}"
        # Not wrapped, so that it can be copied.
        if len(start) + len(select) > width:
            lines += [start.rstrip(), f"{'':>11}{select}"]
        else:
            lines.append(start + select)
    return lines


def _facts(finding: Finding) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if finding.source:
        kernel = f", in kernel {finding.kernel}" if finding.kernel else ""
        block = f", block {tuple(finding.block)}" if finding.block else ""
        facts.append(("line", f"{finding.source}{kernel}{block}"))
    if finding.against:
        facts.append(("against", finding.against))
    if finding.call:
        facts.append(("call", finding.call))
    if finding.where:
        facts.append(("where", finding.where))
    if finding.index:
        place = ", ".join(f"{name.replace('_', ' ')} {at}" for name, at in finding.index.items())
        label = "worst at" if finding.source is None else "element"
        facts.append((label, f"{finding.tensor} at {place}" if finding.tensor else place))
    if finding.expected is not None or finding.got is not None:
        expected, got = _pair(finding.expected, finding.got)
        facts.append(("values", f"expected {expected}, got {got}"))
    size = _size(finding)
    if size:
        facts.append(("error", size))
    if finding.hint:
        facts.append(("hint", finding.hint))
    return facts


def _pair(one: float | None, other: float | None) -> tuple[str, str]:
    """Two numbers with enough digits to differ, six or more."""
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
        return number(one), number(other)
    # Seventeen digits distinguish any two numbers.
    pairs = ((f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(6, 18))
    return next((pair for pair in pairs if pair[0] != pair[1]), (number(one), number(other)))


def _size(finding: Finding) -> str:
    """The size of the error, without what the title has."""
    parts = []
    title = finding.title
    if finding.ratio is not None and " times " not in title:
        parts.append(f"{number(finding.ratio)} times the allowance")
    if finding.wrong is not None and finding.total and f"{finding.wrong} of " not in title:
        share = 100 * finding.wrong / finding.total
        parts.append(f"{finding.wrong} of {finding.total} elements wrong ({share:.3g} %)")
    if finding.pattern and parts and finding.pattern not in title:
        parts.append(finding.pattern)
    return "; ".join(parts)


def _wrap(text: str, width: int, first: str, later: str) -> list[str]:
    lines: list[str] = []
    for index, part in enumerate(shortened(text, _MOST).splitlines() or [""]):
        lines += textwrap.wrap(
            part,
            width,
            initial_indent=later if index else first,
            subsequent_indent=later,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
