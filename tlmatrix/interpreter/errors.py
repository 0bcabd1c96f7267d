"""What the interpreter raises, refusals by name and faults of the kernel it runs; and remedies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

EMPTY_GRID = "grid dimension must be positive"
EMPTY_TENSOR = "a TMA descriptor of an empty tensor"
"""Why a launch is refused."""


class Unsupported(NotImplementedError):  # noqa: N818  # reads as what it says: Unsupported
    """The kernel uses an operation that the interpreter does not model; names it and its line."""


class InterpreterError(RuntimeError):
    """The kernel did something that has no defined result; names the access and its line.

    Attributes:
        reports: the same as reports of sanitizers; empty for what no sanitizer reports.
    """

    reports: Sequence[Any] = ()


class LaunchError(InterpreterError):
    """TileLang's host code would not launch the kernel on any GPU; names it and says why."""

    @classmethod
    def of(cls, kernel: str, why: str, what: str) -> Self:
        """Nothing to do: a launch of a kernel with something empty, `what`.

        `tlmatrix.backend.faults` reads the parts back, also where only the words are left.
        """
        remedy = "where an input is empty, return before the call"
        return cls(f"kernel {kernel} cannot be launched: {why}: {what}; {remedy}")


class SynchronizationError(InterpreterError):
    """The threads of a kernel use a barrier in a way that has no defined result."""


class DeadlockError(SynchronizationError):
    """No agent can ever go on; says which agents wait, for what, and why it cannot come."""


class RaceError(SynchronizationError):
    """Two accesses touch one element, one of them writes, and nothing orders them; names both."""


class ArgumentError(ValueError):
    """A kernel was called with an argument that its signature does not allow."""


_REMEDIES = (
    (
        r"^(the generator curand|T\.rng_|several random numbers)",
        "draw the numbers in PyTorch and pass them to the kernel as a tensor",
    ),
    (
        r"dtype (u?int2|u?int1|float6\w*)\b",
        "declare the packed bytes as uint8 and take them apart in the kernel, with shifts",
    ),
    (
        r"dtype \w+x\d+ ",
        "PyTorch has no such tensors: declare the elements of the vectors",
    ),
    (
        r"dtype float8_\w+fnuz",
        "use float8_e4m3fn or float8_e5m2, the formats of NVIDIA GPUs",
    ),
    (
        r"call_extern|call_pure_extern",
        "say what it does with tlmatrix.interpreter.model_extern (docs/guides/simulated-ranks.md)",
    ),
    (
        r"create_tma_descriptor|tma_load|tma_store",
        "T.copy and T.tma_copy make descriptors of their own, and are modelled",
    ),
    (
        r"ptx_wgmma|ptx_tcgen05|wgmma_descriptor|tcgen05_descriptor|local\.descriptor\.",
        "T.gemm, T.wgmma_gemm and T.tcgen05_gemm make descriptors of their own, and are modelled",
    ),
    (
        r"cluster|over two blocks",
        "blocks that work together can only be judged on a GPU: --backend cuda",
    ),
    (
        r"tfloat32",
        "float32 buffers are the same memory: interpret(tf32=True) cuts the factors of T.gemm",
    ),
)


def remedy(what: str) -> str:
    """What to do about something that is refused, after a colon; "" where there is no advice."""
    found = (advice for pattern, advice in _REMEDIES if re.search(pattern, what))
    advice = next(found, None)
    return f": {advice}" if advice is not None else ""
