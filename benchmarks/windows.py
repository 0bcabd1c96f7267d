"""Cost of sliding windows and sinks on a GPU, and tile sizes for windows.

    python benchmarks/windows.py [--seqlen 16384] [--head-dim 64] [--rounds 15]

Times the dense forward kernel, bfloat16, causal, 64 query heads on 8 kv heads, with a sink (as in
gpt-oss) and without, with the tiles that `kernels/attention/tiles.py` selects and with others. One
row per window. TFLOP/s count the visible pairs only, so a kernel whose time is proportional to them
has the same figure in all rows. "pairs" is the ratio of computed pairs to visible pairs with the
selected tiles; the difference is masked at the edges of the window. Times are medians of CUDA
events, with the candidates interleaved. Kernels are compiled first, in parallel processes, into
TileLang's disk cache.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import torch
from decode import timed
from rich.console import Console
from rich.table import Table

from tlmatrix_kernels.attention.kernels import forward
from tlmatrix_kernels.attention.tiles import Tiles, tiles_for

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, KV_HEADS = 64, 8
WINDOWS = (64, 128, 256, 512, 1024, 4096, None)
OTHERS = (
    Tiles(queries=192, keys=128, stages=2, threads=384),
    Tiles(queries=128, keys=128, stages=2, threads=256),
    Tiles(queries=128, keys=64, stages=2, threads=256),
    Tiles(queries=128, keys=64, stages=3, threads=256),
    Tiles(queries=64, keys=64, stages=2, threads=128),
    Tiles(queries=64, keys=128, stages=2, threads=128),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seqlen", type=int, default=16384)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU, found none")
    others = {
        f"{tiles.queries}x{tiles.keys}, {tiles.stages}, {tiles.threads}": tiles for tiles in OTHERS
    }
    columns = ("with sink", "without", *others)
    compile_all(given.head_dim)
    table = Table("window", "pairs", *columns, title="TFLOP/s (ms), forward, causal")
    for window in WINDOWS:
        chosen = chosen_tiles(given.head_dim, windowed=window is not None)
        named = dict(zip(columns, (chosen, chosen, *OTHERS), strict=True))
        calls = candidates(given.seqlen, given.head_dim, window, named)
        times = timed(calls, given.rounds)
        pairs = visible_pairs(given.seqlen, window)
        operations = 4 * pairs * HEADS * given.head_dim
        share = computed_pairs(given.seqlen, window, chosen) / pairs
        cells = [f"{operations / ms / 1e9:.0f} ({ms:.3f})" for ms in times.values()]
        table.add_row(str(window or "none"), f"{share:.2f}", *cells)
    console = Console(width=140)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, {given}")
    console.print(table)


def chosen_tiles(dim: int, *, windowed: bool) -> Tiles:
    """The tiles that the kernels select."""
    return tiles_for(dim, dim, windowed=windowed).forward


def build(dim: int, windowed: bool, sink: bool, tiles: Tiles) -> Callable[..., object]:
    """The compiled forward kernel."""
    static = ("bshd", "bfloat16", HEADS // KV_HEADS, dim, dim, True, windowed)
    return forward(*static, "float32" if sink else None, tiles)


def compile_all(dim: int) -> None:
    """Compile every timed kernel, in parallel."""
    # CUDA does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        begun = []
        for windowed in (False, True):
            chosen = chosen_tiles(dim, windowed=windowed)
            begun.append(pool.submit(_compiled, dim, windowed, True, chosen))
            begun += [
                pool.submit(_compiled, dim, windowed, False, tiles) for tiles in {chosen, *OTHERS}
            ]
        for done in begun:
            done.result()


def _compiled(dim: int, windowed: bool, sink: bool, tiles: Tiles) -> None:
    build(dim, windowed, sink, tiles)


def candidates(
    seqlen: int, dim: int, window: int | None, named: dict[str, Tiles]
) -> dict[str, Callable[[], object]]:
    """Calls of the forward kernel with each of the tiles."""

    def tensor(heads: int) -> torch.Tensor:
        return torch.randn(1, seqlen, heads, dim, device="cuda", dtype=torch.bfloat16)

    q, k, v, sink = tensor(HEADS), tensor(KV_HEADS), tensor(KV_HEADS), torch.randn(HEADS).cuda()
    out = torch.empty_like(q)
    lse = torch.empty(1, HEADS, seqlen, device="cuda")
    scalars = (dim**-0.5, window or 0)
    calls: dict[str, Callable[[], object]] = {}
    for name, tiles in named.items():
        with_sink = name == "with sink"
        kernel = build(dim, window is not None, with_sink, tiles)
        sinks = (sink,) if with_sink else ()
        calls[name] = partial(kernel, q, k, v, *sinks, out, lse, *scalars)
    return calls


def visible_pairs(seqlen: int, window: int | None) -> int:
    """The number of visible (query, key) pairs of one head."""
    window = min(window or seqlen, seqlen)
    return window * (window + 1) // 2 + (seqlen - window) * window


def computed_pairs(seqlen: int, window: int | None, tiles: Tiles) -> int:
    """The number of pairs in the tiles that the kernel computes."""
    total = 0
    for end in range(seqlen, 0, -tiles.queries):  # counted from the end, as in the kernels
        first = max(end - tiles.queries - (window or seqlen) + 1, 0) // tiles.keys
        total += tiles.queries * tiles.keys * (-(-end // tiles.keys) - first)
    return total


if __name__ == "__main__":
    main()
