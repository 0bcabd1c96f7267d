"""The scheduler and its policies, by agents that only log when they run."""

import random

import pytest

from tlmatrix.interpreter.sync.agents import Agent, Wait
from tlmatrix.interpreter.sync.barriers import Mbarrier, Rendezvous, Spin, ThreadBarrier
from tlmatrix.interpreter.sync.clocks import Order, join
from tlmatrix.interpreter.sync.deadlocks import deadlock
from tlmatrix.interpreter.sync.scheduler import InOrder, Prioritized, Scheduler, Uniform


def agent(name, generator, number=1):
    made = Agent(0, name, number)
    made.generator = generator
    return made


def steps(name, count, log):
    for _ in range(count):
        log.append(name)
        yield None
    log.append(name)


def run(scheduler):
    while (chosen := scheduler.pick()) is not None:
        scheduler.step(chosen)
    return scheduler.agents


def logged(policy, count=3, length=4):
    log = []
    scheduler = Scheduler(policy)
    scheduler.agents += [agent(str(k), steps(str(k), length, log), k + 1) for k in range(count)]
    assert run(scheduler) == []
    return "".join(log)


def test_in_order_an_agent_runs_until_it_waits():
    assert logged(InOrder()) == "000001111122222"


@pytest.mark.parametrize("policy", [Uniform, Prioritized])
@pytest.mark.parametrize("stragglers", [False, True])
def test_a_seed_is_one_interleaving_and_seeds_differ(policy, stragglers):
    def of(seed):
        return logged(policy(random.Random(seed), stragglers=stragglers))

    assert of(1) == of(1)
    found = {of(seed) for seed in range(20)}
    assert len(found) > 3
    assert all(sorted(log) == sorted("012" * 5) for log in found)


def test_an_agent_that_waits_is_resumed_with_the_value_and_the_clock():
    flag, seen = [], []

    def waiting():
        seen.append((yield Wait(lambda: bool(flag), lambda: "for a flag", lambda: {7: 3}, "value")))

    def setting():
        flag.append(1)
        yield None

    scheduler = Scheduler(InOrder())
    first = agent("first", waiting())
    scheduler.agents += [first, agent("second", setting(), 2)]
    assert run(scheduler) == []
    assert seen == ["value"]
    assert first.clock == {1: 1, 7: 3}


def test_agents_that_poll_run_when_no_other_can_and_end_in_a_deadlock():
    log, flag = [], []

    def polling():
        while not flag:
            log.append("poll")
            yield Spin()

    def working(sets):
        for _ in range(3):
            log.append("work")
            yield None
        flag.extend(sets)

    scheduler = Scheduler(InOrder())
    scheduler.agents += [agent("p", polling()), agent("w", working([1]), 2)]
    assert run(scheduler) == []
    assert log == ["poll", "work", "work", "work"]
    flag.clear()
    scheduler.agents += [agent("p", polling()), agent("w", working([]), 2)]
    (left,) = run(scheduler)
    assert left.name == "p"
    error = deadlock("a test", [left])
    assert "deadlock in a test" in str(error)
    assert "p waits in a loop that spins on memory" in str(error)
    assert [r.sanitizer for r in error.reports] == ["barriers"]


def test_a_phase_of_an_mbarrier_waits_for_threads_and_bytes():
    bar = Mbarrier("full[1]", 2)
    assert bar.passes(1)
    assert not bar.passes(0)
    assert bar.arrive(1, {1: 4}, "threads 0..0", 1)
    bar.expect(16)
    assert bar.arrive(1, {2: 5}, "threads 1..1", 2)
    assert not bar.passes(0)
    # No thread may arrive before the bytes have come.
    assert not bar.arrive(1, {3: 1}, "threads 2..2", 3)
    bar.add_bytes(16, {4: 6})
    assert bar.passes(0)
    assert bar.released.items() >= {1: 4, 2: 5, 4: 6}.items()
    assert bar.subject() == ("full", (1,))


def test_a_barrier_of_threads_can_be_used_again():
    bar = ThreadBarrier("T.sync_threads", 64)
    first = bar.arrive(32, {1: 1})
    assert not first.ready()
    assert "32 of 64 threads" in first.describe()
    second = bar.arrive(32, {2: 1})
    assert first.ready()
    assert second.ready()
    assert bar.released == {1: 1, 2: 1}
    assert not bar.arrive(32, {1: 2}).ready()


def test_the_last_member_of_a_rendezvous_leads():
    meeting = Rendezvous((0, 2))
    assert not meeting.arrive(2, {5: 1}, "b")
    assert meeting.absent == [0]
    assert meeting.arrive(0, {6: 1}, "a")
    assert meeting.brought == {0: "a", 2: "b"}
    assert meeting.clock == {5: 1, 6: 1}


def test_an_agent_that_has_ended_is_included_by_what_stands_for_it():
    order = Order()
    clock = {1: 2}
    join(clock, {1: 1, 3: 9})
    assert clock == {1: 2, 3: 9}
    assert not order.knows(clock, 8, 1)
    order.retired[8] = (3, 9)
    assert order.knows(clock, 8, 1)
    clock[8] = 1
    order.forget(clock)
    assert clock == {1: 2, 3: 9}
