"""Settings, markers and order of all tests."""

import gc
import os
import signal

import pytest

import preloaded_python
from slow_tests import SLOW, slow_rank

gc.disable()  # what is imported and collected stays
# Before anything imports numpy or torch: workers share the cores, so each has one thread.
for _library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

# Tests generate what they run: programs of earlier runs would hide what changed.
os.environ.setdefault("TLMATRIX_PROGRAMS", "off")

from outside_project import project  # noqa: E402, F401 - a fixture, after the threads are set

collect_ignore = ["strangers/project"]
"""Specs that `strangers/test_strangers.py` runs."""


def pytest_configure(config):
    """Start the server of preloaded processes while workers start; else its first user does."""
    # A shell starts background jobs with SIGINT ignored, which processes of tests would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None):
        preloaded_python.start()
    # pytest rewrites a plugin's package in every worker; of tlmatrix, `make` compiled the sources.
    getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("tlmatrix")


def pytest_xdist_auto_num_workers():
    """A worker more than cores: many tests wait, for processes, time limits and locks."""
    given = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return int(given) if given else len(os.sched_getaffinity(0)) + 1


@pytest.fixture(scope="module")
def preloaded():
    """Processes that a module's tests start have their imports from the start."""
    with preloaded_python.used_by_this_process():
        yield


@pytest.fixture(scope="module")
def code_folder(request, tmp_path_factory):
    """A folder with the CODE of a module `test_x` as `x_code`, which its specs name."""
    name = request.module.__name__.removeprefix("test_")
    folder = tmp_path_factory.mktemp(name)
    (folder / f"{name}_code.py").write_text(request.module.CODE)
    return folder


@pytest.fixture(scope="module")
def runner():
    """Interprets cases."""
    from tlmatrix.run.runner import Runner

    with Runner("interpreter") as found:
        yield found


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Workers begin a folder at different entries: each rewrites modules that the others read."""
    report = yield
    if isinstance(collector, pytest.Directory) and hasattr(collector.config, "workerinput"):
        worker = collector.config.workerinput
        number = int(worker["workerid"].removeprefix("gw"))
        first = len(report.result) * number // worker["workercount"]
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_collection_modifyitems(items):
    """Mark slow tests and start them first; skip what needs a GPU where there is none."""
    ranks = {item: (slow_rank(item.path), item.path) for item in items}
    for item, (rank, _) in ranks.items():
        if rank < len(SLOW):
            item.add_marker("slow")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=ranks.get)
    _skip_without_gpu(items)


def pytest_collection_finish():
    """Exclude modules and collected tests from garbage collection, which then costs less."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def _skip_without_gpu(items):
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture(autouse=True)
def no_interpreter_variables_left():
    """Remove variables of Python's that a test leaves: with them none is preloaded."""
    before = set(os.environ)
    yield
    for name in set(os.environ) - before:
        if name.startswith("PYTHON"):
            del os.environ[name]
