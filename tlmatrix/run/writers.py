"""The block and line of a kernel that wrote the worst element of a finding.

The case runs once more, on the interpreter and recorded, so that a finding about values says where
in the program they come from. `tlmatrix explain` shows the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.check.finding import tensor_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.interpreter.explain.model import Writer
    from tlmatrix.problem import Problem, Tensors

_CHECKS = frozenset({"numeric", "gradients", "poison"})


def with_writer(
    findings: Sequence[Finding],
    prepare: Callable[[], tuple[Problem, Callable[[Problem], Tensors]]],
) -> list[Finding]:
    """Add to the first finding about values which block wrote the worst element, and where.

    `prepare` gives the problem of the case and the function that runs its entry. The findings are
    returned as they are if the interpreter cannot say, or if the entry misused memory.
    """
    if any(finding.check == "guards" for finding in findings):
        return list(findings)
    for number, finding in enumerate(findings):
        if finding.check in _CHECKS and finding.tensor and finding.index and not finding.call:
            note = _note(finding, prepare)
            changed = finding.with_notes(note) if note else finding
            return [*findings[:number], changed, *findings[number + 1 :]]
    return list(findings)


def _note(
    finding: Finding, prepare: Callable[[], tuple[Problem, Callable[[Problem], Tensors]]]
) -> str:
    from tlmatrix.interpreter import interpret

    assert finding.tensor is not None
    try:
        problem, run = prepare()
        info = problem.outputs.get(finding.tensor)
        index = tensor_index(info, finding) if info is not None else None
        if index is None:
            return ""
        with interpret(trace=True) as session:
            results = run(problem)
        kernel, writers = session.writers(results[finding.tensor], index)
    except Exception:  # noqa: BLE001 - a kernel that cannot be recorded has no note
        return ""
    return _words(kernel, writers)


def _words(kernel: str, writers: Sequence[Writer]) -> str:
    """`the worst element is written by packed_forward, block tile 0, head 1, at forward.py:103`."""
    last = writers[-1]
    blocks = len({(each.block.names, each.block.index) for each in writers})
    place = ""
    if last.location is not None:
        place = f", at {Path(last.location.file).name}:{last.location.line}"
    verb = "added to" if last.action == "atomic" else "written"
    more = f" and {blocks - 1} more" if blocks > 1 else ""
    return f"the worst element is {verb} by {kernel}, block ({last.block}){more}{place}"
