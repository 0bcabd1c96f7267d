"""What crosses to the process of a rank: a problem without its reference and error bounds."""

import torch

from tlmatrix.distributed.job import Call
from tlmatrix.problem.model import AutogradVariant, Problem


def test_a_rank_calls_the_entry_with_the_gradients_that_the_problem_asks_for():
    x = torch.ones(3)
    variant = AutogradVariant("some", requires=("x",))
    problem = Problem(
        values={}, names={}, inputs={"x": x}, outputs={}, returns=("y",),
        cotangents={"y": x}, gradient_of={"dx": "x"}, autograd=variant,
    )  # fmt: skip
    assert Call.of(problem).problem({}).autograd == variant
