"""Decode attention on a GPU: milliseconds, and the fraction of peak memory bandwidth.

    python benchmarks/decode.py [--dtype float16] [--rounds 20] [--only TEXT] [--roof 4.8]
    python benchmarks/decode.py --sweep [--only TEXT] [--pick 'pages of 16']

For each case it times the contiguous cache, pages of several sizes, and PyTorch's SDPA on the
cache. Bandwidth counts the minimum traffic: keys and values once per kv head, q, out and lse.
`--roof` is the GPU's peak in TB/s (4.8: H200). `--sweep` times tile sizes, stages and numbers of
splits instead, to tune the configuration. `--pick` selects the candidates whose name contains the
text.

Kernels are compiled first, in parallel processes; TileLang's disk cache makes them available here.

Times are medians of single calls by CUDA events, with the candidates interleaved. Before each call
the GPU is kept busy until the kernels are queued, so host time is not included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from torch.nn.functional import scaled_dot_product_attention

from tlmatrix_kernels.attention import decode_attention, paged_attention
from tlmatrix_kernels.attention.decode import kernels
from tlmatrix_kernels.attention.decode.combine import combine
from tlmatrix_kernels.attention.decode.operators import launch, splits_for_call
from tlmatrix_kernels.attention.decode.splits import MAX_SPLITS
from tlmatrix_kernels.attention.decode.tiles import DecodeTiles, tiles_for
from tlmatrix_kernels.attention.decode.validate import check_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Call = Callable[[], object]

PAGE_SIZES = (16, 32, 64, 128)
SLEEP = 2_000_000
"""Clock ticks: about a millisecond."""


@dataclass(frozen=True)
class Case:
    """A decode step; every sequence has `length` keys."""

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
        """The minimum number of bytes read and written."""
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
GATHERED = tuple(
    DecodeTiles(rows=64, keys=keys, stages=stages, threads=128, blocks=blocks)
    for keys, stages, blocks in (
        (64, 3, 2), (64, 2, 2), (64, 5, 1), (32, 6, 2), (32, 3, 3), (32, 2, 4),
    )
)  # fmt: skip
"""For pages smaller than a tile: there is no producer warp group, so more blocks fit."""


@dataclass(frozen=True)
class Build:
    """A kernel factory with its arguments except out_dtype; `tiles` None for the default."""

    dtype: str
    static: tuple[object, ...]
    tiles: DecodeTiles | None

    def __call__(self, out_dtype: str) -> object:
        """The compiled kernel."""
        return kernels.decode(self.dtype, out_dtype, *self.static, tiles=self.tiles)


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case; `pages` are shuffled pages with the rows of the cache."""

    case: Case
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, case: Case, dtype: torch.dtype) -> Inputs:
        """Random tensors on the GPU."""
        torch.manual_seed(0)
        shape = (case.batch, case.length, case.kv_heads, case.head_dim)
        k, v = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
        heads = case.kv_heads * case.groups
        q = torch.randn(case.batch, heads, case.head_dim, device="cuda", dtype=dtype)
        lengths = torch.full((case.batch,), case.length, device="cuda", dtype=torch.int32)
        return cls(case, q, k, v, lengths)

    def pages(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """K and v in pages, and the block table."""
        count = self.k.shape[0] * self.k.shape[1] // size
        order = torch.randperm(count, device="cuda")
        table = order.argsort().int().view(self.k.shape[0], -1)
        shape = (count, size, *self.k.shape[2:])
        return self.k.view(shape)[order], self.v.view(shape)[order], table


def main() -> None:
    """Print one table per case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--roof", type=float, default=4.8, help="TB/s")
    parser.add_argument("--only", default="", help="cases whose description contains this")
    parser.add_argument("--pick", default="", help="candidates whose name contains this")
    parser.add_argument("--sweep", action="store_true")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU, found none")
    console = Console(width=120)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.dtype}")
    for case in SWEPT if given.sweep else CASES:
        if given.only not in str(case):
            continue
        inputs = Inputs.of(case, getattr(torch, given.dtype))
        calls, builds = (swept if given.sweep else candidates)(inputs, given.pick)
        compile_all(builds, console)
        console.print(f"[bold]{case}[/]  (ms, TB/s, of the roof)")
        if given.sweep:
            # One at a time, to print each result at once.
            for name, call in calls.items():
                times = timed(correct({name: call}, inputs, console), given.rounds)
                report(times, inputs, given.roof, console)
        else:
            times = timed(correct(calls, inputs, console), given.rounds)
            report(times, inputs, given.roof, console)
        del inputs, calls
        torch.cuda.empty_cache()


def compile_all(builds: list[tuple[Build, str]], console: Console) -> None:
    """Compile kernels in parallel, each for an out_dtype, with one process per core."""
    begin, builds = time.perf_counter(), list(dict.fromkeys(builds))
    # CUDA does not survive a fork.
    context = multiprocessing.get_context("spawn")
    workers = min(len(builds), os.cpu_count() or 1)
    with ProcessPoolExecutor(max(1, workers), mp_context=context) as pool:
        begun = [pool.submit(_compiled, *build) for build in builds]
        for dtype, dim in {(build.dtype, build.static[2]) for build, _ in builds}:
            begun.append(pool.submit(_compiled_combine, dtype, dim))
        for number, done in enumerate(as_completed(begun), 1):
            console.print(
                f"compiled {number} of {len(begun)}, {time.perf_counter() - begin:.0f} s"
                + ("" if done.exception() is None else f": {done.exception()!r}"[:200])
            )


def _compiled(build: Build, out_dtype: str) -> None:
    build(out_dtype)


def _compiled_combine(dtype: str, head_dim_v: object) -> None:
    combine(dtype, head_dim_v, MAX_SPLITS)


Plan = tuple[dict[str, "Call"], list[tuple[Build, str]]]
"""Calls by name, and the kernels to compile for them."""


def planned(
    inputs: Inputs, store: str, size: int | None, stored: tuple[torch.Tensor, ...],
    tiles: DecodeTiles | None, factor: float, plan: Plan,
) -> None:  # fmt: skip
    """Add one configuration (None: the default) to a plan, with `factor` times the usual splits."""
    q, k = inputs.q, inputs.k
    call = check_cache(q, k, inputs.v, inputs.lengths, None, None, None, None)
    static: tuple[object, ...] = (call.groups, call.head_dim, call.head_dim_v, False)
    if size is not None:
        static = (*static, size)
    usual = splits_for_call(call, q, k.shape[1], tiles or tiles_for(*static[1:3], size))
    splits = max(1, int(usual * factor))
    build = Build(call.dtype, static, tiles)
    calls, builds = plan
    name = store if tiles is None else f"{store}: {shape_of(tiles)}, {splits} splits"
    calls[name] = partial(launch, call, q, stored, None, splits, build)
    builds.append((build, call.dtype if splits == 1 else "float32"))


def candidates(inputs: Inputs, pick: str) -> Plan:
    """The operators with their default configuration, and SDPA."""
    q, k, v, lengths = inputs.q, inputs.k, inputs.v, inputs.lengths
    plan: Plan = ({}, [])
    calls, _ = plan
    if pick in "cache":
        planned(inputs, "cache", None, (k, v, lengths), None, 1, plan)
        calls["cache"] = partial(decode_attention, q, k, v, lengths)
    for size in PAGE_SIZES:
        name = f"pages of {size}"
        if pick in name:
            stored = inputs.pages(size)
            planned(inputs, name, size, (*stored, lengths), None, 1, plan)
            calls[name] = partial(paged_attention, q, *stored, lengths)
    if pick in "SDPA":
        calls["SDPA"] = partial(
            scaled_dot_product_attention,
            q[:, :, None], k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True,
        )  # fmt: skip
    return plan


def swept(inputs: Inputs, pick: str) -> Plan:
    """All configurations for the cache, with several numbers of splits, and for small pages."""
    plan: Plan = ({}, [])
    if pick in "cache":
        for tiles in TILES:
            for factor in (0.5, 1, 2):
                stored = (inputs.k, inputs.v, inputs.lengths)
                planned(inputs, "cache", None, stored, tiles, factor, plan)
    for size in (64, 32, 16):
        name = f"pages of {size}"
        if pick in name:
            pages = (*inputs.pages(size), inputs.lengths)
            for tiles in TILES if size == 64 else GATHERED:
                if size >= 64 or size < tiles.keys:
                    planned(inputs, name, size, pages, tiles, 1, plan)
    return plan


def shape_of(tiles: DecodeTiles) -> str:
    """A configuration as text."""
    return f"{tiles.keys} keys, {tiles.stages} stages, {tiles.blocks} blocks"


def correct(calls: dict[str, Call], inputs: Inputs, console: Console) -> dict[str, Call]:
    """The calls that run and match a reference on the first sequence; reports the others."""
    case = inputs.case
    k, v = (each[0].float().repeat_interleave(case.groups, 1) for each in (inputs.k, inputs.v))
    scores = torch.einsum("hd,jhd->hj", inputs.q[0].float(), k) * case.head_dim**-0.5
    want = torch.einsum("hj,jhd->hd", scores.softmax(1), v)
    found = {}
    for name, call in calls.items():
        try:
            got = call()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - other candidates go on
            console.print(f"{name}: {type(error).__name__}: {str(error).splitlines()[-1][:200]}")
            continue
        out = got[0] if isinstance(got, tuple) else got
        off = (out[0].float().view_as(want) - want).abs().max().item()
        if off > 4e-3:
            console.print(f"{name}: wrong by {off:.2g}")
        else:
            found[name] = call
    return found


def keep_busy() -> None:
    """Keep the GPU busy while the host launches what is timed."""
    torch.cuda._sleep(SLEEP)  # noqa: SLF001 - PyTorch has no public way


def timed(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    before: Callable[[], object] = keep_busy,
) -> dict[str, float]:
    """Median milliseconds of each call, interleaved, after three warm-up rounds.

    `before` runs on the GPU before each call, and is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for each in range(rounds + 3):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if each >= 3:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


def report(times: dict[str, float], inputs: Inputs, roof: float, console: Console) -> None:
    """Print one line per candidate."""
    moved = inputs.case.bytes(inputs.q.element_size())
    for name, each in times.items():
        speed = moved / each / 1e9
        console.print(f"{name:48}{each:8.3f}{speed:8.2f}{speed / roof:8.0%}")


if __name__ == "__main__":
    main()
