"""What a rank raises arrives as it left, or as its type and message; what hangs is located."""

import pickle
from pathlib import Path

import pytest

from tlmatrix.backend.errors import BindingError, EntryError
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.distributed.failures import Failure, hang_error, raise_failures
from tlmatrix.spec.issues import Issue

ISSUES = [Issue(Path("a.yaml"), 5, 8, "entry: no gradient"), Issue(Path("a.yaml"), 7, 1, "axes")]


class MeasuredError(ValueError):
    """Makes its message of what it is given, as `pickle` does not expect."""

    def __init__(self, size):
        super().__init__(f"{size} rows are too many")


class HoldingError(ValueError):
    """Holds what cannot be pickled."""

    def __init__(self, message):
        super().__init__(message)
        self.callback = lambda: None


def sent(error):
    return pickle.loads(pickle.dumps(Failure.of(error).picklable()))


def test_what_is_wrong_with_a_spec_keeps_its_places():
    with pytest.raises(BindingError) as raised:
        raise_failures({0: sent(BindingError(ISSUES))}, 2)
    assert list(raised.value.issues) == ISSUES


def test_findings_stay_findings():
    finding = Finding("numeric", "out is wrong")
    with pytest.raises(FindingsError) as raised:
        raise_failures({1: sent(FindingsError([finding]))}, 2)
    assert raised.value.findings == (finding,)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("no such shard"), "ValueError: no such shard"),
        (MeasuredError(7), "RuntimeError: MeasuredError: 7 rows are too many"),
        (HoldingError("at 3"), "RuntimeError: HoldingError: at 3"),
    ],
)
def test_an_error_of_any_class_keeps_its_type_and_message(error, shown):
    with pytest.raises(EntryError, match=f"^rank 1 of 2: {shown}$"):
        raise_failures({1: sent(EntryError(error))}, 2)


# Hangs, by the locations of main threads -------------------------------------------------------

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
