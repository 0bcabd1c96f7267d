"""Proofs of kernels of tests: `answers(call, …)` calls kernels that are traced and do not run."""

from collections.abc import Callable
from typing import Any

import torch

from tlmatrix.check.memory import unwritten
from tlmatrix.interpreter import traced
from tlmatrix.prove.answers import Proof
from tlmatrix.prove.kernels import prove_kernel
from tlmatrix.prove.launches import Observer


def answers(*calls: Callable[[], Any], given: dict[str, str] | None = None) -> dict[str, Proof]:
    """The proofs of the one kernel that calls launch, by `PROPERTY of SUBJECT`."""
    observer = Observer("sm_90a")
    with traced(arch="sm_90a", on_launch=observer.on_launch):
        for call in calls:
            call()
    (use,) = observer.uses()
    found = prove_kernel(use, given or {})
    assert not found.unsupported
    return {_named(proof): proof for proof in found.proofs}


def _named(proof: Proof) -> str:
    return "overflow" if proof.name == "overflow" else str(proof)


def fresh(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Memory that nothing has written."""
    return unwritten(shape, dtype, None)


def offsets(*lengths: int) -> torch.Tensor:
    """Offsets of packed sequences."""
    return torch.tensor([0, *lengths]).cumsum(0).int()
