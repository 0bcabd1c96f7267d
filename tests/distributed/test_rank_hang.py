"""Errors for ranks that hang, by the locations of their main threads."""

import pytest

from tlmatrix.distributed.failures import hang_error

ON_GPU = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 355 in wait
Current thread 0x00007f2 (most recent call first):
  File "/site-packages/torch/cuda/__init__.py", line 1162 in synchronize
  File "/home/someone/entry.py", line 7 in gathered
"""
IN_A_COLLECTIVE = """Current thread 0x00007f2 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 4700 in barrier
  File "/home/someone/entry.py", line 9 in gathered
"""

MAKING_MEMORY = """Current thread 0x00007f2 (most recent call first):
  File "/site-packages/torch/distributed/_symmetric_memory/__init__.py", line 1991 in rendezvous
  File "/home/someone/memory.py", line 68 in allocate
"""


def error_for(stacks, returned=()):
    (finding,) = hang_error(
        len(stacks) + len(returned), returned, dict(enumerate(stacks)), 120.0
    ).findings
    return finding


def test_busy_gpus_are_a_possible_cause():
    """Forty processes on one GPU made a right case look like this."""
    finding = error_for([ON_GPU, ON_GPU])
    assert finding.title == "every rank did not come back within 120 s"
    assert "a flag that no rank sets" in finding.hint
    assert "other processes keep the GPUs busy" in finding.hint
    assert "`--timeout SECONDS` sets a longer time" in finding.hint
    assert "called at /home/someone/entry.py:7 in gathered" in finding.detail


@pytest.mark.parametrize("stacks", [[ON_GPU, IN_A_COLLECTIVE], [IN_A_COLLECTIVE] * 2])
def test_ranks_in_collectives_wait_for_each_other(stacks):
    hint = error_for(stacks).hint
    assert "a collective that not every rank calls" in hint
    assert hint.endswith("on simulated ranks and reports what each one waits for")


def test_a_rank_in_rendezvous_may_have_lost_a_signal():
    """As on two H200, where the other rank had gone on and waited for its GPU."""
    finding = error_for([ON_GPU, MAKING_MEMORY])
    assert finding.hint.startswith("rank 1 of 2 in `rendezvous` of symmetric memory")
    assert "torch.cuda.synchronize() between `empty` and `rendezvous`" in finding.hint


def test_the_outlier_is_named():
    assert error_for([ON_GPU, IN_A_COLLECTIVE, ON_GPU]).hint.startswith("rank 1 is in other code")
