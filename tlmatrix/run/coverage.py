"""Coverage of cases on record: names once, counts with every case.

A record `sites` gives the guards and loops of a kernel file in some set of variants under an id;
the record `coverage` of a case then holds numbers only. Every process that writes says its
`sites` itself, before it uses them.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.coverage import Coverage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.interpreter.recorder import Recorder

__all__ = ["CoverageReader", "CoverageWriter", "counted", "counting"]


@contextmanager
def counting(recorder: Recorder | None) -> Iterator[None]:
    """Count in `recorder` what interpreted kernels that run inside exercise; None for nothing."""
    if recorder is None:
        yield
        return
    from tlmatrix.interpreter import interpret

    with interpret(coverage=recorder):
        yield


def counted(recorder: Recorder | None) -> Coverage | None:
    """What was counted, files named from the working directory; None if no kernel ran."""
    found = recorder.coverage() if recorder is not None else None
    return found.renamed(_from_here) if found else None


def _from_here(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


class CoverageWriter:
    """Turns the coverage of cases into records."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def records(
        self, path: str, case: str, coverage: Coverage
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind, data) of the records of a case, in the order to write them."""
        files = {}
        for file, mine in coverage.to_json().items():
            guards, loops = mine.get("guards", {}), mine.get("loops", {})
            sites = {"file": file, "guards": list(guards), "loops": list(loops)}
            name = sha256(json.dumps(sites).encode()).hexdigest()[:12]
            if name not in self._told:
                self._told.add(name)
                yield "sites", {"id": name, **sites}
            files[name] = [mine["hits"], list(guards.values()), list(loops.values())]
        yield "coverage", {"path": path, "case": case, "files": files}


class CoverageReader:
    """Reads those records; what a case has counted twice (in a resumed run) counts once."""

    def __init__(self) -> None:
        self._sites: dict[str, Mapping[str, Any]] = {}
        self._cases: dict[tuple[str, str], Mapping[str, Any]] = {}

    def sites(self, record: Mapping[str, Any]) -> None:
        """Take a record `sites`."""
        self._sites[record["id"]] = record

    def case(self, record: Mapping[str, Any]) -> None:
        """Take a record `coverage`."""
        self._cases[(record["path"], record["case"])] = record["files"]

    def merged(self) -> Coverage:
        """What all cases together exercised."""
        return Coverage.merged(map(self._coverage, self._cases.values()))

    def _coverage(self, files: Mapping[str, Any]) -> Coverage:
        data = {}
        for name, (hits, guards, loops) in files.items():
            sites = self._sites.get(name)
            if sites is None:
                continue  # Its line was torn by whatever ended the run.
            data[sites["file"]] = {
                "hits": hits,
                "guards": dict(zip(sites["guards"], guards, strict=True)),
                "loops": dict(zip(sites["loops"], loops, strict=True)),
            }
        return Coverage.from_json(data)
