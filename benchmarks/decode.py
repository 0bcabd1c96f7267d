"""Decoding on a GPU: milliseconds, and how much of the memory's speed is used.

    python benchmarks/decode.py [--dtype float16] [--rounds 20] [--only TEXT] [--roof 4.8]
    python benchmarks/decode.py --sweep

Prints for each case the cache, pages of several sizes, and PyTorch's SDPA on the cache. Bytes are
those that must move: keys and values once for each kv head, q, out and lse. The roof is that of the
GPU's data sheet in TB/s (4.8: H200). `--sweep` tries tiles, stages and shares instead and says what
each reaches, to choose the configuration by.

Times are medians of single calls by device events, the candidates called in turn. Before each call
the GPU is kept busy, so that the kernels are queued when the clock starts: what is timed is the
GPU's work, and not the host's.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention

from tlmatrix_kernels.attention import decode_attention, paged_attention
from tlmatrix_kernels.attention.decode import kernels
from tlmatrix_kernels.attention.decode.operators import choose_splits, launch
from tlmatrix_kernels.attention.decode.tiles import DecodeTiles
from tlmatrix_kernels.attention.decode.validate import check_cache, check_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

PAGE_SIZES = (16, 64, 128)
SLEEP = 2_000_000
"""Clock ticks: about a millisecond."""


@dataclass(frozen=True)
class Case:
    """A decode step: every sequence has `length` keys."""

    batch: int
    kv_heads: int
    groups: int
    length: int
    head_dim: int = 128

    def __str__(self) -> str:
        return (
            f"batch {self.batch}, {self.kv_heads} kv heads, groups {self.groups}, "
            f"{self.length} keys, head_dim {self.head_dim}"
        )

    def bytes(self, element: int) -> int:
        """What must be read and written."""
        keys = self.batch * self.length * self.kv_heads * self.head_dim
        queries = self.batch * self.kv_heads * self.groups * self.head_dim
        return element * (2 * keys + 2 * queries) + 4 * queries // self.head_dim


CASES = (
    Case(64, 8, 4, 4096),
    Case(128, 8, 4, 4096),
    Case(64, 8, 8, 8192),
    Case(64, 8, 4, 16384),
    Case(128, 8, 8, 16384),
    Case(64, 1, 16, 16384),
    Case(8, 8, 4, 32768),
    Case(1, 8, 4, 131072),
)
SWEPT = (CASES[0], CASES[3], CASES[7])
TILES = tuple(
    DecodeTiles(rows=64, keys=keys, stages=stages, threads=128, blocks=blocks)
    for keys, stages, blocks in (
        (64, 2, 2), (64, 3, 2), (64, 3, 1), (64, 4, 1), (64, 5, 1), (128, 2, 1), (128, 3, 1),
        (32, 4, 2),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case; pages hold the rows of the cache, in shuffled pages."""

    case: Case
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, case: Case, dtype: torch.dtype) -> Inputs:
        """Drawn on the GPU."""
        torch.manual_seed(0)
        shape = (case.batch, case.length, case.kv_heads, case.head_dim)
        k, v = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
        heads = case.kv_heads * case.groups
        q = torch.randn(case.batch, heads, case.head_dim, device="cuda", dtype=dtype)
        lengths = torch.full((case.batch,), case.length, device="cuda", dtype=torch.int32)
        return cls(case, q, k, v, lengths)

    def pages(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """k, v in pages, and the block table."""
        count = self.k.shape[0] * self.k.shape[1] // size
        order = torch.randperm(count, device="cuda")
        table = order.argsort().int().view(self.k.shape[0], -1)
        shape = (count, size, *self.k.shape[2:])
        return self.k.view(shape)[order], self.v.view(shape)[order], table


def main() -> None:
    """Print one table a case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--roof", type=float, default=4.8, help="TB/s")
    parser.add_argument("--only", default="", help="cases whose description contains this")
    parser.add_argument("--sweep", action="store_true")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU here, and nothing else is worth timing")
    console = Console(width=120)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.dtype}")
    for case in SWEPT if given.sweep else CASES:
        if given.only not in str(case):
            continue
        inputs = Inputs.of(case, getattr(torch, given.dtype))
        calls = swept(inputs) if given.sweep else candidates(inputs)
        times = in_turn(right(calls, inputs, console), given.rounds)
        console.print(table(case, times, case.bytes(inputs.q.element_size()), given.roof))
        del inputs, calls
        torch.cuda.empty_cache()


def candidates(inputs: Inputs) -> dict[str, Call]:
    """Calls by name."""
    q, k, v, lengths = inputs.q, inputs.k, inputs.v, inputs.lengths
    calls: dict[str, Call] = {"cache": partial(decode_attention, q, k, v, lengths)}
    for size in PAGE_SIZES:
        calls[f"pages of {size}"] = partial(paged_attention, q, *inputs.pages(size), lengths)
    calls["SDPA"] = partial(
        scaled_dot_product_attention,
        q[:, :, None], k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True,
    )  # fmt: skip
    return calls


def swept(inputs: Inputs) -> dict[str, Call]:
    """The cache kernel and pages of 64 and 16 in every configuration, and in more shares."""
    q, k, v, lengths = inputs.q, inputs.k, inputs.v, inputs.lengths
    call = check_cache(q, k, v, lengths, None, None, None, None)
    static = (call.groups, call.head_dim, call.head_dim_v, False)
    calls: dict[str, Call] = {}
    for tiles in TILES:
        shape = shape_of(tiles)
        best = choose_splits(call, q, k.shape[1], tiles)
        for splits in sorted({best, 2 * best, max(1, best // 2)}):

            def build(dtype: str, tiles: DecodeTiles = tiles) -> object:
                return kernels.cache_decode(call.dtype, dtype, *static, tiles=tiles)

            stored = (k, v, lengths)
            calls[f"cache: {shape}, {splits} shares"] = partial(
                launch, call, q, stored, None, splits, build
            )
    for size in (16, 64):
        k_pages, v_pages, block_table = inputs.pages(size)
        check_pages(q, k_pages, v_pages, block_table, lengths, None, None, None, None)
        for tiles in TILES:

            def build_paged(dtype: str, tiles: DecodeTiles = tiles, size: int = size) -> object:
                return kernels.paged_decode(call.dtype, dtype, *static, size, tiles=tiles)

            splits = choose_splits(call, q, k.shape[1], tiles)
            calls[f"pages of {size}: {shape_of(tiles)}"] = partial(
                launch, call, q, (k_pages, v_pages, block_table, lengths), None, splits,
                build_paged,
            )  # fmt: skip
    return calls


def shape_of(tiles: DecodeTiles) -> str:
    """A configuration in words."""
    return f"{tiles.keys} keys, {tiles.stages} stages, {tiles.blocks} blocks"


def right(calls: dict[str, Call], inputs: Inputs, console: Console) -> dict[str, Call]:
    """The calls that run and agree with the definition on the first sequence; the rest is said."""
    case = inputs.case
    k, v = (each[0].float().repeat_interleave(case.groups, 1) for each in (inputs.k, inputs.v))
    scores = torch.einsum("hd,jhd->hj", inputs.q[0].float(), k) * case.head_dim**-0.5
    want = torch.einsum("hj,jhd->hd", scores.softmax(1), v)
    found = {}
    for name, call in calls.items():
        try:
            got = call()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises, others go on
            console.print(f"{name}: {type(error).__name__}: {str(error).splitlines()[-1][:200]}")
            continue
        out = got[0] if isinstance(got, tuple) else got
        off = (out[0].float().view_as(want) - want).abs().max().item()
        if off > 4e-3:
            console.print(f"{name}: wrong by {off:.2g}")
        else:
            found[name] = call
    return found


def in_turn(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """The median milliseconds of each call; one of each a round, after three to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for each in range(rounds + 3):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(SLEEP)  # noqa: SLF001 - PyTorch has no public way to keep a GPU busy
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if each >= 3:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


def table(case: Case, milliseconds: dict[str, float], moved: int, roof: float) -> Table:
    """One line a candidate."""
    shown = Table(title=str(case), title_justify="left")
    for column in ("", "ms", "TB/s", "of the roof"):
        shown.add_column(column, justify="right" if column else "left")
    for name, each in milliseconds.items():
        speed = moved / each / 1e9
        shown.add_row(name, f"{each:.3f}", f"{speed:.2f}", f"{speed / roof:.0%}")
    return shown


if __name__ == "__main__":
    main()
