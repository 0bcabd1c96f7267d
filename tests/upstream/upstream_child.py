"""Runs one program of a checkout on the interpreter; appends what happened to a file.

    python upstream_child.py OUTCOMES ARCH LEVEL KIND PROGRAM [ARGUMENT...]

LEVEL is `source`, `lower` (kernels are lowered as well, for errors of the compiler), or `lowered`:
lowered code is executed with all sanitizers, and what they report is wrong. KIND is `script` or
`test`. A script appends one line of JSON, a test file one for each test: name, state, detail,
seconds, and the number of kernels that ran.
"""

import json
import os
import re
import resource
import signal
import sys
import time
import traceback
import types
from pathlib import Path

MEMORY = 8 << 30
TEST_SECONDS = {"source": 60, "lower": 60, "lowered": 240}
SOURCE = re.compile(
    r"#if defined\(|__global__|get_(kernel|host)_source|from tvm.script import|attribute 'adapter'"
)


class Outcomes:
    """What became of each test, as a plugin of pytest; `record` serves scripts as well."""

    def __init__(self, path, kernels, seconds):
        self._path = Path(path)
        self._kernels = kernels
        self._seconds = seconds
        self._start = 0.0
        self._before = self._compiled = 0
        self._sessions = []
        self._reported = 0

    def started(self, session):
        """Take what the sanitizers of a session report."""
        self._sessions.append(session)

    def _report(self):
        """The first report since the last call of this."""
        reports = [report for session in self._sessions for report in session.reports]
        new, self._reported = reports[self._reported :], len(reports)
        return f"{new[0].sanitizer}: {new[0].message}"[:300] if new else None

    def record(self, name, state, detail, start, kernels):
        """Append one line."""
        report = self._report()
        if report is not None and state in ("right", "no kernel", "skipped"):
            state, detail = "wrong", report
        entry = {
            "name": name,
            "state": state,
            "detail": detail,
            "seconds": round(time.monotonic() - start, 2),
            "kernels": kernels,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def pytest_runtest_logstart(self, nodeid, location):
        """Start the clock of a test."""
        self._start = time.monotonic()
        self._before, self._compiled = self._kernels.count, self._kernels.compiled
        signal.alarm(self._seconds)

    def pytest_runtest_makereport(self, item, call):
        """Record how a test ended: its call, or a setup that fails or skips."""
        error = call.excinfo.value if call.excinfo else None
        if call.when == "teardown" or (call.when == "setup" and error is None):
            return
        signal.alarm(0)
        kernels = self._kernels.count - self._before
        state, detail = judged(error, kernels, test=True)
        if state == "wrong" and not kernels and self._kernels.compiled == self._compiled:
            state = "no kernel"
        expected = item.get_closest_marker("xfail")
        if expected is not None and error is not None:
            state, detail = "skipped", f"xfail: {expected.kwargs.get('reason', '')}"
        self.record(item.nodeid.split("::", 1)[-1], state, detail, self._start, kernels)

    def pytest_collectreport(self, report):
        """Record a file that cannot be imported."""
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            detail = (lines or ["cannot be imported"])[-1].removeprefix("E").strip()
            missing = re.search(r"No module named '?([\w.]+)", detail)
            refused = "does not model" in detail
            state = "skipped" if missing else "refused" if refused else "crashed"
            what = f"needs {missing.group(1)}" if missing else detail
            self.record(report.nodeid, state, what, time.monotonic(), 0)


class Kernels:
    """Counts the interpreted kernels that are compiled, and those that are called."""

    def __init__(self):
        self.count = 0
        self.compiled = 0

    def install(self):
        """Count from now on."""
        from tlmatrix.interpreter import InterpretedKernel

        call, create = InterpretedKernel.__call__, InterpretedKernel.__init__

        def compiled(kernel, *args, **kwargs):
            self.compiled += 1
            create(kernel, *args, **kwargs)

        def counted(kernel, *args):
            self.count += 1
            return call(kernel, *args)

        InterpretedKernel.__call__ = counted
        InterpretedKernel.__init__ = compiled


class TooSlow(BaseException):
    """A test takes longer than its limit."""


def judged(error, kernels, *, test):
    """State and detail of what ended with this exception, or without one."""
    from tlmatrix.interpreter import Unsupported

    if error is None or (isinstance(error, SystemExit) and not error.code):
        return ("right", "") if kernels else ("no kernel", "")
    text = f"{type(error).__name__}: {error}".strip()
    cause = error
    while cause is not None and not isinstance(cause, Unsupported):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return "refused", construct(str(cause))
    if isinstance(error, TooSlow):
        return "slow", str(error)
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "slow", "more memory than the limit"
    if isinstance(error, ModuleNotFoundError):
        return "skipped", f"needs {error.name}"
    if type(error).__name__ == "Skipped":
        return "skipped", str(error)
    if type(error).__name__ == "AcceleratorError" or "no CUDA-capable device" in text:
        return "skipped", "uses a GPU beside TileLang"
    if test and (SOURCE.search(text) or (not kernels and not _of_interpreter(error, text))):
        return "no kernel", text[:300]
    if isinstance(error, AssertionError) or "DID NOT RAISE" in text:
        return "wrong", text[:300]
    return "crashed", text[:300]


def _of_interpreter(error, text):
    """Whether the interpreter raised an exception, or lacks what a program asks of it."""
    last = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        last = frame.f_code.co_filename
    inside = f"{os.sep}tlmatrix{os.sep}interpreter{os.sep}" in (last or "")
    return inside or "InterpretedKernel" in text or "DID NOT RAISE" in text


def construct(message):
    """What is refused, without names and places: the key by which the table counts refusals."""
    found = re.search(r"does not model (.*)", message)
    text = found.group(1) if found else message.splitlines()[0]
    text = re.split(r" \((?:at |/)| at /|[;:] |, (?:in kernel|which) |\n| in [\w.]+\.py", text)[0]
    return re.sub(r" \(\w+\)$", "", text)[:160]


def main():
    """Run the program that the command line names."""
    outcomes, arch, level, kind, program, *arguments = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    os.nice(10)
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    from tlmatrix.interpreter.frontend.scripts import run_program

    def too_slow(*_):
        raise TooSlow(f"over {TEST_SECONDS[level]} s")

    signal.signal(signal.SIGALRM, too_slow)
    kernels = Kernels()
    kernels.install()
    recorder = Outcomes(outcomes, kernels, TEST_SECONDS[level])
    options = {"arch": arch, "lower": level == "lower", "started": recorder.started}
    if level == "lowered":
        options |= {"lowered": True, "sanitize": True}
    if kind == "test":
        # The plugin has to be a module: pytest imports it by name.
        plugin = types.ModuleType("upstream_outcomes")
        for hook in ("runtest_logstart", "runtest_makereport", "collectreport"):
            setattr(plugin, f"pytest_{hook}", getattr(recorder, f"pytest_{hook}"))
        sys.modules[plugin.__name__] = plugin
        words = ["-q", "-p", "no:cacheprovider", "-p", "upstream_outcomes", program, *arguments]
        run_program("pytest", words, module=True, **options)
        return
    start = time.monotonic()
    error = None
    try:
        run_program(program, arguments, **options)
    except BaseException as caught:
        error = caught
        raise
    finally:
        state, detail = judged(error, kernels.count, test=False)
        recorder.record(program, state, detail, start, kernels.count)


if __name__ == "__main__":
    main()
