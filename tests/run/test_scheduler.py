"""Cases are handed to workers, also to one that takes the place of a worker that died."""

from __future__ import annotations

from types import SimpleNamespace

from xdist.remote import Producer

from tlmatrix.plugin.scheduler import CaseScheduling

_GROUPS = {"a": "one", "b": "one", "c": "two", "d": "three", "e": "four", "f": "five"}


class _Worker:
    """Runs tests as pytest-xdist's workers do: never the last one it has, until told to end."""

    def __init__(self, name: str, dies_at: str = "") -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queue: list[int] = []
        self.ran: list[str] = []
        self.dies_at = dies_at

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def step(self, scheduling: CaseScheduling) -> str:
        """Run one test: what became of the worker."""
        if len(self.queue) < (1 if self.shutting_down else 2):
            return "ended" if self.shutting_down else "waits"
        index = self.queue.pop(0)
        name = scheduling.collection[index]
        self.ran.append(name)
        if name == self.dies_at:
            return "dead"
        scheduling.mark_test_complete(self, index)
        return "ran"


def _scheduling(
    workers: int, groups: dict[str, str] = _GROUPS, *, largest_first: bool = False
) -> CaseScheduling:
    option = SimpleNamespace(loadscopereorder=largest_first)
    config = SimpleNamespace(getvalue=lambda _name: ["popen"] * workers, option=option)
    return CaseScheduling(config, Producer("test", enabled=False), lambda: groups)


def _join(scheduling: CaseScheduling, worker: _Worker, groups: dict[str, str] = _GROUPS) -> None:
    scheduling.add_node(worker)
    scheduling.add_node_collection(worker, list(groups))
    if scheduling.collection_is_completed:
        scheduling.schedule()


def _run(scheduling: CaseScheduling, worker: _Worker) -> str:
    while (state := worker.step(scheduling)) == "ran":
        pass
    return state


def test_groups_stay_on_one_worker_and_every_case_runs() -> None:
    scheduling = _scheduling(2)
    workers = [_Worker("gw0"), _Worker("gw1")]
    for worker in workers:
        _join(scheduling, worker)
    while any(worker.step(scheduling) == "ran" for worker in workers):
        pass
    assert sorted(workers[0].ran + workers[1].ran) == list(_GROUPS)
    assert any(worker.ran[:2] == ["a", "b"] for worker in workers)


def test_the_replacement_of_a_dead_worker_runs_groups_of_one() -> None:
    scheduling = _scheduling(1)
    first = _Worker("gw0", dies_at="c")
    _join(scheduling, first)
    assert _run(scheduling, first) == "dead"
    assert scheduling.remove_node(first) == "c"
    second = _Worker("gw1")
    _join(scheduling, second)
    assert _run(scheduling, second) == "ended"
    assert sorted(first.ran + second.ran) == list(_GROUPS)


def test_regressions_run_before_larger_groups() -> None:
    groups = {"a": "x", "b": "x", "c": "x", "d": "y-regressions", "e": "z", "f": "z-regressions"}
    scheduling = _scheduling(1, groups, largest_first=True)
    worker = _Worker("gw0")
    _join(scheduling, worker, groups)
    assert _run(scheduling, worker) == "ended"
    assert worker.ran == ["d", "f", "a", "b", "c", "e"]
