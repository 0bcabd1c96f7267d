"""Timings of cases as plain data, and the file that stores them.

The file is one JSON object, replaced atomically after each case, so that an interrupted run loses
only its current case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from tlmatrix.bench.statistics import Interval, interval, speed_between_runs, speed_ratio
from tlmatrix.bench.timing import Samples
from tlmatrix.exit_codes import writing
from tlmatrix.json_fields import fields_of
from tlmatrix.problem import Cost

FORMAT = 1
_DIGITS = 6


class BenchFileError(ValueError):
    """The file has no timings, or another format."""


class State(StrEnum):
    """The state of an implementation."""

    TIMED = "timed"
    NOT_APPLICABLE = "not applicable"
    """It does not support the case."""
    WRONG = "wrong"
    """Its results are wrong; it is not timed."""
    FAILED = "failed"
    """It raised."""


@dataclass(frozen=True)
class Implementation:
    """The entry, a baseline, or a configuration of the entry.

    `reason` is why it was not timed; `config` is the configuration of a sweep, {} for others.
    """

    name: str
    state: State = State.TIMED
    reason: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PassTimes:
    """Samples of the `forward` or `backward` pass by implementation, taken in the same rounds."""

    name: str
    cost: Cost | None
    samples: Mapping[str, Samples]

    def time(self, name: str) -> Interval:
        """The median time of an implementation, in milliseconds."""
        return interval(self.samples[name].device)

    def speed(self, name: str, against: str) -> Interval:
        """The speed of an implementation relative to another; 2 is twice as fast."""
        return speed_ratio(self.samples[name].device, self.samples[against].device)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, with the median and interval of each implementation."""
        milliseconds = {}
        for name, samples in self.samples.items():
            found = {key: round(each, _DIGITS) for key, each in asdict(self.time(name)).items()}
            device = [round(each, _DIGITS) for each in samples.device]
            milliseconds[name] = {**found, "host": round(samples.host, 4), "samples": device}
        cost = self.cost or Cost(0, 0)
        return {"flops": cost.flops, "bytes": cost.bytes, "milliseconds": milliseconds}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> PassTimes:
        """Restore a pass from the output of `to_json`."""
        samples = {
            implementation: Samples(list(each["samples"]), each.get("host", 0.0))
            for implementation, each in data["milliseconds"].items()
        }
        known = data.get("flops") or data.get("bytes")
        return cls(name, Cost(data["flops"], data["bytes"]) if known else None, samples)


@dataclass(frozen=True)
class CaseTimes:
    """One case: its implementations and their times."""

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
        """The configurations of a sweep, by implementation."""
        return {each.name: each.config for each in self.implementations if each.config}

    def named(self, name: str) -> PassTimes | None:
        """The times of a pass, None if it was not timed."""
        return next((each for each in self.passes if each.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        data["implementations"] = [
            {name: value for name, value in asdict(each).items() if value != {}}
            for each in self.implementations
        ]
        data["passes"] = {each.name: each.to_json() for each in self.passes}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseTimes:
        """Restore a case from the output of `to_json`."""
        known = fields_of(cls, {**data, "passes": ()})
        known["implementations"] = tuple(
            Implementation(**fields_of(Implementation, {**each, "state": State(each["state"])}))
            for each in data["implementations"]
        )
        known["passes"] = tuple(PassTimes.from_json(*each) for each in data["passes"].items())
        return cls(**known)


@dataclass
class BenchFile:
    """The timings of one run, and the machine it ran on.

    `about` has `started` (UTC), `command`, `hardware`, `versions`, `schedule`, `margin`, and
    `specs`: the digest of each spec's file.
    """

    about: dict[str, Any]
    cases: list[CaseTimes] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        cases = [case.to_json() for case in self.cases]
        return {"format": FORMAT, "kind": "tlmatrix bench", **self.about, "cases": cases}

    def write(self, path: Path) -> None:
        """Replace the file atomically; a device or a pipe is written to.

        Raises:
            OutputError: the file cannot be written.
        """
        text = json.dumps(self.to_json(), indent=1) + "\n"
        with writing("--output", path):
            if path.exists() and not path.is_file():
                path.write_text(text, encoding="utf-8")
            else:
                draft = path.with_name(f"{path.name}.draft")
                draft.write_text(text, encoding="utf-8")
                draft.replace(path)

    def find(self, case: CaseTimes) -> CaseTimes | None:
        """The same case in this file, None if it has none."""
        for each in self.cases:
            if (each.spec, each.case) == (case.spec, case.case):
                return each
        return None

    @property
    def gpu(self) -> str:
        """The name of the GPU."""
        return str(self.about.get("hardware", {}).get("gpu", ""))


def speed_since(now: PassTimes, before: PassTimes, name: str) -> Interval:
    """The speed of an implementation relative to an earlier run."""
    return speed_between_runs(now.time(name), before.time(name))


def read_bench(path: Path) -> BenchFile:
    """Read the file of a run.

    Raises:
        BenchFileError: the file is not one of `tlmatrix bench`, or has another format.
        OSError: the file cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BenchFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != "tlmatrix bench":
        raise BenchFileError(f"{path}: not written by `tlmatrix bench`")
    if data.get("format") != FORMAT:
        raise BenchFileError(
            f"{path}: has format {data.get('format')!r}, and this tlmatrix reads format {FORMAT}; "
            "use the version that wrote it, or time its cases again"
        )
    about = {name: value for name, value in data.items() if name not in ("format", "kind", "cases")}
    try:
        file = BenchFile(about, [CaseTimes.from_json(each) for each in data["cases"]])
        file.to_json()  # computes the medians
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BenchFileError(f"{path}: a case cannot be read: {error!r}") from error
    return file
