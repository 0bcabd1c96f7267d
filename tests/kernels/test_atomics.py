"""The atomics' operators, beyond their specs: what they are judged against is told apart."""

import pytest
import torch

from tlmatrix import interpret
from tlmatrix_kernels.atomics import atomic_add_layout, atomic_cells
from tlmatrix_kernels.atomics.reference import cells_after, sum_of_parts

OTHER_ORDERS = {
    "swizzle": lambda i, j: i * 64 + (j // 8 ^ i % 8) * 8 + j % 8,
    "quads": lambda i, j: j // 8 * 128 + (i % 8 * 4 + j % 8 // 2) * 4 + i // 8 * 2 + j % 2,
    "pitch": lambda i, j: i * 72 + j,
}


@pytest.mark.parametrize("order", OTHER_ORDERS)
def test_the_reference_places_each_element_where_the_order_says(order):
    x = torch.arange(1, 1 + 16 * 64, dtype=torch.float32).view(1, 16, 64)
    _, memory = sum_of_parts(x, order)
    for i, j in [(0, 0), (0, 9), (1, 0), (7, 63), (8, 1), (13, 42), (15, 63)]:
        assert memory[OTHER_ORDERS[order](i, j)] == x[0, i, j]


def test_ignoring_the_order_changes_memory():
    x = torch.randn(2, 16, 64)
    with interpret():
        _, rows = atomic_add_layout(x, order="rows")
        _, quads = atomic_add_layout(x, order="quads")
    assert not torch.equal(rows, quads)
    assert torch.equal(rows.sort().values, quads.sort().values)


def test_tickets_of_a_cell_are_consecutive_for_any_order():
    x, start = torch.zeros(100, dtype=torch.int32), torch.tensor([7], dtype=torch.int32)
    with interpret():
        cells, found = atomic_cells(x, start, previous=True)
    assert cells.tolist() == [107]
    assert found.tolist() == list(range(7, 107))
    assert [t.tolist() for t in cells_after(x, start, previous=True)] == [[107], found.tolist()]


@pytest.mark.parametrize("count", [255, 262, 300])
def test_bfloat16_count_saturates_like_the_reference(count):
    x, start = torch.ones(count, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16)
    cells, found = cells_after(x, start, previous=True)
    assert cells.item() == min(count + 1, 256)
    assert found.tolist() == [min(n, 256) for n in range(1, count + 1)]
    exact, _ = cells_after(x.double(), start.double())
    assert exact.item() == count + 1
    with interpret():
        assert torch.equal(atomic_cells(x, start, operation="add", previous=False)[0], cells)


def test_the_reference_adds_a_million_ones_at_once():
    x, start = torch.ones(2**20, dtype=torch.int32), torch.tensor([5, 0, 0], dtype=torch.int32)
    cells, found = cells_after(x, start, previous=True)
    assert cells.tolist() == [5 + 349526, 349525, 349525]
    assert found[:3].tolist() == [5, 6, 7]
    assert found[349526:349529].tolist() == [0, 1, 2]
