"""Intervals hold what they promise, and verdicts follow from them."""

import random

import pytest

from tlmatrix.bench.statistics import Interval, Verdict, interval, speed_between_runs, speed_ratio


@pytest.mark.parametrize(("count", "low", "high"), [(20, 6, 15), (10, 2, 9), (6, 1, 6), (3, 1, 3)])
def test_interval_ranks_match_published_tables(count, low, high):
    # Conover, table A3: the two-sided 95 % ranks of the median.
    found = interval([float(number) for number in range(1, count + 1)])
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize("count", [20, 33, 200])
def test_interval_coverage_is_at_least_nominal(count):
    source = random.Random(1)
    # Skewed, as times are: the median of an exponential is log 2.
    held = 0
    for _ in range(400):
        found = interval([source.expovariate(1.0) for _ in range(count)])
        held += found.low <= 0.693147 <= found.high
    assert 0.93 <= held / 400 <= 0.99


def test_no_sample_has_no_median():
    with pytest.raises(ValueError, match="samples is empty"):
        interval([])


def test_speedup_is_baseline_time_over_own_time():
    assert speed_ratio([1.0] * 9, [2.0] * 9) == Interval(2.0, 2.0, 2.0)
    assert speed_between_runs(Interval(2.0, 1.9, 2.1), Interval(1.0, 0.95, 1.05)) == Interval(
        0.5, pytest.approx(0.95 / 2.1), pytest.approx(1.05 / 1.9)
    )


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.03, 1.05, Verdict.FASTER),
        (0.99, 1.01, Verdict.SAME),
        (0.98, 1.02, Verdict.SAME),
        (0.90, 0.97, Verdict.SLOWER),
        (1.01, 1.03, Verdict.UNSURE),
        (0.97, 1.00, Verdict.UNSURE),
        (0.90, 1.10, Verdict.UNSURE),
    ],
)
def test_the_verdict_asks_the_whole_interval(low, high, verdict):
    assert Interval((low + high) / 2, low, high).verdict() is verdict


def test_equal_samples_rarely_differ_significantly():
    source = random.Random(2)
    wrong = 0
    for _ in range(200):
        times = [[source.gauss(1.0, 0.03) for _ in range(50)] for _ in range(2)]
        wrong += speed_ratio(*times).verdict() in (Verdict.FASTER, Verdict.SLOWER)
    assert wrong <= 2
