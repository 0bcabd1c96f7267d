"""The algebra of a batch: tensors of sequences, rows, and both at once."""

import pytest
import torch

from tlmatrix.problem.relations.batch import inverse, place, select, singles, without

LENGTHS = (2, 0, 3, 1)
X = torch.arange(6.0)[:, None] * 10 + torch.arange(4.0)


@pytest.mark.parametrize(
    ("order", "rows"),
    [
        ([2, 0], [2, 3, 4, 0, 1]),
        ([1], []),
        ([1, 0, 1], [0, 1]),
        ([], []),
        ([3, 2, 1, 0], [5, 2, 3, 4, 0, 1]),
    ],
)
def test_sequences_are_selected_in_their_order(order, rows):
    got = select(X, {0: LENGTHS}, order)
    assert torch.equal(got, X[torch.tensor(rows, dtype=torch.int64)])


def test_consecutive_sequences_are_a_view():
    part = select(X, {0: LENGTHS}, range(2, 4))
    assert part.tolist() == X[2:].tolist()
    assert part.untyped_storage().data_ptr() == X.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool, torch.bfloat16])
def test_any_dtype(dtype):
    values = X.to(dtype)
    assert torch.equal(
        select(values, {0: LENGTHS}, [2, 0]).float(), values.float()[[2, 3, 4, 0, 1]]
    )


def test_a_tensor_with_sequences_along_two_dimensions():
    scores = torch.arange(36.0).view(6, 1, 6)
    both = {0: LENGTHS, 2: LENGTHS}
    rows = torch.tensor([2, 3, 4, 0, 1])
    part = select(scores, both, [2, 0])
    assert torch.equal(part, scores[rows][:, :, rows])
    target = torch.zeros_like(scores)
    place(target, both, [2, 0], part)
    kept = [row != 5 for row in range(6)]
    assert torch.equal(target[kept][:, :, kept], scores[kept][:, :, kept])
    assert not target[5].any()


def test_what_is_placed_is_what_is_selected():
    target = torch.zeros_like(X)
    for order in ([3, 0], [1, 2]):
        place(target, {0: LENGTHS}, order, select(X, {0: LENGTHS}, order))
    assert torch.equal(target, X)


def test_rows_are_sequences_of_one_element():
    order = [2, 0, 1, 3]
    moved = select(X, singles(X, 1), order)
    assert torch.equal(moved, X[:, order])
    assert torch.equal(select(moved, singles(X, 1), inverse(order)), X)
    assert torch.equal(without(X, 1, 2), X[:, [0, 1, 3]])
    assert torch.equal(without(X, 0, 0), X[1:])
