"""Prints kernel coverage: a summary line, a table, the gaps, and annotated source.

Gaps are lines that never ran, guards with only one outcome, and loops that never had 0, 1 or more
trips.
The output is plain text of at most the given width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tlmatrix.report.text import count
from tlmatrix.words import ellipsis

if TYPE_CHECKING:
    from tlmatrix.interpreter.coverage import Coverage, Gap, Guard, GuardSite

_COLUMNS = ("lines", "ran", "guards", "one way", "loops", "no 0", "no 1")


def coverage_lines(coverage: Coverage, command: str, detail: str, width: int) -> Iterator[str]:
    """The summary line and `command`, which shows more; with `detail` = "table" also the table."""
    if detail == "table":
        yield from table_lines(coverage, width)
    line = f"coverage: {summary(coverage)}"
    if not command:
        yield line
    elif len(line) + len(command) + 2 <= width:
        yield f"{line}; {command}"
    else:
        yield f"{line}:"
        yield f"  {command}"


def summary(coverage: Coverage) -> str:
    """`331 of 338 lines; 9 guards one way; loops never with 0 trips 3, with 1 trip 2`."""
    numbers = _numbers(coverage)
    parts = [f"{numbers['ran']} of {count(numbers['lines'], 'line')}"]
    if numbers["one way"]:
        parts.append(f"{count(numbers['one way'], 'guard')} one way")
    if numbers["no P"]:
        parts.append(f"{count(numbers['no P'], 'mask')} never partly")
    never = [
        f"{n}: {count(numbers[f'no {n}'], 'loop')}"
        for n in ("0", "1", "more")
        if numbers[f"no {n}"]
    ]
    if never:
        parts.append(f"never with trips {', '.join(never)}")
    return "; ".join(parts)


def table_lines(coverage: Coverage, width: int) -> Iterator[str]:
    """The table: a line per file and one for all, with counts of lines, guards, loops and gaps."""
    rows = [(file, _numbers(coverage.of(file))) for file in coverage.files]
    rows.append(("all", _numbers(coverage)))
    numbers = [[str(found[name]) for name in _COLUMNS] for _, found in rows]
    widths = [max(len(name), *(len(row[k]) for row in numbers)) for k, name in enumerate(_COLUMNS)]
    left = max(20, width - sum(widths) - 2 * len(widths))
    left = min(left, max(len(file) for file, _ in rows))
    right = "".join(f"  {name:>{w}}" for name, w in zip(_COLUMNS, widths, strict=True))
    yield f"{'kernel file':<{left}}{right}"
    for (file, _), row in zip(rows, numbers, strict=True):
        cells = "".join(f"  {text:>{w}}" for text, w in zip(row, widths, strict=True))
        yield f"{_keep_end(file, left):<{left}}{cells}"


def gap_lines(coverage: Coverage, width: int) -> Iterator[str]:
    """All gaps, file by file."""
    last = None
    for gap in coverage.gaps():
        if gap.file != last:
            if last is not None:
                yield ""
            yield gap.file
            last = gap.file
        place = str(gap.first) if gap.first == gap.last else f"{gap.first}-{gap.last}"
        yield ellipsis(f"  {place:<9} {_gap_words(gap)}", width)


def annotated_lines(
    coverage: Coverage, file: str, source: Sequence[str], width: int
) -> Iterator[str]:
    """The source of the kernels in a file, with hits, outcomes of guards and trips of loops.

    `!` marks a line with a gap. If a line has several guards, each follows on its own line.
    """
    mine = coverage.of(file)
    numbers = [line for _, line in mine.lines]
    gaps = {line for gap in mine.gaps() for line in range(gap.first, gap.last + 1)}
    guards: dict[int, list[tuple[GuardSite, Guard]]] = {}
    for site, guard in sorted(mine.guards.items()):
        guards.setdefault(site.line, []).append((site, guard))
    loops = {site.line: loop.range for site, loop in mine.loops.items()}
    size = max([4, *(len(str(n)) for n in mine.lines.values())])
    digits = len(str(max(numbers)))
    yield f"{'runs':>{size}}  guard  trips"
    for number in range(_first(source, min(numbers)), max(numbers) + 1):
        hits = mine.lines.get((file, number))
        here = guards.get(number, []) if hits else []
        alone = here[0][1].letters if len(here) == 1 else ""
        mark = "!" if number in gaps and hits is not None else " "
        text = source[number - 1].rstrip() if number <= len(source) else ""
        left = f"{'' if hits is None else hits:>{size}}  {alone:<5}  {loops.get(number, ''):<7}"
        yield ellipsis(f"{left} {mark}{number:>{digits}}  {text}".rstrip(), width)
        if len(here) > 1:
            for site, guard in here:
                mark = "!" if guard.never else " "
                name = site.name.replace(" 1", "", 1)
                shown = f"{'':>{size}}  {guard.letters:<5}  {'':<7} {mark}{'':>{digits}}    {name}"
                yield ellipsis(shown, width)


def _first(source: Sequence[str], line: int) -> int:
    """The first line of the function around a line."""
    for number in range(min(line, len(source)), 0, -1):
        if source[number - 1].lstrip().startswith("def "):
            return number
    return line


def _numbers(coverage: Coverage) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    found["lines"] = len(coverage.lines)
    found["ran"] = sum(1 for hits in coverage.lines.values() if hits)
    found["guards"] = len(coverage.guards)
    found["loops"] = len(coverage.loops)
    for gap in coverage.gaps():
        if not gap.what:
            continue
        if gap.what.startswith("loop "):
            found.update(f"no {trips}" for trips in gap.never)
        elif gap.never == ("partly",):
            found["no P"] += 1
        else:
            found["one way"] += 1
    return found


def _gap_words(gap: Gap) -> str:
    if not gap.what:
        return "never run"
    never = " or ".join(gap.never)
    if gap.what.startswith("loop "):
        return f"{gap.what}: never {never} {'trip' if gap.never == ('1',) else 'trips'}"
    if gap.what.startswith("edge"):
        buffers = gap.what.removeprefix("edge ")
        words = {"false": "never clipped", "true": "never wholly inside", "partly": "never partly"}
        return f"edge of {buffers}: {' and '.join(words[name] for name in gap.never)}"
    return f"{gap.what}: never {never}"


def _keep_end(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[1 - width :]
