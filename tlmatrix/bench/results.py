"""What became of a timed case, as plain data; and the file that keeps it.

The file is one JSON object, replaced as a whole after each case, so that whatever ends a run loses
the case in flight and no other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tlmatrix.bench.statistics import Interval, across, compared, interval
from tlmatrix.bench.timing import Samples
from tlmatrix.problem import Cost

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "FORMAT",
    "BenchFile",
    "BenchFileError",
    "CaseTimes",
    "Implementation",
    "PassTimes",
    "State",
    "read_bench",
    "speed_since",
]

FORMAT = 1
_DIGITS = 6


class BenchFileError(ValueError):
    """A file that holds no timings."""


class State(StrEnum):
    """What became of an implementation."""

    TIMED = "timed"
    CANNOT = "cannot"
    """It does not do such cases."""
    WRONG = "wrong"
    """Its results are not the problem's; it is not timed."""
    FAILED = "failed"
    """It raised."""


@dataclass(frozen=True)
class Implementation:
    """The entry, a baseline, or a configuration of the entry.

    `reason` says why it has no times; `config` are the arguments that a sweep chose, {} elsewhere.
    """

    name: str
    state: State = State.TIMED
    reason: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PassTimes:
    """Milliseconds of the `forward` or `backward` pass by implementation, of the same rounds."""

    name: str
    cost: Cost | None
    samples: Mapping[str, Samples]

    def time(self, who: str) -> Interval:
        """The median of an implementation, in milliseconds."""
        return interval(self.samples[who].device)

    def speed(self, who: str, against: str) -> Interval:
        """How fast one is beside another: 1 alike, 2 twice as fast."""
        return compared(self.samples[who].device, self.samples[against].device)


@dataclass(frozen=True)
class CaseTimes:
    """One case: who was timed, and how long it took."""

    spec: str
    path: str
    case: str
    values: Mapping[str, Any]
    dtype: str = ""
    implementations: tuple[Implementation, ...] = ()
    passes: tuple[PassTimes, ...] = ()
    clocks: Mapping[str, Any] = field(default_factory=dict)

    @property
    def configs(self) -> dict[str, Mapping[str, Any]]:
        """What a sweep chose, by the implementation's name."""
        return {each.name: each.config for each in self.implementations if each.config}

    def named(self, name: str) -> PassTimes | None:
        """The times of a pass."""
        return next((each for each in self.passes if each.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "spec": self.spec,
            "path": self.path,
            "case": self.case,
            "values": dict(self.values),
            "dtype": self.dtype,
            "implementations": [
                {"name": each.name, "state": str(each.state), "reason": each.reason}
                | ({"config": dict(each.config)} if each.config else {})
                for each in self.implementations
            ],
            "passes": {each.name: _pass_json(each) for each in self.passes},
            "clocks": dict(self.clocks),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseTimes:
        """What `to_json` gave."""
        return cls(
            spec=data["spec"],
            path=data["path"],
            case=data["case"],
            values=data["values"],
            dtype=data.get("dtype", ""),
            implementations=tuple(
                Implementation(
                    each["name"],
                    State(each["state"]),
                    each.get("reason", ""),
                    each.get("config", {}),
                )
                for each in data["implementations"]
            ),
            passes=tuple(_pass(name, each) for name, each in data["passes"].items()),
            clocks=data.get("clocks", {}),
        )


def _pass_json(times: PassTimes) -> dict[str, Any]:
    cost = times.cost
    return {
        "flops": cost.flops if cost else 0,
        "bytes": cost.bytes if cost else 0,
        "milliseconds": {
            name: {
                "median": round(found.median, _DIGITS),
                "low": round(found.low, _DIGITS),
                "high": round(found.high, _DIGITS),
                "host": round(samples.host, 4),
                "samples": [round(each, _DIGITS) for each in samples.device],
            }
            for name, samples in times.samples.items()
            for found in [interval(samples.device)]
        },
    }


def _pass(name: str, data: Mapping[str, Any]) -> PassTimes:
    known = data.get("flops") or data.get("bytes")
    samples = {
        who: Samples(list(each["samples"]), each.get("host", 0.0))
        for who, each in data["milliseconds"].items()
    }
    return PassTimes(name, Cost(data["flops"], data["bytes"]) if known else None, samples)


@dataclass
class BenchFile:
    """All that one run timed, with what it ran on.

    `about` has `started` (UTC), `command`, `hardware`, `versions`, `schedule`, `margin`, and
    `specs`: the digest of each spec's file.
    """

    about: dict[str, Any]
    cases: list[CaseTimes] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        cases = [case.to_json() for case in self.cases]
        return {"format": FORMAT, "kind": "tlmatrix bench", **self.about, "cases": cases}

    def write(self, path: Path) -> None:
        """Replace the file; a reader sees the old one or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.draft")
        draft.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        draft.replace(path)

    def find(self, case: CaseTimes) -> CaseTimes | None:
        """The same case of this file."""
        for each in self.cases:
            if (each.spec, each.case) == (case.spec, case.case):
                return each
        return None

    @property
    def gpu(self) -> str:
        """The GPU that it ran on."""
        return str(self.about.get("hardware", {}).get("gpu", ""))


def speed_since(now: PassTimes, before: PassTimes, who: str) -> Interval:
    """How fast an implementation is beside its earlier self, in another run."""
    return across(now.time(who), before.time(who))


def read_bench(path: Path) -> BenchFile:
    """Read what a run wrote.

    Raises:
        BenchFileError: it is not such a file, or one of a later version.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BenchFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != "tlmatrix bench":
        raise BenchFileError(f"{path}: not written by `tlmatrix bench`")
    if data["format"] != FORMAT:
        raise BenchFileError(f"{path}: has format {data['format']}, this tlmatrix reads {FORMAT}")
    about = {name: value for name, value in data.items() if name not in ("format", "kind", "cases")}
    return BenchFile(about, [CaseTimes.from_json(each) for each in data["cases"]])
