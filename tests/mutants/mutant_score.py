"""The score: mutants found, by which check, in what time, and by plain tests for comparison.

Records are those of `mutant_hunt`, as plain data.
"""

from collections import Counter
from statistics import median
from typing import Any

from mutant_catalog import KINDS, Mutant

__all__ = ["describe", "faults", "page_with", "readme_with", "summary"]

Records = list[dict[str, Any]]
CHECKS = (
    "numeric", "gradients", "poison", "guards", "sanitizers", "isolation", "determinism", "repeat",
    "relations", "propagation", "entry", "invalid_inputs",
)  # fmt: skip
"""`entry`: the code raises; `invalid_inputs`: an invalid input does not raise as specified."""
_BEGIN, _END = "<!-- score of make mutants -->\n", "<!-- end of score -->\n"
_ECHOES = {"repeat", "relations"}
"""Checks that compare values of other calls: where values are wrong they fail for that reason."""


def summary(mutants: list[Mutant], records: Records) -> dict[str, Any]:
    """The figures, as `score.json` keeps them."""
    found = [record for record in records if record["found"]]
    seconds = [record["seconds"] for record in found] or [0.0]
    return {
        "mutants": len(mutants),
        "found": len(found),
        "plain_found": sum(bool(record["plain"]) for record in records),
        "silent": sum(mutant.silent for mutant in mutants),
        "median_seconds": round(median(seconds), 1),
        "most_seconds": round(max(seconds), 1),
        "kinds": {kind: _of_kind(kind, records) for kind in KINDS},
        "checks": _by_check(found),
    }


def _of_kind(kind: str, records: Records) -> dict[str, int]:
    own = [record for record in records if record["kind"] == kind]
    return {
        "mutants": len(own),
        "found": sum(record["found"] for record in own),
        "plain_found": sum(bool(record["plain"]) for record in own),
        "silent": sum(record["silent"] for record in own),
    }


def _by_check(found: Records) -> dict[str, dict[str, int]]:
    first = Counter(record["check"] for record in found)
    seen = Counter(check for record in found for check in record["seen_by"])
    alone = Counter(check for record in found for check in _alone(set(record["seen_by"])))
    names = [*CHECKS, *sorted(set(first) - set(CHECKS))]
    return {
        name: {"first": first[name], "seen": seen[name], "alone": alone[name]} for name in names
    }


def _alone(seen: set[str]) -> set[str]:
    """The only check that sees a bug, if there is one."""
    own = seen - _ECHOES if seen & {"numeric", "gradients"} else seen
    return own if len(own) == 1 else set()


def faults(mutants: list[Mutant], records: Records) -> list[str]:
    """What makes a run fail: survivors, wrong claims of silence, hunts that went wrong."""
    declared = {mutant.id: mutant for mutant in mutants}
    told = []
    for record in records:
        name = record["mutant"]
        if not record["found"]:
            told.append(f"{name} survives ({record['cases']} cases of {_words(record['specs'])})")
        if declared[name].silent and record["plain_tests"] and not record["silent"]:
            told.append(f"{name} is declared silent, and is not: bits differ at aligned shapes")
        if record["trouble"] and not record["found"]:
            told.append(f"{name}: {record['trouble'].strip()}")
    return told


def describe(mutants: list[Mutant], records: Records) -> list[str]:
    """The table and the score."""
    data = summary(mutants, records)
    lines = ["", "kind        mutants  found  plain tests  silent"]
    for kind, row in data["kinds"].items():
        if row["mutants"]:
            lines.append(
                f"{kind:<10} {row['mutants']:8} {row['found']:6} {row['plain_found']:12} "
                f"{row['silent']:7}"
            )
    lines += ["", "check        first to find  sees it  alone sees it"]
    for name, row in data["checks"].items():
        lines.append(f"{name:<12} {row['first']:13} {row['seen']:8} {row['alone']:14}")
    idle = [name for name, row in data["checks"].items() if not row["alone"]]
    if idle:
        lines.append(f"finds nothing that others miss: {_words(idle)}")
    lines += ["", *faults(mutants, records)]
    lines.append(
        f"{data['found']} of {data['mutants']} found, in {data['median_seconds']} s (median), at "
        f"most {data['most_seconds']} s; plain tests find {data['plain_found']}"
    )
    return lines


def readme_with(data: dict[str, Any], readme: str) -> str:
    """The README with the totals between its two marks."""
    rows = [
        "| inserted bugs | found by tlmatrix | found by plain tests |",
        "| --- | --- | --- |",
        f"| {data['mutants']} | **{data['found']}** | {data['plain_found']} |",
    ]
    return _replaced(readme, rows)


def page_with(data: dict[str, Any], page: str) -> str:
    """`docs/results/mutants.md` with a row for each kind between its two marks."""
    rows = [
        "| kind | mutants | found | found by plain tests |",
        "| --- | --- | --- | --- |",
        *(
            f"| {kind} | {row['mutants']} | {row['found']} | {row['plain_found']} |"
            for kind, row in data["kinds"].items()
        ),
        f"| **all** | **{data['mutants']}** | **{data['found']}** | **{data['plain_found']}** |",
        "",
        _pace(data),
    ]
    return _replaced(page, rows)


def _pace(data: dict[str, Any]) -> str:
    return (
        f"Time to the first finding: {data['median_seconds']} s (median), "
        f"{data['most_seconds']} s (maximum). {data['silent']} mutants change no bit at aligned "
        "shapes."
    )


def _replaced(text: str, rows: list[str]) -> str:
    before, _, rest = text.partition(_BEGIN)
    _, mark, after = rest.partition(_END)
    if not mark:
        raise ValueError(f"the document has no place for the score: {_BEGIN}{_END}")
    return before + _BEGIN + "\n".join(rows) + "\n" + _END + after


def _words(names: list[str]) -> str:
    return ", ".join(names)
