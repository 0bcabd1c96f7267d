"""Status and findings of a case, also from exceptions and known bugs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import (
    ArchitectureError,
    DeviceFault,
    DevicesError,
    DiskError,
    EntryError,
    classify_fault,
)
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.problem.model import ReferenceFailedError
from tlmatrix.run.result import SkipReason, Status
from tlmatrix.tracebacks import short_path, user_traceback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tlmatrix.backend import Backend
    from tlmatrix.run.measurements import Measurements
    from tlmatrix.spec.issues import SpecError
    from tlmatrix.spec.model.spec import KnownBug


@dataclass(frozen=True)
class Outcome:
    """Status and findings of a case; `kernels` are facts of compiled kernels."""

    status: Status
    findings: tuple[Finding, ...] = ()
    reason: SkipReason | None = None
    message: str = ""
    kernels: tuple[Mapping[str, Any], ...] = ()

    def with_findings(self, findings: Iterable[Finding]) -> Outcome:
        """The outcome with further findings: of a case that passed, it has failed."""
        found = (*self.findings, *findings)
        if found == self.findings or self.status is Status.SKIPPED:
            return self
        status = Status.FAILED if self.status is Status.PASSED else self.status
        return replace(self, status=status, findings=found)


def combined(
    outcomes: list[Outcome], facts: tuple[Mapping[str, Any], ...], missing: list[str]
) -> Outcome:
    """Combine the outcomes of all architectures: the worst status, with all findings."""
    findings = tuple(
        finding for each in outcomes if each.status is Status.FAILED for finding in each.findings
    )
    messages = "; ".join(dict.fromkeys(each.message for each in outcomes if each.message))
    if findings:
        return Outcome(Status.FAILED, findings, message=messages, kernels=facts)
    known = tuple(finding for each in outcomes for finding in each.findings)
    if known:
        return Outcome(Status.KNOWN_BUG, known, message=messages, kernels=facts)
    if missing:
        words = "; ".join(dict.fromkeys(missing))
        return Outcome(Status.SKIPPED, reason=SkipReason.TOOLKIT, message=words, kernels=facts)
    if all(each.status is Status.QUARANTINED for each in outcomes):
        return Outcome(Status.QUARANTINED, message=messages)
    return Outcome(Status.PASSED, kernels=facts)


def spec_error_outcome(
    error: SpecError, path: str, reference: tuple[int, int] | None = None
) -> Outcome:
    """The outcome of a spec that does not match its code; `path` is the file as the user wrote it.

    An error at `reference`, the line and column of the reference, is a reference error.
    """
    if all((issue.line, issue.column) == reference for issue in error.issues):
        words = "; ".join(issue.message for issue in error.issues)
        return Outcome(Status.ERROR, (_reference_error(words),))
    text = "\n".join(str(replace(issue, path=Path(path))) for issue in error.issues)
    title, _, detail = text.partition("\n")
    finding = Finding(check="spec", title=title, detail=detail or None, pattern=title)
    return Outcome(Status.ERROR, (finding,))


def outdated_sources(changes: str) -> Finding:
    """The finding of a case whose sources changed since its run began."""
    return Finding(
        check="sources",
        title=f"not judged: {changes} since the run began",
        hint="`tlmatrix run --resume` runs what changed again",
        pattern=changes,
    )


def error_outcome(
    error: BaseException, backend: Backend, measurements: Measurements, *, strict: bool
) -> Outcome:
    """The outcome of a case that raised `error`."""
    if isinstance(error, ArchitectureError):
        return Outcome(Status.SKIPPED, reason=SkipReason.ARCHITECTURE, message=str(error))
    if isinstance(error, DevicesError):
        return Outcome(Status.SKIPPED, reason=SkipReason.GPUS, message=str(error))
    if isinstance(error, FindingsError):
        return Outcome(Status.FAILED, error.findings)
    raised = error.error if isinstance(error, EntryError | ReferenceFailedError) else error
    if _is_unsupported(raised) and strict:
        title = f"not judged: {raised}"
        hint = "run it on a GPU, or skip such cases with `--unsupported skip`"
        return Outcome(Status.ERROR, (Finding("unsupported", title, hint=hint, pattern="refused"),))
    if _is_unsupported(raised):
        return Outcome(Status.SKIPPED, reason=SkipReason.UNSUPPORTED, message=str(raised))
    phase = "entry" if isinstance(error, EntryError) else measurements.failed_phase
    fault = fault_finding(raised, backend, phase, measurements.bytes)
    if fault is not None:
        return Outcome(Status.ERROR, (_on_ranks(fault, error),))
    if isinstance(error, ReferenceFailedError):
        words = f"{error.target} raised {_words(raised)}"
        finding = _reference_error(words, user_traceback(raised))
        return Outcome(Status.ERROR, (replace(finding, message=_whole(raised)),))
    if isinstance(error, EntryError):
        finding = Finding(
            check="entry",
            title=f"raises {_words(raised)}",
            hint=_remedy(raised),
            detail=error.trace or user_traceback(raised),
            pattern=type(raised).__name__,
            message=_whole(raised),
        )
        return Outcome(Status.ERROR, (_on_ranks(finding, error),))
    return Outcome(
        Status.ERROR,
        (
            Finding(
                check="problem",
                title=f"the case could not be judged: {_words(error)}",
                detail=user_traceback(error),
                hint=_remedy(error),
                pattern=type(error).__name__,
                message=_whole(error),
            ),
        ),
    )


def _reference_error(words: str, detail: str | None = None) -> Finding:
    return Finding(
        check="reference",
        title=f"reference error: {words}",
        hint="fix the reference; the code under test was not judged",
        detail=detail,
        pattern="reference error",
    )


def _on_ranks(finding: Finding, error: BaseException) -> Finding:
    """Add the ranks that raised to a finding."""
    if not isinstance(error, EntryError) or not error.where:
        return finding
    detail = "\n".join(filter(None, [finding.detail, *error.notes]))
    return replace(finding, title=f"{error.where} {finding.title}", detail=detail or None)


def _whole(error: BaseException) -> str | None:
    """The text of an exception, if its first line is not all of it."""
    text = str(error).strip()
    return text if "\n" in text else None


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    more = f" [... {len(lines) - 1} more lines]" if len(lines) > 1 else ""
    return f"{type(error).__name__}: {lines[0]}{more}" if lines else type(error).__name__


_NO_DEVICE = ("not compiled with CUDA", "No CUDA GPUs are available", "no NVIDIA driver")


def _remedy(raised: BaseException) -> str | None:
    """What to do if the code ends the process or the test, or needs a GPU and there is none."""
    if not isinstance(raised, Exception):
        return (
            f"{type(raised).__name__} is no error of a call, and a case cannot skip or end itself: "
            "return or raise an Exception; `constraints` leave out cases"
        )
    if not any(words in str(raised) for words in _NO_DEVICE):
        return None
    return (
        "it asks for a GPU, and the case runs without one: allocate tensors on the device of the "
        "inputs (device=x.device); `tlmatrix exec` runs whole programs that name cuda"
    )


def _is_unsupported(error: BaseException) -> bool:
    from tlmatrix.interpreter import Unsupported

    return isinstance(error, Unsupported)


def bug_words(bug: KnownBug) -> str:
    """The known bug and its expiry date, as text."""
    return f"known bug {bug.issue}, until {bug.expires}"


def with_bug(outcome: Outcome, bug: KnownBug, *, all_checks: bool) -> Outcome:
    """The outcome of a case with a known bug: a failure is expected, a pass is a finding.

    Without `all_checks` a pass is fine: the check that fails may not have run, or the case was
    generated and does not trigger the bug.
    """
    if outcome.status in (Status.FAILED, Status.ERROR):
        return Outcome(Status.KNOWN_BUG, outcome.findings, message=bug_words(bug))
    if outcome.status is Status.PASSED and all_checks:
        finding = Finding(
            check="known_bugs",
            title=f"passes, though known_bugs expects {bug.issue} to break it",
            hint="the bug is gone: remove its entry, or narrow its `when`",
            pattern=bug.issue,
        )
        return Outcome(Status.FAILED, (finding,), message=bug_words(bug))
    return outcome


# Device faults ---------------------------------------------------------------------------------


_DURING = {
    "entry": "in the code under test",
    "problem": "while building the case",
    "judge": "while judging the case (reference and checks)",
}
_NO_MEMORY = {
    "entry": "its own buffers do not fit beside the case's inputs of {inputs}",
    "problem": "the case is too large for this GPU, or other processes hold its memory: give each "
    "GPU fewer workers (-n), or leave the case to larger ones with `constraints`",
    "judge": "float64 copies do not fit beside the case's inputs of {inputs}: give each GPU fewer "
    "workers (-n), or make the case smaller",
}
"""What to do, by the phase that ran out of memory."""
_LAUNCHES = {
    "": "more shared memory, registers or threads than a block of this GPU may have; "
    "`tlmatrix run --backend compile` counts them",
    "empty": "TileLang launches no kernel without blocks, and TMA copies of no empty tensor: where "
    "an input is empty return before the call, or, if empty inputs are invalid, list sizes from 1",
    "descriptor": "TMA needs addresses and rows that are multiples of 16 bytes; a copy with "
    "`disable_tma=True` does without it",
}
"""What to do, by the kind of launch error."""


def fault_finding(
    error: BaseException, backend: Backend, phase: str, inputs: int
) -> Finding | None:
    """The finding for an exception; None if it is not about the GPU, the compiler, memory or disk.

    Args:
        error: the exception.
        backend: the backend of the case.
        phase: the phase that raised: `problem`, `entry` or `judge`.
        inputs: bytes of the case's inputs.
    """
    fault = classify_fault(error)
    if fault is None:
        return None
    match fault.kind:
        case "compile":
            return _compile(fault, backend)
        case "memory":
            return _memory(error, fault, phase, inputs)
        case "launch":
            return _launch(error, fault, backend)
        case "disk":
            return _disk(error, fault)


def _compile(fault: DeviceFault, backend: Backend) -> Finding:
    name = fault.kernel or "a kernel"
    return Finding(
        check="compile",
        title=f"{name} does not compile for {backend.arch}: {fault.message}",
        hint="`tlmatrix run --backend compile` shows it without a GPU, for any architecture",
        detail=fault.detail or None,
        pattern=f"{fault.kernel}: {fault.message}",
    )


def _memory(error: BaseException, fault: DeviceFault, phase: str, inputs: int) -> Finding:
    title = f"out of memory {_DURING[phase]}"
    if fault.requested:
        title += f": asked for {fault.requested}"
        if fault.free:
            title += f" with {fault.free} free of {fault.total}"
    else:
        title += f": {fault.message}"
    return Finding(
        check="memory",
        title=title,
        hint=_NO_MEMORY[phase].format(inputs=_amount(inputs)),
        detail=user_traceback(error),
        pattern=phase,
    )


def _disk(error: BaseException, fault: DeviceFault) -> Finding:
    path = Path(fault.detail)
    there = next((each for each in (path, *path.parents) if each.exists()), None)
    free = f" ({_amount(shutil.disk_usage(there).free)} free now)" if there is not None else ""
    return Finding(
        check="disk",
        title=f"{fault.message}: {path}{free}",
        hint="the machine is at fault, not the kernel: free space there, or set TMPDIR (for caches "
        "TLMATRIX_CACHE, TILELANG_CACHE_DIR) to a folder on another disk, and run the case again",
        detail=None if isinstance(error, DiskError) else user_traceback(error),
        pattern=fault.message,
    )


def _amount(size: int) -> str:
    """A number of bytes, formatted as PyTorch does."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


def _launch(error: BaseException, fault: DeviceFault, backend: Backend) -> Finding:
    name = fault.kernel or "a kernel"
    if not backend.broken():
        return Finding(
            check="launch",
            title=f"{name} cannot be launched: {fault.message}",
            where=fault.detail or None,
            hint=_LAUNCHES[fault.launch_error],
            detail=user_traceback(error),
            source=short_path(fault.source) if fault.source else None,
            kernel=fault.kernel if fault.source else None,
            pattern=fault.message,
        )
    return Finding(
        check="launch",
        title=f"{name} failed on the GPU: {fault.message}; the CUDA context is lost",
        where=fault.detail or None,
        hint="later results of this process would be unreliable, so it runs no more cases. The "
        "interpreter's sanitizers (`tlmatrix repro … --backend interpreter`) and "
        "`compute-sanitizer tlmatrix repro …` name the access; CUDA_LAUNCH_BLOCKING=1 names the "
        "launch",
        detail=user_traceback(error),
        pattern=fault.message,
    )
