"""What can be done about an operation that the interpreter does not model."""

from __future__ import annotations

import re

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
