"""Spec files and their cases as pytest's collectors and items.

An item is named by the id of its case. A failed one prints its findings, not a traceback into
tlmatrix.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.options.table import BACKEND, SEED, TIER
from tlmatrix.plugin.keywords import case_keywords
from tlmatrix.plugin.state import state_of
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest._code.code import TerminalRepr

    from tlmatrix.check.registry import Reruns
    from tlmatrix.matrix import Case
    from tlmatrix.plugin.state import State
    from tlmatrix.run.plan import Plan
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
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
        from tlmatrix.run.plan import plan
        from tlmatrix.spec.importing import make_importable
        from tlmatrix.spec.loader import load_spec

        state = state_of(self.config)
        state.prepare_process()
        make_importable(self.path, (self.config.rootpath,))
        spec = load_spec(self.path)
        if state.is_worker:
            state.sources.of(self.path)  # before the first case imports its modules
        planned = plan(spec, state.options[TIER], seed=state.options[SEED] or None)
        planned.refuse_too_many()
        with_keywords = bool(self.config.option.keyword)
        ids = state.selected_ids(self.path)
        for case in _all_cases(planned, state) if ids is None else _cases_by_id(planned, ids):
            item: CaseItem = CaseItem.from_parent(self, name=case.id, spec=spec, case=case)
            if state.settings.shard is not None:
                item.kernels = planned.group(case)
            if state.groups_file.path:
                item.group = planned.group(case)
            if with_keywords:
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
        self.group: str | None = None
        self.kernels = ""
        self.result: CaseResult | None = None
        self.time_limit: float | None = None

    @cached_property
    def shown_path(self) -> str:
        """The path of the spec relative to the working directory."""
        return shown_path(self.path)

    def runtest(self) -> None:
        """Run, check and record the case, then report it to pytest."""
        from tlmatrix.run.runner import UNUSABLE

        state = self._state()
        runner = state.runner()
        with _one_thread(), state.on_its_gpu():
            try:
                self.result = self._run_case(runner)
            except KeyboardInterrupt:
                if state.is_worker:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process ends now
                state.ctrl_c.note()
                raise
        state.settle(self.path)
        if state.expendable and (runner.broken_by or self.result.status == "timeout"):
            # The CUDA context is unusable after a fault, or modules are imported in part: the next
            # case runs in another process.
            os._exit(UNUSABLE)
        self._raise_outcome(self.result)

    def _run_case(self, runner: Runner) -> CaseResult:
        """Run the case within the worker's share of its GPU.

        If memory runs out beside other workers, once more while none runs, with all of the GPU.
        """
        state = self._state()
        turns, backend = state.turns, runner.backend
        if state.sharers > 1:
            backend.limit_memory(state.sharers)
        with turns.shared(backend.release):
            result = self._run_once(runner)
        if not turns or not _without_memory(result):
            return result
        backend.release()
        with turns.alone():
            backend.limit_memory(1)
            return self._run_once(runner, alone=True)

    def _run_once(self, runner: Runner, *, alone: bool = False) -> CaseResult:
        spec, case, path, limit = self.spec, self.case, self.shown_path, self.time_limit
        state = self._state()

        def refined(result: CaseResult) -> CaseResult:
            if alone and _without_memory(result):
                first, *others = result.findings
                noted = replace(first, title=f"{first.title}; also while no other case ran")
                return replace(result, findings=(noted, *others))
            if runner.broken_by:
                return result
            if state.compute_sanitizer is not None:
                result = state.compute_sanitizer.judge(result, limit)
            if case.origin == "fuzz" and result.failed:
                return state.shrinker.add_smaller(runner, spec, case, result, limit)
            if case.origin not in ("fuzz", "invalid") and runner.backend.executes:
                return state.second_pass.extended(
                    result, lambda: runner.judge(spec, case, path=path, masked=True)
                )
            return result

        # Of the checks that run the code again, each fuzz case gets one, in rotation.
        reruns: Reruns = "rotate" if case.origin == "fuzz" else "all"
        return runner.run(spec, case, path=path, reruns=reruns, time_limit=limit, refine=refined)

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
            return self._state().describe(excinfo.value.result)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The spec's file and the case, without a line number."""
        return self.path, None, f"{self.spec.name}: {self.name}"

    def _state(self) -> State:
        return state_of(self.config)


def _without_memory(result: CaseResult) -> bool:
    """Whether a case failed because memory ran out."""
    return result.failed and any(finding.check == "memory" for finding in result.findings)


def _all_cases(planned: Plan, state: State) -> Iterator[Case]:
    """The cases of a plan, then the fuzz cases of its tier."""
    ids = set()
    for case in planned.cases():
        ids.add(case.id)
        yield case
    if state.runs_fuzz_cases:
        from tlmatrix.backend import backend_class
        from tlmatrix.fuzz.search import tier_fuzz_cases

        compiled = backend_class(state.options[BACKEND]).compiles
        yield from tier_fuzz_cases(
            planned.spec, planned.tier, ids, seed=state.options[SEED], compiled=compiled
        )


def _cases_by_id(planned: Plan, ids: frozenset[str]) -> Iterator[Case]:
    """The cases with these ids, also if they are not in the tier."""
    from tlmatrix.matrix import CaseNotFoundError, find_case

    listed = {case.id: case for case in planned.cases() if case.id in ids}
    for case_id in sorted(ids):
        with suppress(CaseNotFoundError):  # pytest reports names that match no item
            yield listed.get(case_id) or find_case(planned.spec, case_id)


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
