"""The pytest plugin: specs are collected like test files, wherever a user keeps them.

`pytest specs -n auto` runs their cases; cases that share compiled kernels stay on one worker.
This module is loaded by every pytest where tlmatrix is installed, so it imports next to nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.config import BACKENDS, COVERAGE, UNSUPPORTED, ConfigError, load_config
from tlmatrix.launchers import idle_rank

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import pytest_timeout

    from tlmatrix.plugin.items import CaseItem
    from tlmatrix.run.events import Event

__all__: list[str] = []

_SUFFIXES = frozenset({".yaml", ".yml"})


class TlmatrixHooks:
    """Hooks that tlmatrix adds to pytest."""

    @pytest.hookspec
    def pytest_tlmatrix_event(self, event: Event) -> None:
        """Something happened in the run, see `tlmatrix.run.events`; called where pytest reports."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Make the hooks of tlmatrix known."""
    pluginmanager.add_hookspecs(TlmatrixHooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a run; defaults come from `[tool.tlmatrix]` in pyproject.toml."""
    group = parser.getgroup("tlmatrix", "kernel test matrices from YAML specs")
    group.addoption(
        "--tlmatrix-tier", metavar="TIER", default=None, help="which cases to run: quick, nightly…"
    )
    group.addoption(
        "--tlmatrix-backend",
        choices=BACKENDS,
        default=None,
        help="where kernels run (auto: cuda where there is a GPU, else the interpreter; compile: "
        "nowhere, they are assembled)",
    )
    group.addoption(
        "--tlmatrix-arch",
        action="append",
        metavar="ARCH",
        default=None,
        help="with the backend compile: an architecture to assemble for, such as sm_90a",
    )
    group.addoption(
        "--tlmatrix-seed",
        type=int,
        metavar="N",
        default=None,
        help="other input data and other samples; 0, the default, is each case's own seed",
    )
    group.addoption(
        "--tlmatrix-only",
        choices=("regressions",),
        default=None,
        help="leave out every case but those that once failed",
    )
    group.addoption(
        "--tlmatrix-no-fuzz",
        action="store_true",
        help="leave out the cases that a tier draws at random (`fuzz.examples` of a spec)",
    )
    group.addoption(
        "--tlmatrix-keep-going",
        action="store_true",
        help="after wrong numbers, judge relations and agreements too",
    )
    group.addoption(
        "--tlmatrix-results",
        metavar="PATH",
        default=None,
        help="a folder for results files, or a file to write (.jsonl)",
    )
    group.addoption(
        "--tlmatrix-resume",
        metavar="FILE",
        default=None,
        help="go on with the run of this results file: cases that passed are not run again",
    )
    group.addoption(
        "--tlmatrix-coverage",
        choices=COVERAGE,
        default=None,
        help="count which lines and guards of interpreted kernels the cases exercise, and say so "
        "in a line (summary) or a table; off, the default, counts nothing",
    )
    group.addoption(
        "--tlmatrix-unsupported",
        choices=UNSUPPORTED,
        default=None,
        help="cases whose kernels the interpreter does not model: skipped and told (tell, the "
        "default), or errors (fail)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """With workers and no `--dist`, keep cases that share kernels together."""
    option = config.option
    workers = getattr(option, "numprocesses", None)
    if workers and getattr(option, "dist", "") == "no":
        option.dist = "loadgroup"
        if option.maxworkerrestart is None:
            # Each crashing case costs a worker, and the rest of the matrix is still wanted.
            option.maxworkerrestart = "64"
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the project's defaults, and make `-k axis=value` mean what it says."""
    from tlmatrix.plugin.state import set_state

    try:
        project = load_config(config.rootpath)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
    state = set_state(config, project)
    state.confine_process()
    if not state.is_worker:
        from tlmatrix.plugin.controller import Controller

        config.pluginmanager.register(Controller(state), "tlmatrix-controller")
    if config.option.keyword.strip():
        from tlmatrix.plugin.keywords import KeywordError, rewrite_keywords

        try:
            config.option.keyword = rewrite_keywords(config.option.keyword)
        except KeywordError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A YAML file is collected when it is a spec, or when it was named on the command line."""
    if file_path.suffix not in _SUFFIXES:
        return None
    if not parent.session.isinitpath(file_path):
        from tlmatrix.spec.loader import is_spec

        if not is_spec(file_path):
            return None
    from tlmatrix.plugin.items import SpecFile

    spec_file: pytest.Collector = SpecFile.from_parent(parent, path=file_path)
    return spec_file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed in the run that is resumed; give each case the project's timeout."""
    from tlmatrix.plugin.state import state_of

    state = state_of(config)
    if idle_rank():
        left_out = set(_cases(items))
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if config.getoption("tlmatrix_only"):
        kept = {item: None for item in _cases(items) if item.case.origin == "regression"}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    cases = _cases(items)
    passed = state.settings.passed_before
    done = {item for item in cases if (str(item.path.resolve()), item.name) in passed}
    if done:
        items[:] = [item for item in items if item not in done]
        config.hook.pytest_deselected(items=list(done))
    own_timeout = config.getoption("timeout", None) or config.getini("timeout")
    if state.settings.backend == "compile" and not config.getoption("timeout", None):
        # A case has many kernels, and each step of a compiler has a limit of its own.
        for item in cases:
            item.add_marker(pytest.mark.timeout(0))
    elif state.project.timeout and not own_timeout:
        for item in cases:
            item.add_marker(pytest.mark.timeout(state.project.timeout))


def pytest_report_header() -> str | None:
    """Say why a process that a launcher started runs no cases."""
    idle = idle_rank()
    return f"tlmatrix: {idle}" if idle else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A process that leaves all cases to another has done what it should."""
    if idle_rank() and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Cases are known: without workers the run begins, a worker says what belongs together.

    It says so before pytest-xdist tells the controller that it has collected, which then asks.
    """
    from tlmatrix.plugin.state import state_of

    cases = _cases(session.items)
    state = state_of(session.config)
    if state.is_worker:
        groups = {item.nodeid: item.group for item in cases if item.group is not None}
        state.sharing.write(groups, state.worker)
    elif not session.config.option.collectonly:
        state.begin(Counter(item.shown_path for item in cases))


def _cases(items: list[pytest.Item]) -> list[CaseItem]:
    """The items that are cases; where no spec was collected, nothing is imported to find none."""
    module = sys.modules.get("tlmatrix.plugin.items")
    if module is None:
        return []
    return [item for item in items if isinstance(item, module.CaseItem)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The result of a case travels with pytest's report, also from a worker."""
    report = yield
    result = getattr(item, "result", None)
    if call.when == "call" and result is not None and hasattr(item, "case"):
        report.tlmatrix = result.to_json()  # type: ignore[attr-defined]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool | None:
    """Cases have their own timer: it leaves a record, and ends a process that does not stop."""
    if not hasattr(item, "seconds_allowed"):
        return None
    import pytest_timeout

    item.seconds_allowed = None if pytest_timeout.is_debugging() else settings.timeout
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """A case's timer ends with the case."""
    return True if hasattr(item, "seconds_allowed") else None


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Let go of the results file."""
    from tlmatrix.plugin.state import close_state

    close_state(config)
