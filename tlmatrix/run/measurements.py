"""Measurements of a running case: time by phase, input size, coverage, error ratio."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.interpreter.recorder import Recorder
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
        self.distribution = str(problem.names.get("values") or "")

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
