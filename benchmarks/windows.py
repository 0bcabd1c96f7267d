"""What a sliding window and a sink cost on a GPU, and which tiles suit a window.

    python benchmarks/windows.py [--seqlen 16384] [--head-dim 64] [--rounds 15]

Kernels are compiled side by side first; TileLang's cache on disk hands them over. Then the dense
forward kernel alone, bfloat16, causal, 64 query heads on 8 kv heads, with a sink (as in gpt-oss)
and without, in the tiles that `kernels/attention/tiles.py` chooses and in others. A row is
a window; operations are those of the pairs it lets see, so a kernel whose time were in proportion
to them would have one figure in all rows. "pairs" is what the chosen tiles compute of what is seen:
the rest of the tiles at the edges of the window is masked away. Times are medians of device events,
the candidates called in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from tlmatrix_kernels.attention import dense
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
        parser.error("no GPU here, and nothing else is worth timing")
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
        times = in_turn(calls, given.rounds)
        pairs = seen(given.seqlen, window)
        operations = 4 * pairs * HEADS * given.head_dim
        share = computed(given.seqlen, window, chosen) / pairs
        cells = [f"{operations / ms / 1e9:.0f} ({ms:.3f})" for ms in times.values()]
        table.add_row(str(window or "none"), f"{share:.2f}", *cells)
    console = Console(width=140)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, {given}")
    console.print(table)


def chosen_tiles(dim: int, *, windowed: bool) -> Tiles:
    """What the kernels choose by themselves."""
    return tiles_for(dim, dim, windowed=windowed).forward


def build(dim: int, windowed: bool, sink: bool, tiles: Tiles) -> Callable[..., object]:
    """The forward kernel, compiled."""
    static = ("bshd", "bfloat16", HEADS // KV_HEADS, dim, dim, True, windowed)
    if sink:
        return dense.forward_with_sink(*static, "float32", tiles)
    return dense.forward(*static, tiles)


def compile_all(dim: int) -> None:
    """Compile every kernel that is timed, as many at once as there are cores."""
    # A process that has used the GPU must not be forked.
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
    """The forward kernel in each of the tiles, its arguments bound."""

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


def seen(seqlen: int, window: int | None) -> int:
    """The (query, key) pairs of one head that a causal mask with the window lets through."""
    window = min(window or seqlen, seqlen)
    return window * (window + 1) // 2 + (seqlen - window) * window


def computed(seqlen: int, window: int | None, tiles: Tiles) -> int:
    """The pairs of the tiles that a block of each tile of queries walks over."""
    total = 0
    for end in range(seqlen, 0, -tiles.queries):  # cut from the end, as the kernels do
        first = max(end - tiles.queries - (window or seqlen) + 1, 0) // tiles.keys
        total += tiles.queries * tiles.keys * (-(-end // tiles.keys) - first)
    return total


def in_turn(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
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


if __name__ == "__main__":
    main()
