"""The time left is right within a factor of 1.5 from a tenth of the run on."""

import heapq
import random
from collections import Counter

import pytest

from tlmatrix.report.tally import Forecast, duration_text


def _lognormal(rng, path, cases, mean, first=0):
    """Durations that vary by a factor of two or so; the first case compiles."""
    found = [(path, mean * rng.lognormvariate(-0.18, 0.6)) for _ in range(cases)]
    return [(path, first + found[0][1]), *found[1:]]


def _ended(cases, workers):
    """(time, path, seconds) of the ends of cases that workers take in order."""
    free = [0.0] * workers
    events = []
    for path, seconds in cases:
        end = heapq.heappop(free) + seconds
        heapq.heappush(free, end)
        events.append((end, path, seconds))
    return sorted(events)


def _worst_factor(cases, workers, earlier):
    """The largest factor between forecast and truth, from a tenth of the run to nine tenths."""
    forecast = Forecast(Counter(path for path, _ in cases), earlier)
    events = _ended(cases, workers)
    total = events[-1][0]
    worst, forecasts = 1.0, 0
    for now, path, seconds in events:
        forecast.ended(path, seconds, now + 1000)
        if 0.1 * total <= now <= 0.9 * total:
            left = forecast.left(now + 1000)
            assert left is not None
            forecasts += 1
            worst = max(worst, left / (total - now), (total - now) / left)
    assert forecasts > 10
    return worst


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("seed", range(4))
def test_one_spec_without_earlier_runs(workers, seed):
    rng = random.Random(seed)
    cases = _lognormal(rng, "x", 600, 0.2, first=3.0)
    assert _worst_factor(cases, workers, {}) < 1.5


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("speed", [0.6, 1.0, 2.0])
def test_fast_specs_before_slow_ones_with_an_earlier_run(workers, speed):
    rng = random.Random(7)
    means = {"gemm": 0.02, "gqa": 0.6, "decode": 0.1}
    cases = [
        case
        for path, mean in means.items()
        for case in _lognormal(rng, path, 200, speed * mean, first=1.0)
    ]
    assert _worst_factor(cases, workers, means) < 1.5


def test_specs_of_unknown_duration_give_no_forecast():
    forecast = Forecast({"fast": 10, "never ran": 90}, {})
    for number in range(10):
        forecast.ended("fast", 0.1, 0.1 * number + 0.1)
    assert forecast.left(1.0) is None
    forecast.ended("never ran", 5.0, 6.0)
    forecast.ended("never ran", 2.0, 8.0)
    assert forecast.left(8.0) == pytest.approx(88 * 2)


def test_before_the_first_case_and_after_the_last_there_is_no_forecast():
    forecast = Forecast({"x": 1}, {"x": 1.0})
    assert forecast.left(0.0) is None
    forecast.ended("x", 1.0, 1.0)
    assert forecast.left(1.0) is None


def test_durations_are_rounded_to_what_is_known():
    assert [duration_text(s) for s in (0.2, 40.4, 99, 130, 12_000)] == [
        "1 s",
        "40 s",
        "99 s",
        "2 min",
        "3 h 20 min",
    ]
