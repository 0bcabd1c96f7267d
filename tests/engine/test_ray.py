"""`run --ray` and `fuzz --ray` on a cluster of two nodes, of which one is killed in the middle."""

import json
import os
import threading
import time
from collections import Counter

import pytest

from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import Status, read_records

_FUZZ = """\
fuzz:
  axes: {rows: 1..300}
  examples: {quick: 12}
"""


@pytest.mark.parametrize("command", ["run", "fuzz"])
def test_without_ray_the_extra_is_named(project, monkeypatch, command):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    project.spec(more=_FUZZ)
    outcome = project.tlmatrix(command, ".", "--ray", code=ExitCode.USAGE)
    assert "pip install 'tlmatrix[ray]'" in outcome.out


def _counted(file):
    """How many results the file has of each case."""
    lines = map(json.loads, file.read_text().splitlines())
    return Counter(line["case"] for line in lines if line["record"] == "case")


def test_a_killed_node_loses_nothing_and_nothing_counts_twice(project):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tlmatrix[ray]'")
    from ray.cluster_utils import Cluster

    # Two of the cases end their process: a worker takes seconds to start.
    project.spec(how="[right, wrong, exit_late, slow]", rows="[1, 2, 17]")
    (project.folder / "pyproject.toml").write_text("[tool.tlmatrix]\ntimeout = 60\n")
    file = project.folder / "out.jsonl"
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    first, second = (cluster.add_node(num_cpus=1) for _ in range(2))

    def kill_when_half_done():
        while not file.exists() or file.read_text().count('"record":"case"') < 8:
            time.sleep(0.1)
        cluster.remove_node(second, allow_graceful=False)

    thread = threading.Thread(target=kill_when_half_done, daemon=True)
    thread.start()
    try:
        outcome = project.tlmatrix(
            "run", ".", "--ray", cluster.address, "--results", str(file), "--backend", "interpreter"
        )
        thread.join()
    finally:
        cluster.shutdown()
    assert first is not second
    assert outcome.code == ExitCode.FINDINGS, outcome.out
    assert "24 cases in" in outcome.out
    assert set(_counted(file).values()) == {1}
    records = read_records(file)
    statuses = {(result.values["how"], result.status) for result in records.results}
    assert len(records.results) == 24
    assert statuses == {
        ("right", Status.PASSED),
        ("slow", Status.PASSED),
        ("wrong", Status.FAILED),
        ("exit_late", Status.PASSED),
        ("exit_late", Status.CRASHED),
    }
    assert records.summary is not None
    assert records.summary.counts == {"passed": 16, "failed": 6, "crashed": 2}


@pytest.mark.skipif(
    os.environ.get("TLMATRIX_TEST_RAY") != "all", reason="takes 40 s: make test-ray"
)
def test_a_search_on_a_cluster_loses_nothing_with_a_killed_node(project):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tlmatrix[ray]'")
    from ray.cluster_utils import Cluster

    project.spec(how="[right, wrong, exit, slow]", rows="[1]", more=_FUZZ)
    (project.folder / "pyproject.toml").write_text("[tool.tlmatrix]\ntimeout = 60\n")
    file = project.folder / "out.jsonl"
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    _, second = (cluster.add_node(num_cpus=1) for _ in range(2))
    killed = []

    def kill_in_the_middle():
        while not file.exists() or file.read_text().count('"record":"case"') < 8:
            time.sleep(0.1)
        cluster.remove_node(second, allow_graceful=False)
        killed.append(file.read_text().count('"record":"case"'))

    thread = threading.Thread(target=kill_in_the_middle, daemon=True)
    thread.start()
    try:
        outcome = project.tlmatrix(
            "fuzz", ".", "--ray", cluster.address, "--results", str(file), "--examples", "40",
            "--backend", "interpreter",
        )  # fmt: skip
        thread.join()
    finally:
        cluster.shutdown()
    assert outcome.code == ExitCode.FINDINGS, outcome.out
    assert "40 examples in" in outcome.out
    assert "2 faults" in outcome.out
    assert killed[0] < 40
    assert set(_counted(file).values()) == {1}
    records = read_records(file)
    assert len(records.results) == 40
    statuses = {(result.values["how"], result.status) for result in records.results}
    assert statuses <= {
        ("right", Status.PASSED),
        ("slow", Status.PASSED),
        ("wrong", Status.FAILED),
        ("exit", Status.CRASHED),
    }
    assert records.summary is not None
    assert sum(records.summary.counts.values()) == 40
