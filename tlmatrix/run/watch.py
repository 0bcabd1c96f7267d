"""Measurements of a running case: time by phase, coverage, and the checks that ran."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.check.rerun_checks import Reruns
    from tlmatrix.interpreter.recorder import Recorder

__all__ = ["Watch"]


class Watch:
    """Measures the size, time and coverage of a case, and records the checks that ran.

    `reruns` are the requested checks that run the code again; `recorder` is None if coverage
    is not measured.
    """

    def __init__(self, recorder: Recorder | None, reruns: Reruns) -> None:
        self.recorder = recorder
        self.reruns = reruns
        self.made: list[str] = []
        """Checks that ran the code again; relations by name."""
        self._begin = time.perf_counter()
        self.elements = 0
        self.bytes = 0
        self.closeness: float | None = None
        self.distribution = ""
        """What the inputs hold (`values`), as soon as there are inputs."""
        self.failed = "judge"
        """The phase in which the last exception was raised."""
        self.phases: dict[str, float] = {}

    def total(self) -> float:
        """Seconds since the case began."""
        return time.perf_counter() - self._begin

    def set_closeness(self, closeness: float) -> None:
        """Set the error ratio of the case."""
        self.closeness = closeness

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge time inside to this phase, and record the phase of an exception."""
        begin = time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed = name
            raise
        finally:
            spent = time.perf_counter() - begin
            self.phases[name] = self.phases.get(name, 0.0) + spent
