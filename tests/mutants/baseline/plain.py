"""How a test that people write by hand judges: `assert_close` within one per cent."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Pairs", "PlainTest", "Verdict", "judge_plainly"]

Pairs = dict[str, tuple[torch.Tensor, torch.Tensor | None]]
"""Name of a tensor to (what the operator made, what the reference made); None: not compared."""


@dataclass(frozen=True)
class PlainTest:
    """One test of one entry, with its options, on one architecture."""

    operator: str
    entry: str
    run: Callable[..., Pairs]
    options: dict[str, Any]
    arch: str

    @property
    def name(self) -> str:
        """`varlen_attention-backward=atomic-causal=True`."""
        return "-".join([self.operator, *(f"{key}={value}" for key, value in self.options.items())])


@dataclass(frozen=True)
class Verdict:
    """Whether a test failed, and the digest of all bits that the operator made."""

    name: str
    failed: bool
    bits: str


def judge_plainly(test: PlainTest) -> Verdict:
    """Run a test on the interpreter, unwatched: what it would do on a GPU."""
    from tlmatrix.interpreter import interpret

    torch.manual_seed(0)
    try:
        with interpret(arch=test.arch):
            pairs = test.run(**test.options)
    except Exception as error:  # noqa: BLE001 - a test that raises has failed
        return Verdict(test.name, failed=True, bits=type(error).__name__)
    digest = hashlib.sha256()
    for got, _ in pairs.values():
        digest.update(got.detach().contiguous().view(torch.uint8).numpy().tobytes())
    try:
        for got, expected in pairs.values():
            if expected is not None:
                torch.testing.assert_close(got.float(), expected.float(), rtol=1e-2, atol=1e-2)
    except AssertionError:
        return Verdict(test.name, failed=True, bits=digest.hexdigest())
    return Verdict(test.name, failed=False, bits=digest.hexdigest())
