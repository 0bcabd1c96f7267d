"""What tasks of a Ray cluster wait for is said after seconds, and given up after minutes."""

from tlmatrix.engine.ray import GIVE_UP_AFTER, NOTE_AFTER, ClusterState, Resources, Waiting

_ONE, _FOUR_GPUS = Resources(), Resources(gpus=4)


class _Cluster:
    """A cluster and a clock that tests set."""

    def __init__(self, *nodes, free):
        self.state = ClusterState(nodes, free)
        self.now = 0.0
        self.notes: list[str] = []
        self.waiting = Waiting(self.notes.append, state=lambda: self.state, clock=lambda: self.now)

    def look(self, needs, *, until, busy=False):
        found = {}
        while self.now < until:
            self.now += 2
            if busy:
                self.waiting.busy()
            found = self.waiting.in_vain(needs)
        return found


def test_a_busy_cluster_is_said_once_and_never_given_up():
    cluster = _Cluster(Resources(4), Resources(8), free=Resources(0))
    assert not cluster.look({_ONE}, until=NOTE_AFTER - 2)
    assert cluster.notes == []
    assert not cluster.look({_ONE}, until=10 * GIVE_UP_AFTER)
    (note,) = cluster.notes
    assert note.startswith(
        "no task has begun; each needs 1 CPU of a node, and 0 CPUs of 12 CPUs of 2"
    )
    assert "Ctrl-C stops" in note


def test_nothing_is_said_while_a_task_runs():
    cluster = _Cluster(Resources(4), free=Resources(0))
    assert not cluster.look({_ONE}, until=GIVE_UP_AFTER, busy=True)
    assert cluster.notes == []


def test_what_no_node_has_is_given_up():
    cluster = _Cluster(Resources(16, 2), Resources(16, 2), free=Resources(32, 4))
    assert not cluster.look({_ONE, _FOUR_GPUS}, until=GIVE_UP_AFTER - 2)
    (note,) = cluster.notes
    assert note.startswith(
        "waiting for a node with 1 CPU and 4 GPUs; its nodes have 16 CPUs and 2 GPUs. Without one"
    )
    found = cluster.look({_ONE, _FOUR_GPUS}, until=GIVE_UP_AFTER + 10)
    assert found == {
        _FOUR_GPUS: "no node of the Ray cluster has 1 CPU and 4 GPUs; its nodes have 16 CPUs and "
        "2 GPUs"
    }


def test_a_node_that_joins_in_time_ends_the_wait():
    cluster = _Cluster(free=Resources(0))
    cluster.look({_ONE}, until=GIVE_UP_AFTER - 10)
    assert "it has no node" in cluster.notes[0]
    cluster.state = ClusterState([Resources(4)], Resources(4))
    assert not cluster.look({_ONE}, until=3 * GIVE_UP_AFTER)
