"""Who is called when, and for how long."""

from tlmatrix.bench.timing import Schedule, Timing, interleaved


def recorded(device=1.0, host=0.02):
    """A clock that notes each call and its lead, and two calls to time."""
    seen = []
    calls = {"one": lambda: seen.append("one"), "two": lambda: seen.append("two")}
    leads = []

    def clock(call, lead):
        call()
        leads.append(lead)
        return Timing(device, host)

    return seen, leads, calls, clock


def test_rounds_follow_from_the_time_budget():
    for seconds, device, rounds in ((1.0, 9.5, 50), (0.01, 9.5, 20), (100.0, 9.5, 200)):
        seen, _, calls, clock = recorded(device)
        found = interleaved(calls, clock, Schedule(seconds=seconds, warmup=1))
        assert len(found["one"].device) == len(found["two"].device) == rounds
        assert len(seen) == 2 * rounds + 2


def test_launch_lead_follows_the_host_time():
    _, leads, calls, clock = recorded(host=0.7)
    found = interleaved(calls, clock, Schedule(seconds=0.01, warmup=2))
    assert leads[:4] == [0.0] * 4
    assert set(leads[4:]) == {0.7}
    assert found["one"].host == 0.7


def test_warm_up_is_not_counted():
    times = iter([100.0] * 6 + [1.0] * 1000)
    found = interleaved(
        {"one": int, "two": int}, lambda _call, _lead: Timing(next(times), 0.0), Schedule()
    )
    assert max(found["one"].device) == 1.0
