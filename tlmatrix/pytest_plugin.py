"""The pytest plugin, which collects specs like test files.

`pytest specs -n auto` runs their cases in workers of pytest-xdist.
Every pytest session loads this module if tlmatrix is installed, so its imports are few.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.config import ConfigError, load_config
from tlmatrix.options.table import ONLY, SPECS, plugin_options
from tlmatrix.processes import idle_rank

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import pytest_timeout

    from tlmatrix.plugin.items import CaseItem
    from tlmatrix.plugin.session import Session

_SUFFIXES = frozenset({".yaml", ".yml"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a run; `[tool.tlmatrix]` in pyproject.toml sets their defaults."""
    group = parser.getgroup("tlmatrix", "kernel test matrices from YAML specs")
    for option in plugin_options():
        group.addoption(option.flag_of_pytest, **option.for_pytest())


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load the project's configuration, and translate `-k axis=value`."""
    from tlmatrix.plugin.session import create_session

    try:
        project = load_config(config.rootpath)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
    session = create_session(config, project)
    session.end_with_controller()
    if not session.worker:
        from tlmatrix.plugin.reports import Reports

        config.pluginmanager.register(Reports(session), "tlmatrix-reports")
        if session.workers and config.option.maxworkerrestart is None:
            # Every crashing case ends a worker, and the other cases should run.
            config.option.maxworkerrestart = "64"
    if config.option.keyword.strip():
        from tlmatrix.plugin.items import KeywordError, rewrite_keywords

        try:
            config.option.keyword = rewrite_keywords(config.option.keyword)
        except KeywordError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a YAML file if it is a spec, or if the command line names it."""
    if file_path.suffix not in _SUFFIXES:
        return None
    if not parent.session.isinitpath(file_path):
        from tlmatrix.spec.loader import is_spec

        try:
            if not is_spec(file_path):
                return None
        except OSError:
            return None  # any project has this plugin; `tlmatrix check` reports the file
    from tlmatrix.plugin.items import SpecFile

    spec_file: pytest.Collector = SpecFile.from_parent(parent, path=file_path)
    return spec_file


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect links to nothing in a folder of specs, as errors; pytest passes them over."""
    report = yield
    if isinstance(collector, pytest.Directory) and report.passed:
        report.result += _dangling_specs(collector, report.result)
    return report


def _dangling_specs(folder: pytest.Directory, collected: list[Any]) -> list[pytest.Collector]:
    """The links to nothing in a folder that has specs, or should: any project has this plugin."""
    from tlmatrix.plugin.session import session_of

    project = session_of(folder.config).project
    module = sys.modules.get("tlmatrix.plugin.items")
    has_specs = module is not None and any(isinstance(each, module.SpecFile) for each in collected)
    if not has_specs and not any(
        folder.path.is_relative_to(project.root / each) for each in project[SPECS]
    ):
        return []
    from tlmatrix.plugin.items import SpecFile
    from tlmatrix.spec.loader import dangling_links

    return [
        SpecFile.from_parent(folder, path=path)
        for path in dangling_links(folder.path)
        if not folder.ihook.pytest_ignore_collect(collection_path=path, config=folder.config)
    ]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Set the project's timeout; leave out cases of other shards, and those that passed before.

    The shard is taken of what `-k` and other plugins leave.
    """
    from tlmatrix.plugin.session import session_of

    session = session_of(config)
    _leave_out_unwanted(config, items)
    _set_timeouts(config, _cases(items), session)
    yield
    cases = _cases(items)
    if session.settings.shard is not None:
        from tlmatrix.engine.selection import Unit, seconds_for_shards, shard_plan
        from tlmatrix.engine.settings import ShardError

        units = [Unit(each.nodeid, each.nodeid.partition("::")[0], each.kernels) for each in cases]
        seconds = seconds_for_shards(session.settings.times, config.rootpath)
        try:
            session.shard_plan = shard_plan(units, seconds, session.settings.shard)
        except ShardError as error:
            raise pytest.UsageError(f"--shard {error}") from error
        nodes = session.shard_plan.nodes
        _leave_out(config, items, {each for each in cases if each.nodeid not in nodes})
    passed = session.settings.passed_before
    done = {item for item in cases if (str(item.path.resolve()), item.name) in passed}
    _leave_out(config, items, done)


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: set[CaseItem]) -> None:
    if deselected := [item for item in items if item in left_out]:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in left_out]


def _leave_out_unwanted(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all cases in an idle process of a launcher, and all but wanted regressions."""
    if idle_rank():
        _leave_out(config, items, set(_cases(items)))
    if config.getoption(f"tlmatrix_{ONLY.name}"):
        kept = {item: None for item in _cases(items) if item.case.origin == "regression"}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def _set_timeouts(config: pytest.Config, cases: list[CaseItem], session: Session) -> None:
    if not hasattr(config.option, "timeout"):
        return  # `-p no:timeout`: pytest would refuse the mark under `--strict-markers`
    for item in cases:
        item.add_marker(pytest.mark.timeout(session.settings.timeout))


def pytest_report_header() -> str | None:
    """The reason why a process of a launcher such as torchrun runs no cases."""
    idle = idle_rank()
    return f"tlmatrix: {idle}" if idle else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A process of a launcher that runs no cases succeeds, and so does an empty shard."""
    from tlmatrix.plugin.session import session_of

    empty = idle_rank() or session_of(session.config).shard_plan is not None
    if empty and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin a run without workers; prepare a worker, before pytest-xdist reports its collection."""
    from tlmatrix.plugin.session import session_of

    cases = _cases(session.items)
    mine = session_of(session.config)
    if mine.worker:
        mine.confine_process(only_cases=len(cases) == len(session.items))
        mine.collected_by_worker()
    elif not session.config.option.collectonly:
        ids: dict[str, list[str]] = {}
        for item in cases:
            ids.setdefault(item.shown_path, []).append(item.name)
        mine.begin(ids)


def _cases(items: list[pytest.Item]) -> list[CaseItem]:
    """The items that are cases; imports nothing if no spec was collected."""
    module = sys.modules.get("tlmatrix.plugin.items")
    if module is None:
        return []
    return [item for item in items if isinstance(item, module.CaseItem)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the result of a case to pytest's report, which a worker sends to the controller."""
    report = yield
    result = getattr(item, "result", None)
    if call.when == "call" and result is not None and hasattr(item, "case"):
        report.tlmatrix = result.to_json()  # type: ignore[attr-defined]
    if hasattr(item, "case") and hasattr(item, "time_limit"):
        from tlmatrix.plugin.session import session_of

        report.unrecorded = session_of(item.config).run.records.error  # type: ignore[attr-defined]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool | None:
    """Pass the time limit to the timer of a case, which records a result when it expires."""
    if not hasattr(item, "time_limit"):
        return None
    import pytest_timeout

    item.time_limit = None if pytest_timeout.is_debugging() else settings.timeout
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """Do nothing: the timer of a case ends with the case."""
    return True if hasattr(item, "time_limit") else None


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the results file."""
    from tlmatrix.plugin.session import close_session

    close_session(config)
