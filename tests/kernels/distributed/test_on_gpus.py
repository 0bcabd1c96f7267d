"""The communication layer on real GPUs, a process a rank."""

import on_gpus
import operators_on_gpus
import pytest
import torch

pytestmark = pytest.mark.cuda


@pytest.fixture(params=[2, 4])
def world(request):
    count = torch.cuda.device_count()
    if count < request.param:
        pytest.skip(f"needs {request.param} GPUs, and there are {count}")
    return request.param


@pytest.mark.parametrize(
    "job",
    [
        on_gpus.gathers_back_to_back,
        on_gpus.signals_through_new_memory,
        on_gpus.blocks_wait_for_pulls,
        on_gpus.blocks_signal_peers,
        on_gpus.all_blocks_of_all_ranks_meet,
    ],
    ids=lambda job: job.__name__,
)
def test_signals_are_ordered_between_ranks(job, world):
    assert on_gpus.run_on_ranks(job, world) == {}


@pytest.mark.parametrize(
    "job",
    [
        operators_on_gpus.products_of_rows_that_arrive,
        operators_on_gpus.products_whose_parts_travel,
        operators_on_gpus.graphs_replay_with_new_data,
    ],
    ids=lambda job: job.__name__,
)
def test_operators_are_right_back_to_back_with_stragglers(job, world):
    assert on_gpus.run_on_ranks(job, world) == {}
