"""The result of a case, as frozen data that reports read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tlmatrix.check.finding import Finding
from tlmatrix.json_fields import fields_of
from tlmatrix.spec.values import canonical
from tlmatrix.words import bounded, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.matrix import Case
    from tlmatrix.spec.values import Value


class Status(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    """A check has a finding."""
    ERROR = "error"
    """The case could not be judged: the code under test raised, or does not match the spec."""
    SKIPPED = "skipped"
    KNOWN_BUG = "known-bug"
    """Failed with a bug that `known_bugs` lists."""
    QUARANTINED = "quarantined"
    """Not run, because of a bug that `known_bugs` lists."""
    CRASHED = "crashed"
    """The process ended while the case ran."""
    TIMEOUT = "timeout"


FAILURES = frozenset({Status.FAILED, Status.ERROR, Status.CRASHED, Status.TIMEOUT})
"""Statuses that make a run fail."""


class SkipReason(StrEnum):
    """Why a case was not judged."""

    UNSUPPORTED = "unsupported"
    """The interpreter does not model an operation of the kernel."""
    ARCHITECTURE = "architecture"
    """The kernels do not support the architecture of the backend."""
    TOOLKIT = "toolkit"
    """The installed CUDA toolkit cannot assemble the kernels."""
    GPUS = "gpus"
    """The case needs more GPUs than this machine has."""
    PYTEST = "pytest"
    """pytest skipped the case, because of a marker, a fixture or a plugin."""
    DEVICE = "device"
    """An earlier case of the process left the GPU unusable."""


_MOST_MESSAGE = 4_000
"""The most characters of a message, which is a line."""


@dataclass(frozen=True)
class CaseResult:
    """The result of a case.

    Attributes:
        spec: name of the spec.
        path: the spec's file as the user wrote it; `tlmatrix repro path::case` runs the case.
        case: id of the case.
        key: exact values of the case, from which its seed is derived.
        origin: where the case comes from: `tier`, `regression`, `reject`, `fuzz`, …
        message: why the case was skipped, or its known bug.
        seconds: total time; `phases` splits it into building the problem (`problem`), the code
            under test (`entry`), and the rest with the reference (`judge`).
        requested: the backend as the user named it; `backend` is the one that ran the case.
        seed: seed of the run.
        perturb: the seed of `--perturb`; None if kernels had no delays.
        elements: elements of all inputs.
        error_ratio: the largest error divided by its error bound, if the numbers were judged.
        coverage: kernel coverage, if measured; a record of its own (`tlmatrix.run.measurements`).
        kernels: facts of each compiled kernel, on the backend `compile`
            (`tlmatrix.run.compilation.kernel_facts`).
        relations: the checks that ran the code again, unless all did; relations by name.
        smaller: the smallest case found that fails with the same cause.
        distribution: the distribution of the inputs (`values`).
        sources: the digest of the sources that ran (`tlmatrix.run.sources`); empty if no process
            recorded it.
    """

    spec: str
    path: str
    case: str
    status: Status
    key: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    origin: str = "tier"
    reason: SkipReason | None = None
    message: str = ""
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    backend: str = ""
    arch: str = ""
    requested: str = "auto"
    seed: int = 0
    perturb: int | None = None
    elements: int = 0
    error_ratio: float | None = None
    coverage: Coverage | None = None
    kernels: tuple[Mapping[str, Any], ...] = ()
    relations: tuple[str, ...] = ()
    smaller: CaseResult | None = None
    distribution: str = ""
    sources: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded(self.message, _MOST_MESSAGE))

    @classmethod
    def of(cls, case: Case, path: str, status: Status, **facts: Any) -> CaseResult:  # noqa: ANN401 - fields
        """The result of a case of the spec at `path`; `facts` are other fields."""
        return cls(
            case.spec,
            path,
            case.id,
            status,
            key=case.key,
            values=dict(case.values),  # results are sent to other processes
            origin=case.origin,
            **facts,
        )

    @property
    def failed(self) -> bool:
        """Whether this result makes a run fail."""
        return self.status in FAILURES

    @cached_property
    def canonical_values(self) -> Mapping[str, str]:
        """The canonical text of the value of each axis, which reports compare."""
        return {axis: canonical(value) for axis, value in self.values.items()}

    @property
    def shown(self) -> CaseResult:
        """The result that reports show: of the smallest case with the same cause."""
        return self.smaller or self

    @property
    def headline(self) -> str:
        """What is wrong, in one line: the first finding that reports show, else the message."""
        findings = self.shown.findings
        return findings[0].summary if findings else self.message

    @property
    def ratio(self) -> float | None:
        """The error ratio that reports show: that of the first finding with one, if it failed."""
        ratios = (finding.ratio for finding in self.shown.findings if finding.ratio is not None)
        return next(ratios, self.error_ratio)

    @property
    def node(self) -> str:
        """The case as an argument of `tlmatrix repro` and pytest: `specs/x.yaml::causal=true-…`."""
        return f"{self.path}::{self.case}"

    @property
    def command(self) -> str:
        """The command that runs this case again, alone, with full output."""
        words = ["tlmatrix", "repro", quoted(self.node)]
        if self.seed:
            words += ["--seed", str(self.seed)]
        if self.requested not in ("", "auto"):
            words += ["--backend", self.requested]
        if self.perturb is not None:
            words += ["--perturb", str(self.perturb)]
        return " ".join(words)

    @classmethod
    def _recorded(cls) -> list[str]:
        """The fields of the record of a case; its coverage is a record of its own."""
        return [name for name in cls.__dataclass_fields__ if name != "coverage"]

    def to_json(self) -> dict[str, Any]:
        """Plain data for the results file, without empty fields."""
        data = {name: getattr(self, name) for name in self._recorded()}
        data |= {
            "status": str(self.status),
            "values": dict(self.values),
            "reason": str(self.reason) if self.reason else None,
            "findings": [finding.to_json() for finding in self.findings],
            "seconds": round(self.seconds, 6),
            "phases": {name: round(value, 6) for name, value in self.phases.items()},
            "requested": "" if self.requested == "auto" else self.requested,
            "error_ratio": None if self.error_ratio is None else round(self.error_ratio, 4),
            "kernels": [dict(kernel) for kernel in self.kernels],
            "relations": list(self.relations),
            "smaller": self.smaller.to_json() if self.smaller is not None else None,
        }
        kept = {name: value for name, value in data.items() if value}
        return kept if self.error_ratio is None else kept | {"error_ratio": data["error_ratio"]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        """Read the data of `to_json`; unknown fields are ignored.

        Raises:
            KeyError, TypeError, ValueError: the data are not those of a result.
        """
        known = fields_of(cls, data)
        known.pop("coverage", None)
        known["status"] = Status(known["status"])
        if "reason" in known:
            known["reason"] = SkipReason(known["reason"])
        for name in ("kernels", "relations"):
            known[name] = tuple(known.get(name, ()))
        known["findings"] = tuple(map(Finding.from_json, known.get("findings", ())))
        if "smaller" in known:
            known["smaller"] = cls.from_json(known["smaller"])
        return cls(**known)


def crash_finding(how: str = "", *, ended: str = "process", detail: str | None = None) -> Finding:
    """The finding of a case that was running when its process, or the whole run, ended.

    Args:
        how: how it ended, such as `signal SIGSEGV`; "" if unknown. Crashes of the same `how` may
            have one cause.
        ended: what ended, `process` or `run`.
        detail: more lines.
    """
    hint = "a segmentation fault, os._exit, or out of memory; run the command below to see it alone"
    if ended == "run":
        hint = "the process may have been killed; run the case alone to see"
    return Finding(
        check="crash",
        title=f"the {ended} ended while this case was running{f' ({how})' if how else ''}",
        hint=hint,
        detail=detail,
        pattern=how or None,
    )
