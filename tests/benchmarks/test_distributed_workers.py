"""Steps of several processes: results, and what a failure or a hang costs."""

import sys
from pathlib import Path

import pytest
import worker_steps

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from distributed_workers import Step, efficiency, run_steps

pytestmark = pytest.mark.usefixtures("preloaded")


def test_failing_or_hanging_step_leaves_the_others():
    steps = [
        Step("adds", worker_steps.add_ranks, (10,)),
        Step("fails", worker_steps.fail_on_one),
        Step("adds again", worker_steps.add_ranks, (20,)),
        Step("hangs", worker_steps.hang_on_one, limit=1),
    ]
    adds, fails, again, hangs = run_steps(steps, 2, "gloo")
    assert (adds.result, again.result) == (21, 41)
    assert adds.error is None
    assert "rank 1 of 2: " in fails.error
    assert "rank one does not like it" in fails.error
    assert "did not come back within 1 s" in hangs.error


def test_the_efficiency_is_one_with_the_shorter_hidden_and_zero_in_turn():
    assert efficiency([4.0], [1.0], [4.0]) == [1.0] * 3
    assert efficiency([1.0], [4.0], [5.0]) == [0.0] * 3
    of_rounds = efficiency([4.0] * 3, [1.0] * 3, [4.5, 4.0, 5.0])
    assert of_rounds == [0.0, 0.5, 1.0]
