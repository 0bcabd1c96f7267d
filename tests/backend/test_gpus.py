"""Workers are assigned evenly to the GPUs that the user left visible."""

from collections import Counter

import pytest

from tlmatrix.backend import gpus
from tlmatrix.backend.gpus import GpuAssignment, memory_fraction, visible_gpus


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("2", ("2",)),
        ("3, 1", ("3", "1")),
        ("GPU-8932f937,MIG-1/2/3", ("GPU-8932f937", "MIG-1/2/3")),
        ("1,-1,2", ("1",)),
    ],
)
def test_visible_gpus_are_the_drivers_or_the_users(monkeypatch, given, found):
    monkeypatch.setattr(gpus, "count_gpus", lambda: 3)
    environment = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    assert visible_gpus(environment) == found


def test_workers_are_assigned_evenly_also_after_some_were_replaced():
    assignment = GpuAssignment(["0", "1", "2", "3"])
    held = {f"gw{number}": assignment.assign(f"gw{number}") for number in range(64)}
    assert set(Counter(held.values()).values()) == {16}
    for number in (1, 5, 9):  # all on GPU 1
        assignment.release(f"gw{number}")
        del held[f"gw{number}"]
    held |= {f"gw{number}": assignment.assign(f"gw{number}") for number in (64, 65, 66)}
    assert set(Counter(held.values()).values()) == {16}


@pytest.mark.parametrize(
    ("count", "workers", "summary"),
    [
        (4, 64, "64 workers on 4 GPUs, 16 each"),
        (4, 6, "6 workers on 4 GPUs, 1 or 2 each"),
        (4, 1, "1 worker on 1 of 4 GPUs"),
        (1, 8, ""),
        (4, 0, ""),
    ],
)
def test_the_summary_of_the_assignment(count, workers, summary):
    assert GpuAssignment([str(number) for number in range(count)]).summary(workers) == summary


def test_workers_share_the_memory_of_a_gpu():
    gigabyte = 2**30
    assert memory_fraction(80 * gigabyte, 1) == 1
    for workers in (2, 16):
        each = 80 * memory_fraction(80 * gigabyte, workers)
        assert workers * (each + 0.5) < 80 < workers * (each + 0.7)
    assert 0 < 64 * memory_fraction(8 * gigabyte, 64) < 1
    assert GpuAssignment(["0", "1"]).sharers(5) == 3
    assert GpuAssignment([]).sharers(4) == 4
    assert GpuAssignment(["0"]).sharers(0) == 1


_CONFTEST = """
from tlmatrix.backend import gpus

gpus.count_gpus = lambda: 2
"""
_SEEN = """
import os

with open("seen.txt", "a") as file:
    file.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
"""


def _seen(project):
    return dict(line.split() for line in (project.folder / "seen.txt").read_text().splitlines())


@pytest.fixture
def several(project):
    """A project on a machine with two GPUs, whose code notes which of them its process has."""
    project.spec(how="[right]", rows="[1, 2, 3, 4, 5, 6]")
    code = project.folder / f"{project.module}.py"
    code.write_text(_SEEN + code.read_text())
    (project.folder / "conftest.py").write_text(_CONFTEST)
    return project


def test_each_worker_has_one_gpu_before_its_first_case(several):
    out = several.run("pytest", ".", "-n", "2", "--tlmatrix-results", "out.jsonl", code=0).out
    assert "tlmatrix: 2 workers on 2 GPUs, 1 each" in out
    assert sorted(_seen(several).values()) == ["0", "1"]


def test_the_users_choice_of_gpus_is_kept(several, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    out = several.run("tlmatrix", "run", ".", "-n", "2", "--results", "out.jsonl", code=0).out
    assert "12 cases of 1 spec; 2 workers on 2 GPUs, 1 each" in out
    assert sorted(_seen(several).values()) == ["5", "7"]


def test_a_search_spreads_its_workers_too(several, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    several.spec(how="[right]", more="fuzz: {axes: {rows: 1..300}, examples: {quick: 6}}\n")
    out = several.run("tlmatrix", "fuzz", ".", "-n", "2", "--results", "out.jsonl", code=0).out
    assert "6 examples of 1 spec, 2 workers on 2 GPUs, 1 each" in out
    seen = [line.split()[1] for line in (several.folder / "seen.txt").read_text().splitlines()]
    assert sorted(seen) == ["5", "7"]
