"""The page of a fault: its text, pictures, source lines and cases."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.report.html.drawing import caption, svg
from tlmatrix.report.text import describe_finding, describe_group
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import canonical, label
from tlmatrix.words import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.check.finding import Finding
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.triage.groups import Group

_AROUND = 3
"""Lines shown before and after a line of a kernel."""
_CASES = 50
"""Cases that a page lists."""


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file: (number, text, whether it is marked); None between lines far apart."""

    path: str
    note: str
    lines: tuple[tuple[int, str, bool] | None, ...]


@dataclass(frozen=True)
class Drawing:
    """A picture and its caption."""

    svg: str
    caption: str


@dataclass(frozen=True)
class FaultPage:
    """What the template shows of one group of failing cases."""

    number: int
    spec: str
    path: str
    title: str
    check: str
    facts: tuple[tuple[str, str], ...]
    story: str
    drawings: tuple[tuple[str, tuple[Drawing, ...]], ...]
    """Of each finding of the example with pictures: its tensor, and its pictures."""
    commands: tuple[tuple[str, str], ...]
    excerpts: tuple[Excerpt, ...]
    cases: tuple[CaseResult, ...]
    total: int


def fault_page(
    number: int, group: Group, folder: Path, specs: dict[Path, Spec | None]
) -> FaultPage:
    """The page of a group of a run in `folder`; `specs` keeps specs that were loaded."""
    example = group.example
    shown = example.smaller or example
    first = shown.findings[0] if shown.findings else None
    title = first.title if first is not None else (example.message or str(example.status))
    return FaultPage(
        number=number,
        spec=example.spec,
        path=example.path,
        title=title,
        check=first.check if first is not None else str(example.status),
        facts=tuple(_facts(group, first)),
        story="\n".join(describe_group(group, width=110, brief=False)),
        drawings=tuple(
            (finding.tensor or "", drawings)
            for finding in shown.findings
            if (drawings := tuple(_drawings(finding)))
        ),
        commands=tuple(_commands(shown, first)),
        excerpts=tuple(_excerpts(group, shown, folder, specs)),
        cases=group.results[:_CASES],
        total=len(group.results),
    )


def _drawings(finding: Finding) -> Iterator[Drawing]:
    for picture in finding.pictures:
        with suppress(ArithmeticError, LookupError, TypeError, ValueError, zlib.error):
            yield Drawing(svg(picture), caption(picture))  # unless its record was damaged


def _facts(group: Group, first: Finding | None) -> Iterator[tuple[str, str]]:
    example = group.example
    yield "cases", f"{len(group.results):,} {example.status}"
    if group.evidence.shared:
        yield "all have", ", ".join(group.evidence.shared)
        yield "passed with that", f"{group.evidence.passing:,}"
    if group.evidence.passing_only:
        yield "passed only with", group.evidence.passing_only
    if first is None:
        return
    lines = describe_finding(first, width=10_000)[1:]
    for line in lines:
        name, text = line[2:12].strip(), line[12:].strip()
        if line.startswith("  ") and name and text and not line.startswith("    "):
            yield name, text


def _commands(shown: CaseResult, first: Finding | None) -> Iterator[tuple[str, str]]:
    yield "run the smallest case again", shown.command
    if first is not None and first.tensor and first.index:
        yield "show how the worst element was computed", f"tlmatrix explain {quoted(shown.node)}"


def _excerpts(
    group: Group, shown: CaseResult, folder: Path, specs: dict[Path, Spec | None]
) -> Iterator[Excerpt]:
    for finding in shown.findings:
        file, _, line = (finding.source or "").rpartition(":")
        if file and line.isdigit():
            excerpt = _excerpt(folder / file, file, {int(line)}, _AROUND, "the reported access")
            if excerpt is not None:
                yield excerpt
            break
    path = folder / shown.path
    marked = _lines_of_values(path, shown, group.evidence.shared, specs)
    if marked:
        note = "the values that all failing cases share" if group.evidence.shared else "its values"
        excerpt = _excerpt(path, shown.path, marked, 0, note)
        if excerpt is not None:
            yield excerpt


def _excerpt(path: Path, name: str, marked: set[int], around: int, note: str) -> Excerpt | None:
    try:
        source = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None
    wanted = sorted(
        {near for line in marked for near in range(line - around, line + around + 1)}
        & set(range(1, len(source) + 1))
    )
    lines: list[tuple[int, str, bool] | None] = []
    for at in wanted:
        if lines and lines[-1] is not None and lines[-1][0] != at - 1:
            lines.append(None)
        lines.append((at, source[at - 1], at in marked))
    return Excerpt(name, note, tuple(lines)) if lines else None


def _lines_of_values(
    path: Path, result: CaseResult, shared: Sequence[str], specs: dict[Path, Spec | None]
) -> set[int]:
    """The lines of a spec that list values of a case: of those in `shared`, if there are any."""
    spec = _loaded(path, specs)
    if spec is None:
        return set()
    values: Mapping[str, object] = {
        axis: value
        for axis, value in result.values.items()
        if not shared or f"{axis}={label(value)}" in shared
    } or dict(result.values)
    found = set()
    for axis in values:
        listed = list(map(canonical, spec.axes.get(axis, ())))
        text = canonical(result.values[axis])
        if not listed:
            continue
        keys = ("axes", axis, listed.index(text)) if text in listed else ("axes", axis)
        with suppress(LookupError):
            found.add(spec.location(*keys)[0])
    return found


def _loaded(path: Path, specs: dict[Path, Spec | None]) -> Spec | None:
    from tlmatrix.spec.loader import load_spec

    if path not in specs:
        try:
            specs[path] = load_spec(path)
        except (SpecError, OSError, ValueError):
            specs[path] = None
    return specs[path]
