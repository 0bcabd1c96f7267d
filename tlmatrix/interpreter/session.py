"""The `interpret()` contexts that are in force."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .reports import SanitizerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .coverage import Coverage, Feature
    from .recorder import Recorder
    from .reports import Report, Sequences

__all__ = ["Session", "current", "local"]

_log = logging.getLogger("tlmatrix.interpreter")


@dataclass
class Session:
    """One `interpret()` in force; what `with interpret(...) as run:` gives.

    Attributes:
        arch: the architecture kernels are traced for.
        sanitizers: the sanitizers that are on.
        on_report: whether reports are collected, or raised when their kernel ends.
        sequences: packed parameters by name.
        partial: parameters that a kernel may leave unwritten in part.
        tf32: whether matrix products cut float32 factors to TF32.
        reports: what the sanitizers have found so far, in order.
        recorder: what counts coverage; None where it is not asked for.
    """

    arch: str
    sanitizers: frozenset[str] = frozenset()
    on_report: Literal["collect", "raise"] = "collect"
    sequences: Mapping[str, Sequences] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()
    tf32: bool = False
    reports: list[Report] = field(default_factory=list)
    recorder: Recorder | None = None
    # Lines whose infinities were traced and found to be meant.
    settled: set[Any] = field(default_factory=set)

    @property
    def coverage(self) -> Coverage:
        """What was exercised so far of the kernels that ran.

        Raises:
            RuntimeError: the context was entered without `coverage=True`.
        """
        return self._recorder.coverage()

    def features(self) -> frozenset[Feature]:
        """`coverage.features()`, cheaply: for a search that asks after every call.

        Raises:
            RuntimeError: the context was entered without `coverage=True`.
        """
        return self._recorder.features()

    @property
    def _recorder(self) -> Recorder:
        if self.recorder is None:
            raise RuntimeError("nothing counts coverage: enter interpret(coverage=True)")
        return self.recorder

    def add(self, reports: Iterable[Report]) -> None:
        """Note the reports of a launch that ended.

        Raises:
            SanitizerError: if there are any and they are to be raised.
        """
        found = list(reports)
        self.reports.extend(found)
        if found and self.on_report == "raise":
            raise SanitizerError(found)
        for report in found:
            _log.warning("%s", report)


class _Local(threading.local):
    """The contexts this thread is in."""

    def __init__(self) -> None:
        self.stack: list[Session] = []


local = _Local()


def current() -> Session | None:
    """The innermost context of this thread."""
    return local.stack[-1] if local.stack else None
