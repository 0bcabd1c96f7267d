"""The loop of editing and running: a spec of 18 cases by default, beside everything in one process.

    python benchmarks/edit_loop.py [--repeat 5]

Each run is a fresh process, interpreter start and imports included; the two take turns, and the
ratio is that of their medians. "first" is the time to the first result on the screen. Fails if the
ratio is more than 1.3.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST = 1.3
KERNEL = """\
import tilelang
import tilelang.language as T


@tilelang.jit
def row_sum_kernel(dtype, block=64):
    rows, cols = T.dynamic("rows, cols")

    @T.prim_func
    def row_sum(X: T.Tensor((rows, cols), dtype), Y: T.Tensor((rows,), dtype)):
        with T.Kernel(rows, threads=64) as row:
            x = T.alloc_fragment([1, block], "float32")
            total = T.alloc_fragment([1], "float32")
            T.clear(total)
            for tile in T.serial(T.ceildiv(cols, block)):
                T.copy(X[row, tile * block], x)
                T.reduce_sum(x, total, dim=1, clear=False)
            Y[row] = total[0]

    return row_sum


def reference(x):
    return x.sum(-1)
"""
SPEC = """\
name: row_sum
problem:
  inputs: {x: {shape: [rows, cols], dtype: $dtype}}
  outputs: [y]
  reference: row_sum:reference
factory: row_sum:row_sum_kernel
factory_args: {dtype: dtype}
call: [x, y]
returns: [y]
axes:
  dtype: [float16, float32]
  rows: [1, 5, 64]
  cols: [1, 63, 300]
tiers: {quick: product}
"""


def main() -> int:
    """Print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "row_sum.py").write_text(KERNEL, encoding="utf-8")
        (folder / "row_sum.yaml").write_text(SPEC, encoding="utf-8")
        seconds(folder)  # Caches of covering rows and bytecode are there from now on.
        by_default, in_one, firsts = [], [], []
        for _ in range(repeat):
            by_default.append(seconds(folder))
            in_one.append(seconds(folder, "-n", "0"))
            firsts.append(first_result(folder))
    ratio = statistics.median(by_default) / statistics.median(in_one)
    first = statistics.median(firsts)
    print(f"18 cases by default  {statistics.median(by_default):.2f} s")
    print(f"18 cases with -n 0   {statistics.median(in_one):.2f} s")
    print(f"ratio                {ratio:.2f}, at most {MOST}")
    print(f"first result         {first:.2f} s")
    return int(ratio > MOST)


def seconds(folder: Path, *options: str) -> float:
    """How long a run takes."""
    begin = time.perf_counter()
    done = subprocess.run(command(*options), cwd=folder, check=True, capture_output=True, text=True)
    assert "18 passed" in done.stdout, done.stdout
    return time.perf_counter() - begin


def first_result(folder: Path) -> float:
    """Seconds from the start to the first case that a terminal counts."""
    begin = time.perf_counter()
    mine, theirs = pty.openpty()
    process = subprocess.Popen(command(), cwd=folder, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = ""
    try:
        while chunk := os.read(mine, 65536):
            shown += chunk.decode(errors="replace")
            if re.search(r"\b[1-9]\d*/18\b", shown):
                break
    finally:
        end = time.perf_counter()
        process.kill()
        process.wait()
        os.close(mine)
    return end - begin


def command(*options: str) -> list[str]:
    """`tlmatrix run` of the spec."""
    backend = ("--backend", "interpreter")
    return [sys.executable, "-m", "tlmatrix", "run", "row_sum.yaml", *backend, *options]


if __name__ == "__main__":
    sys.exit(main())
