"""Faults that must not hide a failure or lose a run: each is injected in `run` and `pytest`."""

import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from outside_project import wait_until
from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import Status, read_records

RAISES = {
    "skip": "raises Skipped: not today",
    "sys_exit": "raises SystemExit: 0",
    "keyboard": "raises KeyboardInterrupt",
    "base": "raises Unusual: gave up",
    "surrogate": r"raises ValueError: a file \udc80 \x1b[31m",
    "long": "raises ValueError: xxxx",
    "memory": "out of memory in the code under test",
}
"""Faults inside a process, which goes on, and the start of the finding's title."""
ENDS = ("abort", "segfault", "killed")
"""Faults that end their process."""


def _results(file):
    """The results of a run by the axis `how`, of cases with float32."""
    found = read_records(file)
    assert not found.problems
    assert found.summary is not None
    return {
        re.search(r"how=(\w+)", result.case)[1]: result
        for result in found.results
        if "float32" in result.case
    }


def _check_raised(results):
    for how, title in RAISES.items():
        result = results[how]
        assert result.status is Status.ERROR, how
        assert result.findings[0].title.startswith(title), how
    whole = results["long"].findings[0].message
    assert whole is not None
    assert len(whole) <= 64_000
    assert whole.startswith("xxxx")
    assert re.search(r"x \[\.\.\. 2,93\d,\d+ bytes left out \.\.\.\] x", whole)
    assert whole.endswith("the end")


@pytest.mark.parametrize("command", ["run", "pytest"])
def test_what_an_entry_raises_is_a_finding_of_its_case(project, command):
    project.spec(how=f"[right, {', '.join(RAISES)}]", rows="[5]")
    file = project.folder / "out.jsonl"
    if command == "run":
        outcome = project.tlmatrix("run", ".", "-n", "0", "--results", str(file))
        assert "16 cases in" in outcome.out
        assert "2 passed, 14 error" in outcome.out
    else:
        outcome = project.pytest(".", "-q", "-n", "0", "--tlmatrix-results", str(file))
        assert "14 failed, 2 passed" in outcome.out
    assert outcome.code == ExitCode.FINDINGS, outcome.out[-2000:]
    assert len(outcome.out) < 60_000
    assert file.stat().st_size < 400_000  # the entry raises texts of 3 MB
    _check_raised(_results(file))


@pytest.mark.parametrize("command", ["run", "pytest"])
def test_faults_with_workers_cost_no_other_case(project, command):
    project.spec(
        how=f"[right, {', '.join(RAISES)}, {', '.join(ENDS)}, fork, memory_once, wrong]", rows="[5]"
    )
    words = ("tlmatrix", "run", ".", "--results") if command == "run" else ("pytest", ".")
    if command == "pytest":
        words = (*words, "--tlmatrix-results")
    select = f"dtype=float32 or not ({' or '.join(f'how={how}' for how in ENDS)})"
    out = project.run(
        *words, "results/out.jsonl", "-n", "2", "-k", select, code=ExitCode.FINDINGS
    ).out
    results = _results(project.folder / "results" / "out.jsonl")
    _check_raised(results)
    assert {results[how].status for how in ENDS} == {Status.CRASHED}
    for how in ("right", "fork"):  # a child that returns from the entry runs nothing
        assert results[how].status is Status.PASSED, how
    counts = Counter(result.status for result in results.values())
    if command == "run":  # a case that ran out of memory runs again, alone
        assert results["memory_once"].status is Status.PASSED
        assert results["memory"].findings[0].title.endswith("; also while no other case ran")
        assert counts == {Status.PASSED: 3, Status.FAILED: 1, Status.ERROR: 7, Status.CRASHED: 3}
        assert "25 cases in" in out
        assert "6 passed, 2 failed, 14 error, 3 crashed" in out


_DEVICE = """
import fcntl
import time
from contextlib import contextmanager

import torch


@contextmanager
def allocated(gigabytes):
    with open("device", "a+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        file.seek(0)
        used = sum(map(int, file.read().split()))
        with open("seen", "a") as seen:
            seen.write(f"{gigabytes} {used}\\n")
        if gigabytes > 80 - used:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {gigabytes}.00 GiB. GPU 0 has a total "
                "capacity of 80.00 GiB"
            )
        file.write(f"{gigabytes}\\n")
    time.sleep(0.3)
    yield
    with open("device", "a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        file.write(f"{-gigabytes}\\n")
"""
"""A GPU with 80 GiB that processes share, as a module of a project."""


def test_a_case_that_runs_out_of_memory_beside_others_runs_again_alone(project):
    """Needs 30 of 80 GiB, more than others leave, and more than there is."""
    project.spec(how="[right]", rows="[30, 31, 32, 33, 60, 61, 90]")
    (project.folder / "device.py").write_text(_DEVICE)
    code = project.folder / f"{project.module}.py"
    entry = "def scale(x, how):\n    with allocated(len(x)):\n        return 2 * x\n"
    code.write_text(
        "from device import allocated\n\n\ndef reference(x):\n    return 2 * x\n\n\n" + entry
    )
    words = ("tlmatrix", "run", ".", "-n", "2", "-k", "dtype=float32", "--results", "out.jsonl")
    out = project.run(*words, code=ExitCode.FINDINGS).out
    assert "7 cases in" in out
    assert "6 passed, 1 error" in out
    (failed,) = [each for each in read_records(project.folder / "out.jsonl").results if each.failed]
    assert failed.values["rows"] == 90
    assert failed.findings[0].title.endswith("; also while no other case ran")
    seen = [
        tuple(map(int, line.split())) for line in (project.folder / "seen").read_text().splitlines()
    ]
    assert [used for needed, used in seen if needed == 90][-1] == 0


@pytest.mark.parametrize("place", ["a file", "below a file", "full"])
def test_results_that_cannot_be_written_are_one_line(project, place):
    project.spec(rows="[5]")
    (project.folder / "file").write_text("")
    (project.folder / "full.jsonl").symlink_to("/dev/full")
    path = {"a file": "file", "below a file": "file/out.jsonl", "full": "full.jsonl"}[place]
    outcome = project.tlmatrix("run", ".", "-n", "0", "--results", path, code=ExitCode.INTERNAL)
    lines = [line for line in outcome.out.splitlines() if line]
    assert len(lines) == 1
    assert "the results cannot be written: " in lines[0]
    outcome = project.pytest(".", "-q", "-n", "0", "--tlmatrix-results", path)
    assert outcome.code == pytest.ExitCode.USAGE_ERROR, outcome.out
    assert "the results cannot be written: " in outcome.out
    assert "Traceback" not in outcome.out


@pytest.mark.parametrize("command", ["run", "pytest"])
def test_a_disk_that_fills_up_leaves_the_report(project, monkeypatch, command):
    from tlmatrix.run import records

    project.spec(how="[right, wrong]", rows="[5]")
    write = records.os.write
    left = [3]

    def filling(file, data):
        if not data.lstrip().startswith(b'{"record"'):
            return write(file, data)
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr("tlmatrix.run.records.os.write", filling)
    if command == "run":
        outcome = project.tlmatrix("run", ".", "-n", "0", "--results", "out.jsonl")
        assert outcome.code == ExitCode.INTERNAL, outcome.out
        assert "4 cases in" in outcome.out
        assert "2 passed, 2 failed" in outcome.out
    else:
        outcome = project.pytest(".", "-q", "-n", "0", "--tlmatrix-results", "out.jsonl")
        assert outcome.code == pytest.ExitCode.INTERNAL_ERROR, outcome.out
        assert "2 failed, 2 passed" in outcome.out
    assert "results are missing in out.jsonl: No space left on device" in outcome.out
    assert "Traceback" not in outcome.out


def test_a_case_that_pytest_skips_or_cannot_run_is_in_the_results(project):
    project.spec(rows="[5]")
    (project.folder / "conftest.py").write_text(
        "import pytest\n\n\ndef pytest_runtest_setup(item):\n"
        "    if 'float16' in item.name:\n        pytest.skip('a rule of the project')\n"
        "    raise OSError('no such room')\n"
    )
    outcome = project.pytest(".", "-q", "-n", "0", "--tlmatrix-results", "out.jsonl")
    assert outcome.code == pytest.ExitCode.TESTS_FAILED, outcome.out
    skipped, error = sorted(
        read_records(project.folder / "out.jsonl").results, key=lambda result: result.case
    )
    assert (skipped.status, skipped.reason) == (Status.SKIPPED, "pytest")
    assert skipped.message == "a rule of the project"
    assert error.status is Status.ERROR
    assert "no such room" in error.findings[0].title


@pytest.mark.parametrize(
    "words",
    [("tlmatrix", "run", "."), ("pytest", ".", "-n", "2"), ("tlmatrix", "fuzz", ".", "-n", "2")],
)
def test_workers_end_when_the_main_process_is_killed(project, words):
    project.spec(how="[stuck]", rows="[5]", more="fuzz: {examples: {quick: 4}}")
    process = project.start(*words)
    file = project.folder / "processes"
    wanted = 1 if words == ("tlmatrix", "run", ".") else 2
    wait_until(lambda: file.exists() and file.read_text().count("\n") >= wanted)
    workers = [Path(f"/proc/{line}/stat") for line in file.read_text().split()]
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(_runs, workers)), 2)


def _runs(stat):
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("words", "times"), [(("tlmatrix", "run", "."), 1000), (("pytest", ".", "-q"), 1)]
)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c_keeps_the_way_to_continue(project, words, times, workers):
    project.spec(how="[slow]", rows="[1, 2, 3]")
    process = project.start(*words, "-n", workers)
    files = project.folder.rglob
    wait_until(lambda: any('"start"' in file.read_text() for file in files("*.jsonl")))
    for _ in range(times):  # until Python itself ends
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if words[0] == "tlmatrix" else 2), out
    assert "to continue this run: tlmatrix run --resume .tlmatrix" in out
    (file,) = project.folder.rglob("*.jsonl")
    assert read_records(file).summary is None


def test_workers_hide_gpus_from_specs_alone(project, monkeypatch):
    """A test beside specs may need several GPUs, and skipped where it saw one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    project.spec(how="[gpus]", rows="[5, 6]")
    (project.folder / "test_gpus.py").write_text(
        "import os\n\n\ndef test_gpus():\n    assert os.environ['CUDA_VISIBLE_DEVICES'] == '0,1'\n"
    )
    project.run("pytest", "test_gpus.py", "-n", "1", code=0)
    project.run("pytest", "scale.yaml", "-n", "2", "--tlmatrix-backend", "auto", code=0)
    assert set((project.folder / "seen").read_text().split()) == {"0", "1"}
