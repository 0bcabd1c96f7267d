"""A kernel that runs as TileLang lowers it: its device functions, thread by thread."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.ir.read import saved
from tlmatrix.interpreter.lowered.execution import run
from tlmatrix.interpreter.lowered.lowering import LoweredKernel, lowered_kernel
from tlmatrix.interpreter.lowered.machine import Watching
from tlmatrix.interpreter.reports import Report, ReportSet

from .lowering_check import Launch, report
from .programs import kept, lowered, lowered_key, written_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .session import Session


class DeviceCode:
    """The lowered code of a kernel for one architecture, to be run on the CPU."""

    def __init__(self, prim_func: Any, arch: str, configs: Mapping[str, Any]) -> None:
        """Lower nothing yet."""
        self._func, self._arch, self._configs = prim_func, arch, configs
        self.name = str(prim_func.attrs["global_symbol"])
        self._compared = False  # bisecting takes seconds: once a kernel

    @cached_property
    def code(self) -> LoweredKernel:
        """Its programs; lowering takes seconds and is kept on disk.

        Raises:
            Unsupported: TileLang cannot lower it, or an operation is not modelled.
        """
        func, about = self._func, (self._arch, self._configs)
        found = kept(
            lambda: lowered_key(saved(func), *about) + "-device",
            LoweredKernel,
            lambda: lowered_kernel(lowered(func, *about)),
        )
        _dump(found)
        return found

    @property
    def by_order(self) -> bool:
        """Whether values may depend on the order of threads: source and code may differ then."""
        return any(each.by_order for each in self.code.programs.values())

    def run(self, values: Sequence[Any], session: Session) -> list[Report]:
        """Run a launch; returns what the session's sanitizers found.

        Raises:
            Unsupported: an operation is not modelled.
            InterpreterError: for what has no defined result.
        """
        reports = ReportSet()
        watching = Watching(session.sanitizers, reports, self.name)
        try:
            run(self.code, values, watching)
        except (Unsupported, InterpreterError) as error:
            where = f"\n  in kernel {self.name}, lowered for {self._arch}, {written_at(self._func)}"
            raise type(error)(f"{error}{where}") from error
        return reports.reports()

    def compare(
        self,
        names: Sequence[str],
        before: Sequence[Any],
        source: Sequence[Any],
        lowered: Sequence[Any],
    ) -> list[Report]:
        """What `lowering_check` finds about a launch: arguments before, and after either run."""
        if self._compared:
            return []
        launch = Launch(self._func, self._arch, self._configs, names, before, source)
        found = report(launch, lowered)
        self._compared = found is not None
        return [found] if found is not None else []


def _dump(code: LoweredKernel) -> None:
    """Write the sources to the folder `$TLMATRIX_DUMP`."""
    folder = os.environ.get("TLMATRIX_DUMP")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, program in code.programs.items():
            (Path(folder) / f"{name}_lowered.py").write_text(program.source)
