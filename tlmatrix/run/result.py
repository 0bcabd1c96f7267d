"""What became of a case, as plain frozen data that every report reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.spec.values import Value

__all__ = ["FAILURES", "CaseResult", "SkipReason", "Status"]


class Status(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    """A check has a finding."""
    ERROR = "error"
    """The code under test, or the spec, made judging impossible: it raised, or does not fit."""
    SKIPPED = "skipped"
    KNOWN_BUG = "known-bug"
    """Failed, as `known_bugs` says."""
    QUARANTINED = "quarantined"
    """Not run, as `known_bugs` says."""
    CRASHED = "crashed"
    """The process ended while the case ran."""
    TIMEOUT = "timeout"


FAILURES = frozenset({Status.FAILED, Status.ERROR, Status.CRASHED, Status.TIMEOUT})
"""Endings that make a run fail."""


class SkipReason(StrEnum):
    """Why a case was not judged."""

    UNSUPPORTED = "unsupported"
    """The backend names something in the kernel that it does not model."""
    ARCHITECTURE = "architecture"
    """The kernels are written for other architectures than the backend's."""
    TOOLKIT = "toolkit"
    """The CUDA toolkit here cannot assemble the kernels."""
    GPUS = "gpus"
    """The case asks for more GPUs than there are."""
    DEVICE = "device"
    """The GPU was lost to a fault of an earlier case in the same process."""


@dataclass(frozen=True)
class CaseResult:
    """One case, judged.

    `path` is the spec's file as the user wrote it, so that `path::case` can be pasted into
    `tlmatrix repro`. `seconds` is the whole time; `phases` splits it into making the problem
    (`problem`), the code under test (`entry`) and the rest (`judge`, with the reference).
    `message` says why a case was skipped, or which known bug it met. `elements` counts those of
    all inputs: how large the case is. `closeness` is how close numbers that are right came to
    what is allowed (`ReferenceBounds.error_ratio`). `coverage` is what the case exercised,
    where that was counted; it goes on record apart (`tlmatrix.run.coverage`). `kernels` are what
    the backend `compile` learnt of each kernel on each architecture
    (`tlmatrix.run.compilation.kernel_facts`). `relations` are the checks made that run the code
    again, relations by name, where not all were asked for. `smaller` is the smallest case found
    that fails alike, where one was looked for. `distribution` is what the inputs hold, the value
    of the axis `values` or the one that the seed picked.
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
    asked: str = "auto"
    """The backend that the user named; `backend` is the one it was."""
    seed: int = 0
    elements: int = 0
    closeness: float | None = None
    coverage: Coverage | None = None
    kernels: tuple[Mapping[str, Any], ...] = ()
    relations: tuple[str, ...] = ()
    smaller: CaseResult | None = None
    distribution: str = ""

    @property
    def failed(self) -> bool:
        """Whether this result makes a run fail."""
        return self.status in FAILURES

    @property
    def node(self) -> str:
        """`specs/x.yaml::causal=true-…`: what `tlmatrix repro` and pytest take."""
        return f"{self.path}::{self.case}"

    @property
    def command(self) -> str:
        """The one command that runs this case again, alone, and shows everything."""
        words = ["tlmatrix", "repro", f"'{self.node}'"]
        if self.seed:
            words += ["--seed", str(self.seed)]
        if self.asked not in ("", "auto"):
            words += ["--backend", self.asked]
        return " ".join(words)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the results file; fields that say nothing are left out."""
        data: dict[str, Any] = {
            "spec": self.spec,
            "path": self.path,
            "case": self.case,
            "key": self.key,
            "status": str(self.status),
            "values": dict(self.values),
            "origin": self.origin,
            "reason": str(self.reason) if self.reason else None,
            "message": self.message,
            "findings": [finding.to_json() for finding in self.findings],
            "seconds": round(self.seconds, 6),
            "phases": {name: round(value, 6) for name, value in self.phases.items()},
            "backend": self.backend,
            "arch": self.arch,
            "asked": "" if self.asked == "auto" else self.asked,
            "seed": self.seed,
            "elements": self.elements,
            "closeness": None if self.closeness is None else round(self.closeness, 4),
            "kernels": [dict(kernel) for kernel in self.kernels],
            "relations": list(self.relations),
            "smaller": self.smaller.to_json() if self.smaller is not None else None,
            "distribution": self.distribution,
        }
        return {name: value for name, value in data.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        """The result that `to_json` wrote; fields of a later version are left aside."""
        fields_of_record = cls.__dataclass_fields__.keys() - {"coverage"}
        known = {name: data[name] for name in fields_of_record if name in data}
        known["status"] = Status(known["status"])
        if "reason" in known:
            known["reason"] = SkipReason(known["reason"])
        for name in ("kernels", "relations"):
            known[name] = tuple(known.get(name, ()))
        known["findings"] = tuple(map(Finding.from_json, known.get("findings", ())))
        if "smaller" in known:
            known["smaller"] = cls.from_json(known["smaller"])
        return cls(**known)
