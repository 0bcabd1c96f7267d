"""The backward pass of attention on a GPU, beside cuDNN's.

    python benchmarks/backward.py [--dims 64 128 192/128] [--seqlen 1024 4096] [--rounds 13]
        [--strategies specialized grouped]

16,384 tokens in sequences of S, 32 query heads on 8 kv heads, float16, with and without a causal
mask. Times are medians of CUDA events around the whole backward (pre-pass, kernels, post-pass),
with the implementations in turn and 256 MiB written before each call, which evicts L2. One row per
head dimension (`head_dim/head_dim_v` where they differ), S and mask: milliseconds, and in
parentheses TFLOP/s of 5 products of the visible pairs and the speed as a share of SDPA's cuDNN
backend. The second column of a strategy is packed attention of the same sequences. Kernels are
compiled first, in parallel processes, into TileLang's disk cache.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch
from decode import timed
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel

from tlmatrix_kernels.attention import dense_attention, varlen_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOKENS, HEADS, KV_HEADS = 16384, 32, 8
FLUSHED = 256 * 2**20
Dims = tuple[int, int]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dims", nargs="+", default=["64", "128", "192/128"])
    parser.add_argument("--seqlen", nargs="+", type=int, default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--strategies", nargs="+", default=["specialized", "grouped"])
    parser.add_argument("--rounds", type=int, default=13)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU, found none")
    dims = [(int(each.split("/")[0]), int(each.split("/")[-1])) for each in given.dims]
    names = [f"{name}{form}" for name in given.strategies for form in ("", ", packed")]
    compile_all(dims, given.strategies)
    console = Console(width=160)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float16, {given}")
    table = Table("head_dim, S, mask", *names, "cuDNN", title="ms (TFLOP/s, of cuDNN), backward")
    flushed = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for dim, seqlen, causal in product(dims, given.seqlen, (False, True)):
        calls = candidates(dim, seqlen, causal, given.strategies)
        times = timed(calls, given.rounds, flushed.zero_)
        pairs = TOKENS * HEADS * (seqlen + 1) / 2 if causal else TOKENS * HEADS * seqlen
        operations = 2 * pairs * (3 * dim[0] + 2 * dim[1])
        peer = times.get("cuDNN")
        cells = []
        for name in (*names, "cuDNN"):
            if name not in times:
                cells.append("refused")
                continue
            share = f", {peer / times[name]:.2f}" if peer and name != "cuDNN" else ""
            rate = operations / times[name] / 1e9
            cells.append(f"{times[name]:.3f} ({rate:.0f}{share})")
        mask = "causal" if causal else "full"
        table.add_row(f"{'/'.join(map(str, dict.fromkeys(dim)))}, {seqlen}, {mask}", *cells)
    console.print(table)


def compile_all(dims: Iterable[Dims], strategies: Iterable[str]) -> None:
    """Compile every timed kernel by a small call, in parallel."""
    # CUDA does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        forms = product(dims, (False, True), strategies, (False, True))
        for done in [pool.submit(_compiled, *form) for form in forms]:
            done.result()


def _compiled(dim: Dims, causal: bool, strategy: str, packed: bool) -> None:
    ours(inputs(dim, 1, 128), causal, strategy, packed)()


def inputs(dim: Dims, batch: int, seqlen: int) -> tuple[torch.Tensor, ...]:
    """Random q, k, v [batch, seqlen, heads, dim], which require gradients, and that of out."""

    def tensor(heads: int, width: int) -> torch.Tensor:
        return torch.randn(batch, seqlen, heads, width, device="cuda", dtype=torch.float16)

    leaves = tensor(HEADS, dim[0]), tensor(KV_HEADS, dim[0]), tensor(KV_HEADS, dim[1])
    return (*(each.requires_grad_() for each in leaves), tensor(HEADS, dim[1]))


def ours(
    tensors: tuple[torch.Tensor, ...], causal: bool, strategy: str, packed: bool
) -> Callable[[], object]:
    """The backward of a strategy, after its forward."""
    q, k, v, do = tensors
    options = {"causal": causal, "backward": strategy}
    if packed:
        batch, seqlen = q.shape[:2]
        starts = torch.arange(0, (batch + 1) * seqlen, seqlen, device="cuda", dtype=torch.int32)
        flat = (each.flatten(0, 1) for each in (q, k, v))
        out, do = (
            varlen_attention(*flat, starts, starts, seqlen, seqlen, **options)[0],
            do.flatten(0, 1),
        )
    else:
        out = dense_attention(q, k, v, **options)[0]
    return partial(torch.autograd.grad, out, (q, k, v), do, retain_graph=True)


def candidates(
    dim: Dims, seqlen: int, causal: bool, strategies: Iterable[str]
) -> dict[str, Callable[[], object]]:
    """The backward of each strategy, dense and packed, and cuDNN's unless it refuses."""
    tensors = inputs(dim, TOKENS // seqlen, seqlen)
    calls = {
        f"{strategy}{', packed' if packed else ''}": ours(tensors, causal, strategy, packed)
        for strategy in strategies
        for packed in (False, True)
    }
    q, k, v, do = tensors
    heads_first = (each.transpose(1, 2) for each in (q, k, v))
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(
                *heads_first, is_causal=causal, enable_gqa=True
            )
        peer = partial(torch.autograd.grad, out.transpose(1, 2), (q, k, v), do, retain_graph=True)
        peer()
    except RuntimeError:
        return calls
    return calls | {"cuDNN": peer}


if __name__ == "__main__":
    main()
