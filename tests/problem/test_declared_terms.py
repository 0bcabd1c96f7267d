"""The sizes of the terms behind a result show where it cancels, and nowhere else."""

import torch

from tlmatrix.problem.declared.terms import term_sizes


def sizes_of(function, *inputs, seed=0):
    def evaluate():
        return {"y": function(*inputs)}

    return term_sizes(evaluate, evaluate(), seed)["y"]


def test_a_sum_that_cancels_has_the_size_of_its_terms():
    x = torch.linspace(1.0, 2.0, 50, dtype=torch.float64)
    sizes = sizes_of(lambda x: x * 3 - x * 2.999999999, x)
    assert (sizes > 0.01).all()
    assert (sizes < 20).all()


def test_a_plain_product_has_its_own_size():
    x = torch.linspace(1.0, 2.0, 50, dtype=torch.float64)
    sizes = sizes_of(lambda x: x * x, x)
    assert torch.equal(sizes, torch.maximum(x * x, sizes))
    assert (sizes < 2 * x * x).all()


def test_views_and_data_movement_add_nothing():
    x = torch.randn(6, 7, dtype=torch.float64)
    assert torch.equal(sizes_of(lambda x: x.T.reshape(7, 6).clone()[1:], x), x.T[1:].abs())


def test_the_same_seed_gives_the_same_sizes():
    x = torch.randn(20, dtype=torch.float64)
    assert torch.equal(*(sizes_of(torch.exp, x, seed=3) for _ in range(2)))
    assert not torch.equal(*(sizes_of(lambda x: x.exp() - x, x, seed=seed) for seed in (3, 4)))


def test_elements_that_are_not_finite_have_no_size():
    x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert sizes_of(torch.log, x).tolist() == [0.0, 0.0, sizes_of(torch.log, x)[2].item()]
