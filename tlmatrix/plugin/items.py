"""Spec files and their cases as pytest's collectors and items.

An item is named by the id of its case. A failed one prints its findings, not a traceback into
tlmatrix.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.mark import expression as grammar

from tlmatrix.plugin.session import session_of
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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


# Terms axis=value of pytest's -k, which its grammar does not have ---------------------------------
#
# `-k "causal=true and dtype=float16"` becomes `-k ":causal:true: and :dtype:float16:"`, and every
# case carries the keywords `:axis:value:` of its values. The colons on both ends make the match
# exact: `head_dim=64` does not select `head_dim=640`. A word without `=` matches as in pytest: a
# part of the id of a case, of the name of its spec's file or folder, or of its kind (`invalid`,
# `fuzz`, `regression`, `extra`).

_WORD = re.compile(r"[\w.+:\-]+(?:=[\w.+:\-]+)+")
_SEPARATOR = re.compile(r"-(?=[A-Za-z_]\w*=)")
_SYNTAX_ERRORS: tuple[type[Exception], ...] = (
    SyntaxError,
    getattr(grammar, "ParseError", SyntaxError),
)
"""Raised by pytest for an invalid expression; before pytest 9 it is an exception of its own."""


class KeywordError(ValueError):
    """An expression of `-k` is invalid."""


def rewrite_keywords(expression: str) -> str:
    """Translate every `axis=value` (or `a=x-b=y`, or a whole id) to pytest's grammar.

    Raises:
        KeywordError: the expression is invalid.
    """
    return _compiled(expression)[0]


def case_keywords(case: Case) -> set[str]:
    """The keywords of a case: its values, and its kind if it is not a case of the tier."""
    from tlmatrix.spec.values import label

    found = {f":{name}:{label(value)}:" for name, value in case.values.items()}
    return found if case.origin == "tier" else {*found, case.origin}


def selector(expression: str) -> Callable[[Case, Iterable[str]], bool]:
    """A function that returns whether `-k EXPRESSION` selects a case.

    Its second argument has the names of the spec's file and folder.

    Raises:
        KeywordError: the expression is invalid.
    """
    _, compiled = _compiled(expression)

    def selects(case: Case, names: Iterable[str] = ()) -> bool:
        known = [name.lower() for name in (case.id, *case_keywords(case), *names)]

        def has(word: str, /, **_options: str | int | bool | None) -> bool:
            return any(word.lower() in name for name in known)

        return compiled.evaluate(has)

    return selects


def _compiled(expression: str) -> tuple[str, grammar.Expression]:
    rewritten = _WORD.sub(lambda found: _rewritten(found.group()), expression)
    try:
        compiled = grammar.Expression.compile(rewritten)
        if "=" in rewritten:  # pytest accepts arguments of terms, but only uses them for -m
            raise SyntaxError("= without an axis and a value")
    except _SYNTAX_ERRORS as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise KeywordError(
            f"-k {expression!r} is invalid: {reason}; write terms such as axis=value, a part of an "
            "id, or invalid, joined by and, or, not and parentheses"
        ) from error
    return rewritten, compiled


def _rewritten(word: str) -> str:
    pairs = [pair.replace("=", ":", 1) for pair in _SEPARATOR.split(word)]
    terms = [f":{pair}:" for pair in pairs]
    return terms[0] if len(terms) == 1 else f"({' and '.join(terms)})"
