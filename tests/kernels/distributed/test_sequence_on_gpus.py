"""Sequence-parallel attention on real GPUs, a process a rank."""

import on_gpus
import pytest
import sequence_on_gpus
import torch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    "job",
    [sequence_on_gpus.back_to_back_with_stragglers, sequence_on_gpus.replayed_from_a_graph],
    ids=lambda job: job.__name__,
)
def test_each_rank_attends_to_the_keys_of_all(job, world):
    count = torch.cuda.device_count()
    if count < world:
        pytest.skip(f"needs {world} GPUs, and there are {count}")
    assert on_gpus.run_on_ranks(job, world) == {}
