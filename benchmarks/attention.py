"""Attention on a GPU: TFLOP/s of the project's operators beside PyTorch's, in one run.

    python benchmarks/attention.py [--seqlen 4096] [--dtype float16] [--rounds 15]

B 4, 32 query heads, 8 kv heads, head_dim 128. Operations are those of the unmasked pairs: 4 a
pair and dimension forward, 10 backward; a causal mask leaves half. Times are medians of single
calls by device events, the candidates called in turn so that none has the card to itself; of an
operator, everything between its arguments and its results (buffers, passes before and after,
checks of cu_seqlens). Packed: the same rows as one batch of equal lengths.
"""

from __future__ import annotations

import argparse
import statistics
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tlmatrix_kernels.attention import dense_attention, varlen_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

BATCH, HEADS, KV_HEADS, HEAD_DIM = 4, 32, 8, 128
STRATEGIES = ("atomic", "split", "grouped", "reordered")
BASELINE = "SDPA cuDNN"


def main() -> None:
    """Print a table each of forward and backward, without and with a causal mask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU here, and nothing else is worth timing")
    console = Console()
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.dtype}")
    for causal in (False, True):
        forward, backward = candidates(given.seqlen, getattr(torch, given.dtype), causal=causal)
        pairs = BATCH * HEADS * given.seqlen**2 * HEAD_DIM / (2 if causal else 1)
        mask = "causal" if causal else "full"
        for title, calls, operations in (("forward", forward, 4), ("backward", backward, 10)):
            console.print(
                table(f"{title}, {mask}", in_turn(calls, given.rounds), operations * pairs)
            )


def candidates(
    seqlen: int, dtype: torch.dtype, *, causal: bool
) -> tuple[dict[str, Call], dict[str, Call]]:
    """Calls by name, forward and backward."""
    torch.manual_seed(0)

    def tensor(heads: int) -> torch.Tensor:
        shape = (BATCH, seqlen, heads, HEAD_DIM)
        return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()

    q, k, v = tensor(HEADS), tensor(KV_HEADS), tensor(KV_HEADS)
    do = torch.randn_like(q)
    forward: dict[str, Call] = {}
    backward: dict[str, Call] = {}

    def add(name: str, call: Call, inputs: list[torch.Tensor], gradient: torch.Tensor) -> None:
        out = call()
        out = out[0] if isinstance(out, tuple) else out
        backward[name] = lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    for name, backend in (
        (BASELINE, SDPBackend.CUDNN_ATTENTION),
        ("SDPA flash", SDPBackend.FLASH_ATTENTION),
    ):
        inputs = [t.detach().transpose(1, 2).requires_grad_() for t in (q, k, v)]

        def sdpa(
            inputs: list[torch.Tensor] = inputs, backend: SDPBackend = backend
        ) -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*inputs, is_causal=causal, enable_gqa=True)

        forward[name] = sdpa
        add(name, sdpa, inputs, do.transpose(1, 2))

    cu_seqlens = torch.arange(BATCH + 1, device="cuda", dtype=torch.int32) * seqlen
    rows = [t.detach().flatten(0, 1).requires_grad_() for t in (q, k, v)]
    for strategy in STRATEGIES:

        def dense(strategy: str = strategy) -> object:
            return dense_attention(q, k, v, causal=causal, backward=strategy)

        def packed(strategy: str = strategy) -> object:
            return varlen_attention(
                *rows, cu_seqlens, cu_seqlens, seqlen, seqlen, causal=causal, backward=strategy
            )

        forward.setdefault("dense", dense)
        forward.setdefault("packed", packed)
        add(f"dense {strategy}", dense, [q, k, v], do)
        add(f"packed {strategy}", packed, rows, do.flatten(0, 1))
    return forward, backward


def in_turn(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """The median milliseconds of each call; one of each a round, after three to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for each in range(rounds + 3):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if each >= 3:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


def table(title: str, milliseconds: dict[str, float], operations: float) -> Table:
    """One line a candidate, and how it compares with the baseline."""
    shown = Table(title=title, title_justify="left")
    for column in ("", "ms", "TFLOP/s", f"of {BASELINE}"):
        shown.add_column(column, justify="right" if column else "left")
    for name, each in milliseconds.items():
        ratio = milliseconds[BASELINE] / each
        shown.add_row(name, f"{each:.3f}", f"{operations / each / 1e9:.0f}", f"{ratio:.2f}")
    return shown


if __name__ == "__main__":
    main()
