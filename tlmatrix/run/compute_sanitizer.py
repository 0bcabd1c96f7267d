"""NVIDIA's compute-sanitizer on cases: runs a case again under each tool, and parses its reports.

The tools are memcheck (out of bounds, misaligned), racecheck (shared memory), initcheck
(uninitialized global memory) and synccheck (barriers). They instrument the compiled kernel on a
GPU, and cost ten to a hundred times its time and the start of a process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding
from tlmatrix.run.result import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.run.result import CaseResult

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
"""The tools of compute-sanitizer."""

_CHECK = "compute-sanitizer"
_PREFIX = "========="
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: ", re.MULTILINE)
"""The last line of every complete report."""
_NOTES = re.compile(
    r"COMPUTE-SANITIZER|(?:ERROR|RACECHECK|LEAK) SUMMARY|Target application returned|No attachable"
    r"|This can be because|Target process|Program hit "
)
"""Lines that are no errors of a kernel; an error of the CUDA API follows one of a kernel."""
_AT = re.compile(
    r"^at (?:void )?(?P<kernel>[\w:~]+)(?:<[^>]*>)?(?:\(.*\))?(?:\+0x[\da-f]+)?"
    r"(?: in (?P<source>\S+))?"
)
_BY = re.compile(r"^by thread \((?P<thread>[\d,]+)\) in block \((?P<block>[\d,]+)\)")
_RACE = re.compile(r"access at (?:.*? in )?(?P<kernel>[\w~]+)(?:\(|\+|<)")
_HAZARDS = re.compile(r" \[\d+ hazards?\]$")
_BACKTRACE = ("Saved host backtrace", "Host Frame")
_HINT = "`tlmatrix repro … --backend interpreter` runs the case under the interpreter's sanitizers"


class ComputeSanitizerError(RuntimeError):
    """compute-sanitizer is not installed, or there is no such tool."""


@dataclass(frozen=True)
class ComputeSanitizer:
    """Runs cases under tools of compute-sanitizer, at `executable`."""

    executable: str
    tools: tuple[str, ...]

    @classmethod
    def named(cls, tools: str) -> ComputeSanitizer:
        """The tools of a list such as `memcheck,racecheck`, or `all`.

        Raises:
            ComputeSanitizerError: there is no such tool, or compute-sanitizer is not installed.
        """
        given = TOOLS if tools == "all" else tuple(tools.split(","))
        for tool in given:
            if tool not in TOOLS:
                raise ComputeSanitizerError(
                    f"compute-sanitizer has no tool {tool!r}; it has {', '.join(TOOLS)}, and all"
                )
        found = shutil.which("compute-sanitizer")
        if found is None:
            raise ComputeSanitizerError(
                "compute-sanitizer is not on PATH; it is in bin/ of the CUDA toolkit"
            )
        return cls(found, tuple(dict.fromkeys(given)))

    def judge(self, result: CaseResult, timeout: float | None = None) -> CaseResult:
        """The result of a case with the findings of all tools, each at most `timeout` seconds.

        Only a case that was executed on a GPU runs again.
        """
        if result.backend != "cuda" or result.status not in (Status.PASSED, Status.FAILED):
            return result
        findings = [
            finding for tool in self.tools for finding in self._findings(tool, result, timeout)
        ]
        if not findings:
            return result
        return replace(result, status=Status.FAILED, findings=(*result.findings, *findings))

    def _findings(self, tool: str, result: CaseResult, timeout: float | None) -> list[Finding]:
        with tempfile.TemporaryDirectory(prefix="tlmatrix-") as folder:
            log = Path(folder) / "report"
            command = [
                self.executable, "--tool", tool, "--target-processes", "all",
                "--log-file", str(log), sys.executable, "-m", "tlmatrix",
                "repro", result.node, "--backend", "cuda", "--seed", str(result.seed),
            ]  # fmt: skip
            try:
                done = subprocess.run(  # noqa: S603 - the found executable
                    command, capture_output=True, text=True, timeout=timeout, check=False,
                    errors="replace",
                )  # fmt: skip
                ending = f"exit code {done.returncode}"
                output = (done.stdout + done.stderr)[-2000:]
            except subprocess.TimeoutExpired:
                ending, output = f"no end after {timeout:g} s", ""
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if not _SUMMARY.search(text):
            finding = Finding(
                check=_CHECK,
                title=f"{tool} ended without a complete report ({ending})",
                detail=(text[-2000:] + output).strip() or None,
                pattern="no report",
            )
            return [*parse_report(text, tool), finding]
        return parse_report(text, tool)


def parse_report(text: str, tool: str) -> list[Finding]:
    """The findings of a report in compute-sanitizer's text form, one for each kind and kernel.

    The first thread of each is named, with the number of all.
    """
    errors = [_finding(block, tool) for block in _blocks(text)]
    counts = Counter((finding.title, finding.source) for finding in errors)
    found: dict[tuple[str, str | None], Finding] = {}
    for finding in errors:
        found.setdefault((finding.title, finding.source), finding)
    return [
        finding if counts[key] == 1 else replace(finding, wrong=counts[key], total=None)
        for key, finding in found.items()
    ]


def _blocks(text: str) -> Iterator[list[str]]:
    """The errors of a report: a line that begins with the error, and the indented lines."""
    block: list[str] = []
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        rest = line.removeprefix(_PREFIX)
        if rest.startswith("     "):
            if block:  # else a line about a note
                block.append(rest.strip())
            continue
        if block:
            yield block
        title = rest.strip()
        block = [title] if title and not _NOTES.search(title) else []
    if block:
        yield block


def _finding(block: Sequence[str], tool: str) -> Finding:
    title, *lines = block
    title = _HAZARDS.sub("", title.removeprefix("Error: ").removeprefix("Warning: "))
    at = next((found for line in lines if (found := _AT.match(line))), None)
    by = next((found for line in lines if (found := _BY.match(line))), None)
    race = _RACE.search(title)
    kernel = at["kernel"] if at else race["kernel"] if race else None
    title = re.sub(r"\+0x[\da-f]+", "", title)
    where = f" in {kernel}" if kernel and kernel not in title else ""
    kept = [line for line in lines if not line.startswith(_BACKTRACE)]
    return Finding(
        check=_CHECK,
        title=f"{tool}: {title.rstrip('.')}{where}",
        hint=_HINT,
        source=at["source"] if at else None,
        kernel=kernel,
        block=_numbers(by["block"]) if by else None,
        where=f"thread ({by['thread']}) of block ({by['block']})" if by else None,
        detail="\n".join(kept) or None,
        pattern=re.sub(r"\d+", "0", title).partition(" between ")[0],
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
