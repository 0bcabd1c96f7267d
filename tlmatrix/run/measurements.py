"""Measurements of a running case: time by phase, input size, coverage, error ratio."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.coverage import Coverage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.interpreter.coverage import Recorder
    from tlmatrix.problem import Problem


class Measurements:
    """What is measured while a case runs; `recorder` is None if coverage is not measured."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder
        self.relations: list[str] = []
        """Checks that ran the code again; metamorphic relations by name."""
        self.elements = 0
        """Elements of all inputs."""
        self.bytes = 0
        """Bytes of all inputs."""
        self.error_ratio: float | None = None
        self.distribution = ""
        """The distribution of the inputs (`values`)."""
        self.failed_phase = "judge"
        """The phase in which the last exception was raised."""
        self._phases: dict[str, float] = {}
        self._start = time.perf_counter()

    def measure_inputs(self, problem: Problem) -> None:
        """Record the size and distribution of the inputs."""
        self.elements = sum(tensor.numel() for tensor in problem.inputs.values())
        self.bytes = sum(tensor.nbytes for tensor in problem.inputs.values())
        self.distribution = problem.distribution

    def set_error_ratio(self, ratio: float) -> None:
        """Set the error ratio of the case."""
        self.error_ratio = ratio

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time inside to a phase, and record it if an exception is raised."""
        start = time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed_phase = name
            raise
        finally:
            seconds = time.perf_counter() - start
            self._phases[name] = self._phases.get(name, 0.0) + seconds

    def times(self) -> tuple[float, dict[str, float]]:
        """Seconds since the case began, in total and by phase; `judge` is the rest."""
        total = time.perf_counter() - self._start
        return total, {**self._phases, "judge": total - sum(self._phases.values())}


# Kernel coverage ---------------------------------------------------------------------------------
#
# A record `sites` lists the guards and loops of a kernel file under an id; the record `coverage` of
# a case refers to it and holds counts alone. Every process writes the `sites` that it refers to.


@contextmanager
def counting(recorder: Recorder | None) -> Iterator[None]:
    """Record the coverage of kernels interpreted inside in `recorder`; None records nothing."""
    if recorder is None:
        yield
        return
    from tlmatrix.interpreter import interpret

    with interpret(coverage=recorder):
        yield


def counted(recorder: Recorder | None) -> Coverage | None:
    """The recorded coverage, with file names relative to the working directory; None if empty."""
    found = recorder.coverage() if recorder is not None else None
    return found.renamed(_relative) if found else None


def _relative(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


class CoverageWriter:
    """Converts the coverage of cases to records."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def records(
        self, path: str, case: str, coverage: Coverage
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (kind, data) of the records of a case, in the order to write them."""
        files = {}
        for file, mine in coverage.to_json().items():
            guards, loops = mine.get("guards", {}), mine.get("loops", {})
            sites = {"file": file, "guards": list(guards), "loops": list(loops)}
            name = sha256(json.dumps(sites).encode()).hexdigest()[:12]
            if name not in self._written:
                self._written.add(name)
                yield "sites", {"id": name, **sites}
            files[name] = [mine["hits"], list(guards.values()), list(loops.values())]
        yield "coverage", {"path": path, "case": case, "files": files}


class CoverageReader:
    """Reads these records; of a case with several (in a resumed run) the last one counts."""

    def __init__(self) -> None:
        self._sites: dict[str, Mapping[str, Any]] = {}
        self._cases: dict[tuple[str, str], Mapping[str, Any]] = {}

    def sites(self, record: Mapping[str, Any]) -> None:
        """Add a record `sites`."""
        self._sites[record["id"]] = record

    def case(self, record: Mapping[str, Any]) -> None:
        """Add a record `coverage`."""
        self._cases[(record["path"], record["case"])] = record["files"]

    def merged(self) -> Coverage:
        """The coverage of all cases together."""
        return Coverage.merged(map(self._coverage, self._cases.values()))

    def _coverage(self, files: Mapping[str, Any]) -> Coverage:
        data = {}
        for name, (hits, guards, loops) in files.items():
            sites = self._sites.get(name)
            if sites is None:
                continue  # its line was cut off when the run ended
            data[sites["file"]] = {
                "hits": hits,
                "guards": dict(zip(sites["guards"], guards, strict=True)),
                "loops": dict(zip(sites["loops"], loops, strict=True)),
            }
        return Coverage.from_json(data)
