"""Spec files and their cases as pytest's collectors and items.

An item is named by the id of its case. A failed one prints its findings, not a traceback into
tlmatrix.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.plugin.keywords import case_keywords
from tlmatrix.plugin.session import session_of
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest._code.code import TerminalRepr

    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Spec


class CaseFailure(Exception):  # noqa: N818 - a failed test, not an error
    """Raised by an item whose case failed; has its result."""

    def __init__(self, result: CaseResult) -> None:
        self.result = result
        super().__init__(result.case)


class SpecFile(pytest.File):
    """A spec, whose children are the cases of the selected tier."""

    def collect(self) -> Iterator[CaseItem]:
        """Yield the cases of the tier, the invalid inputs, and the fuzz cases.

        Raises:
            SpecError: the spec is invalid, or has no case, or too many cases.
        """
        from tlmatrix.engine.selection import cases_of
        from tlmatrix.options.table import SEED, TIER
        from tlmatrix.run.plan import plan
        from tlmatrix.spec.importing import make_importable
        from tlmatrix.spec.loader import load_spec

        session = session_of(self.config)
        session.prepare_process()
        make_importable(self.path, (self.config.rootpath,))
        spec = load_spec(self.path)
        if session.worker:
            session.sources.of(self.path)  # before the first case imports its modules
        options = session.settings.options
        planned = plan(spec, options[TIER], seed=options[SEED] or None)
        ids = session.selected_ids(self.path)
        for case in cases_of(planned, ids, session.settings, known_only=True):
            item: CaseItem = CaseItem.from_parent(self, name=case.id, spec=spec, case=case)
            if session.settings.shard is not None:
                item.kernels = planned.group(case)
            if self.config.option.keyword:
                item.extra_keyword_matches.update(case_keywords(case))
            yield item

    def repr_failure(  # type: ignore[override]
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        """The errors of a spec as lines `file:line:column: message`."""
        from tlmatrix.spec.issues import SpecError

        if isinstance(excinfo.value, SpecError):
            return "\n".join(
                str(replace(issue, path=Path(shown_path(issue.path))))
                for issue in excinfo.value.issues
            )
        return super().repr_failure(excinfo)


class CaseItem(pytest.Item):
    """One case of a spec."""

    def __init__(self, *, spec: Spec, case: Case, **kwargs: Any) -> None:  # noqa: ANN401 - pytest's own
        super().__init__(**kwargs)
        self.spec = spec
        self.case = case
        self.kernels = ""
        """The group of cases that share its kernels, in a session of a shard."""
        self.result: CaseResult | None = None
        self.time_limit: float | None = None

    @cached_property
    def shown_path(self) -> str:
        """The path of the spec relative to the working directory."""
        return shown_path(self.path)

    def runtest(self) -> None:
        """Run, check and record the case, then report it to pytest."""
        from tlmatrix.engine.worker import UNUSABLE

        session = session_of(self.config)
        judge = session.judge
        with _one_thread(), session.on_its_gpu():
            self.result = judge.run(self.spec, self.case, self.shown_path, self.time_limit)
        if session.worker and (judge.runner.broken_by or self.result.status == "timeout"):
            # The CUDA context is unusable after a fault, or modules are imported in part: the next
            # case runs in another process.
            os._exit(UNUSABLE)
        self._raise_outcome(self.result)

    def _raise_outcome(self, result: CaseResult) -> None:
        from tlmatrix.run.result import Status

        if result.failed:
            raise CaseFailure(result)
        if result.status is Status.KNOWN_BUG:
            pytest.xfail(result.message)
        if result.status in (Status.SKIPPED, Status.QUARANTINED):
            reason = f"{result.reason}: " if result.reason else ""
            pytest.skip(f"{reason}{result.message}")

    def repr_failure(  # type: ignore[override]
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        """The findings of the case; a traceback for an error inside tlmatrix."""
        if isinstance(excinfo.value, CaseFailure):
            return session_of(self.config).describe(excinfo.value.result)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The spec's file and the case, without a line number."""
        return self.path, None, f"{self.spec.name}: {self.name}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, which is faster for small tensors."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
