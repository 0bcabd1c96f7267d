"""The table of results: on the terminal, and as a page of the documentation."""

import re
from collections import Counter, defaultdict

__all__ = ["STATES", "Result", "page", "refusals", "summary"]

from dataclasses import dataclass, field

STATES = ("right", "refused", "wrong", "crashed", "slow", "theirs", "skipped", "no kernel")
WORST_FIRST = ("crashed", "wrong", "refused", "slow", "right", "theirs", "no kernel", "skipped")
"""A file has the state of its worst test; the last three say nothing of the interpreter."""

UNRUN = ("skipped", "no kernel")
TRACED = ("right", "refused", "wrong", "crashed", "slow")


@dataclass(frozen=True)
class Result:
    """What became of one script or test file.

    Attributes:
        state: one of `STATES`, that of its worst test.
        detail: the refused construct, the error, or the reason.
        counts: its tests by state.
        tests: of each test that is not right its name, state and detail.
        key: of what produced the result: the interpreter, the program and its overrides.
    """

    path: str
    state: str
    detail: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    tests: list[list[str]] = field(default_factory=list)
    key: str = ""


def summary(results: list[Result]) -> str:
    """Counts by state, of scripts and of tests."""
    lines = []
    for label, chosen in _parts(results):
        files = Counter(r.state for r in chosen)
        tests = sum((Counter(r.counts) for r in chosen), Counter())
        lines.append(
            f"{label}: {_counted(files)}; {_share(files)} of those that run here are right"
        )
        if any(r.path.startswith("testing/") for r in chosen):
            lines.append(f"  tests: {_counted(tests)}")
    return "\n".join(lines)


def refusals(results: list[Result]) -> list[tuple[str, int, list[str]]]:
    """Refused constructs, with how many programs and which, most frequent first."""
    found = defaultdict(dict)
    for result in results:
        if result.state == "refused" and not result.tests:
            found[result.detail][result.path] = True
        for _, state, detail in result.tests:
            if state == "refused":
                found[detail][result.path] = True
    ranked = [(construct, len(paths), list(paths)) for construct, paths in found.items()]
    return sorted(ranked, key=lambda entry: (-entry[1], entry[0]))


def page(results: list[Result], versions: str, date: str) -> str:
    """The page `docs/results/upstream.md`."""
    lines = [
        "# TileLang's own programs",
        "",
        f"{versions}, {date}.",
        "",
        "```console",
        "$ make upstream TILELANG=DIR",
        "```",
        "",
        "Every script under `examples/` and every test file under `testing/python` of TileLang's",
        "public repository on the interpreter, each in a process of its own, with the small shapes",
        "of `tests/upstream/overrides.yaml`. *Right*: its own assertions hold. *Refused*:",
        "`Unsupported`, by name. *Slow*: over the time or memory limit. *Skipped*: needs another",
        "library, GPU vendor or host. *No kernel*: no kernel ran, or CUDA source is compared.",
        "*Theirs*: fails for a reason that is not the interpreter's, which the table names.",
        "A file has the state of its worst test.",
        "",
    ]
    for label, chosen in _parts(results):
        states = Counter(r.state for r in chosen)
        lines += [f"## {label}", "", f"{len(chosen)} files: {_counted(states)}.", ""]
        lines += [f"Of the files that run here {_share(states)} are right.", ""]
        tests = sum((Counter(r.counts) for r in chosen), Counter())
        if any(r.path.startswith("testing/") for r in chosen):
            lines += [f"{sum(tests.values())} tests: {_counted(tests)}.", ""]
        lines += ["| file | state | seconds | |", "| --- | --- | --- | --- |"]
        lines += [_row(result) for result in chosen if result.state not in UNRUN]
        lines.append("")
        reasons = Counter(
            r.detail if r.state == "skipped" else r.state for r in chosen if r.state in UNRUN
        )
        listed = (f"{_cell(reason)} ({count})" for reason, count in sorted(reasons.items()))
        lines += [f"Not in the table: {'; '.join(listed)}.", ""]
    ranked = refusals(results)
    if ranked:
        lines += ["## Refused constructs", "", "| construct | files |", "| --- | --- |"]
        lines += [f"| {_cell(construct)} | {count} |" for construct, count, _ in ranked]
        lines.append("")
    return "\n".join(lines)


def _parts(results: list[Result]) -> list[tuple[str, list[Result]]]:
    parts = (
        ("examples", [r for r in results if not r.path.startswith("testing/")]),
        ("testing/python", [r for r in results if r.path.startswith("testing/")]),
    )
    return [(label, chosen) for label, chosen in parts if chosen]


def _row(result: Result) -> str:
    name = result.path.removeprefix("examples/").removeprefix("testing/python/")
    detail = result.detail
    if len(result.counts) > 1 or sum(result.counts.values()) > 1:
        detail = f"{_counted(result.counts)}. {detail}".rstrip(". ")
    return f"| {name} | {result.state} | {result.seconds:.0f} | {_cell(detail)} |"


def _cell(text: str) -> str:
    """Text for one cell of a table: one line, with nothing that Markdown reads."""
    line = re.sub(r"\s+", " ", text)[:160]
    return re.sub(r"([|<>*_\[\]])", r"\\\1", line)


def _share(counts: dict[str, int]) -> str:
    """The share of right files, of those that the interpreter could get wrong."""
    traced = sum(counts[state] for state in TRACED)
    return f"{counts['right'] / traced:.1%}" if traced else "none"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts.get(state))
