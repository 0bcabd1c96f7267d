"""The `interpret()` contexts that are in force, and what generated programs run in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.explain import NotMadeError, Trace, explain_element, writers_of
from tlmatrix.interpreter.ops.gemm import FLOAT8_BITS, TF32
from tlmatrix.interpreter.reports import Checks, SanitizerError

if TYPE_CHECKING:
    from tlmatrix.interpreter.coverage import Coverage, Feature, Recorder
    from tlmatrix.interpreter.explain import Explanation, Launch, LaunchLog
    from tlmatrix.interpreter.explain.model import Writer
    from tlmatrix.interpreter.reports import Report

    from .kernel import InterpretedKernel, TracedKernel

    OnLaunch = Callable[
        [TracedKernel | InterpretedKernel, Mapping[str, Any], Mapping[str, int]], None
    ]
    """Called with a kernel, its arguments and its symbolic dims, both by name."""


# The `interpret()` contexts that are in force -----------------------------------------------------

_log = logging.getLogger("tlmatrix.interpreter")


@dataclass(kw_only=True)
class Session(Checks):
    """One `interpret()` in force; what `with interpret(...) as run:` gives.

    Attributes:
        arch: the architecture kernels are traced for.
        on_report: whether reports are collected and logged, collected alone, or raised when
            their kernel ends.
        tf32: whether matrix products cut float32 factors to TF32.
        lowered: whether kernels run as TileLang lowers them, thread by thread.
        reports: what the sanitizers have found so far, in order.
        recorder: what counts coverage; None where it is not asked for.
        trace: what to follow in every kernel that writes it; True keeps launches for `explain`.
        traces: what was followed, in order.
        untraced: why kernels that should have been followed were not, by name.
        log: the launches, if they are kept.
        launched: where kernels that are only traced are noted; None where kernels run.
        on_launch: called with each launch of a kernel, traced or run.
        settled: outputs whose infinities were traced and found to be meant.
        observers: other observers (`watch.registry`) of programs, by name: a function from the plan
            of a program to the object that the program calls.
    """

    arch: str
    on_report: Literal["collect", "keep", "raise"] = "collect"
    tf32: bool = False
    lowered: bool = False
    reports: list[Report] = field(default_factory=list)
    recorder: Recorder | None = None
    trace: Trace | bool = False
    traces: list[Explanation] = field(default_factory=list)
    untraced: dict[str, str] = field(default_factory=dict)
    log: LaunchLog | None = None
    launched: list[TracedKernel] | None = None
    on_launch: OnLaunch | None = None
    settled: set[Any] = field(default_factory=set)
    observers: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    @property
    def observing(self) -> Mapping[str, Callable[[Any], Any]]:
        """The observers, with that of coverage."""
        if self.recorder is None:
            return self.observers
        return {"covered": self.recorder.of, **self.observers}

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

    def trace_launch(self, launch: Launch) -> None:
        """Follow the element that the context asks for, if a launch that ended wrote it."""
        asked = self.trace
        if not isinstance(asked, Trace) or asked.buffer not in launch.written:
            return
        if asked.kernel not in (None, launch.kernel.name):
            return
        assert self.log is not None
        try:
            self.traces.append(explain_element(self.log, launch, asked.buffer, asked.index))
        except NotMadeError:
            return
        except Unsupported as error:
            self.untraced[launch.kernel.name] = str(error)
            _log.warning("%s", error)

    def explain(self, tensor: torch.Tensor, index: Sequence[int]) -> Explanation:
        """How an element of a tensor came about that a kernel of this context has written.

        Args:
            tensor: what a kernel returned or was given to write, or a view of it.
            index: the element, one number for each dimension.

        Raises:
            ValueError: the context keeps no launches (`interpret(trace=True)` does).
            NotMadeError: no kernel wrote the element (a LookupError).
            Unsupported: the kernel cannot be traced; its threads have warp roles.
        """
        log = self._launches()
        launch, name, place = log.find(tensor, index)
        return explain_element(log, launch, name, place)

    def writers(self, tensor: torch.Tensor, index: Sequence[int]) -> tuple[str, tuple[Writer, ...]]:
        """The kernel that wrote an element last, and its writes of it, in order.

        Args and errors are those of `explain`.
        """
        launch, name, place = self._launches().find(tensor, index)
        return launch.kernel.name, writers_of(launch, name, place)

    def _launches(self) -> LaunchLog:
        if self.log is None:
            raise ValueError("no launches are kept to explain: enter interpret(trace=True)")
        return self.log

    def add(self, reports: Iterable[Report]) -> None:
        """Note the reports of a launch that ended.

        Raises:
            SanitizerError: if there are any and they are to be raised.
        """
        found = list(reports)
        self.reports.extend(found)
        if found and self.on_report == "raise":
            raise SanitizerError(found)
        if self.on_report == "collect":
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


# To which dtype the kernels of this thread do not round factors of products; "" if they do.
UNROUNDED: ContextVar[str] = ContextVar("tlmatrix_unrounded", default="")


@contextmanager
def unrounded_factors(dtype: str) -> Iterator[None]:
    """Context manager: products inside get factors of `dtype` as a kernel computes them.

    Sanitizers and observers are off. Kernels that cannot run so raise `Unsupported`; on a GPU, and
    in lowered code, nothing changes.
    """
    token = UNROUNDED.set(dtype)
    try:
        yield
    finally:
        UNROUNDED.reset(token)


# What generated programs run in: threads, modes of PyTorch, options of a session ------------------

_HOPPER_FLOAT8_BITS = 14
"""See `ops.gemm.gemm_float8`."""


class _Entered(threading.local):
    session: Session | None = None


_entered = _Entered()


def environment(session: Session | None) -> AbstractContextManager[None]:
    """What generated programs of a session run in; enter it at once."""
    if session is not None and _entered.session is session:
        return nullcontext()
    return _environment(session)


@contextmanager
def _environment(session: Session | None) -> Iterator[None]:
    before, _entered.session = _entered.session, session
    threads = torch.get_num_threads()
    tf32 = TF32.set((session is not None and session.tf32) or TF32.get())
    hopper = session is not None and session.arch.startswith("sm_90")
    bits = FLOAT8_BITS.set(_HOPPER_FLOAT8_BITS if hopper else FLOAT8_BITS.get())
    if threads != 1:
        # Tiles are too small to share: a second thread costs more than it brings.
        torch.set_num_threads(1)
    try:
        with np.errstate(all="ignore"), without_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001
            yield
    finally:
        _entered.session = before
        if threads != 1:
            torch.set_num_threads(threads)
        FLOAT8_BITS.reset(bits)
        TF32.reset(tf32)


def without_modes() -> AbstractContextManager[object]:
    """Inside, no dispatch mode of a caller sees what is done with tensors; enter it at once."""
    # A tenth of the cost of taking the modes off their stack and putting them back.
    modes: AbstractContextManager[object] = torch._C._DisableTorchDispatch()  # noqa: SLF001
    return modes
