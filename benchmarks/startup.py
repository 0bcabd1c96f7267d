"""Startup latency: --help, list, test collection, and the first cases of a huge matrix.

    python benchmarks/startup.py [--repeat 3]

Each line is the best of `--repeat` runs in fresh processes, including interpreter startup, except
the last two, which run in this process. "of" is the target.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tlmatrix.matrix import expand
from tlmatrix.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
HUGE = """\
name: huge
problem:
  inputs: {x: {shape: [rows, cols], dtype: $dtype}}
  outputs: [y]
  reference: huge_kernel:reference
entry: huge_kernel:entry
axes:
  dtype: [float16, bfloat16]
  rows: %s
  cols: %s
  repeat: %s
tiers: {quick: product}
"""


def main() -> None:
    """Print one row per measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    table = Table("what", "seconds", "of")

    def add(what: str, target: float, measure: Callable[[], float]) -> None:
        table.add_row(what, f"{min(measure() for _ in range(repeat)):.2f}", f"{target:g}")

    add("tlmatrix --help", 0.3, lambda: command("tlmatrix", "--help"))
    count = len(list((ROOT / "specs").glob("*.yaml")))
    add(f"tlmatrix list, {count} specs", 1, lambda: command("tlmatrix", "list", "specs"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "huge.yaml"
        path.write_text(HUGE % (numbers(50), numbers(10), numbers(10)), encoding="utf-8")
        add(
            "pytest collects 10,000 cases",
            5,
            lambda: command("pytest", str(path), "--collect-only", "-qq", "-n", "0"),
        )
    text = HUGE % (numbers(500), numbers(100), numbers(10))
    add("first 100 of 1,000,000 cases", 0.1, lambda: first(text))
    add("count of 1,000,000 cases", 10, lambda: counted(text))
    Console().print(table)


def numbers(count: int) -> str:
    """A YAML flow sequence of the numbers from 1 to `count`."""
    return "[" + ", ".join(str(value) for value in range(1, count + 1)) + "]"


def command(module: str, *arguments: str) -> float:
    """Seconds that a command takes."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, check=True, capture_output=True
    )
    return time.perf_counter() - begin


def first(text: str) -> float:
    """Seconds until the first hundred cases are generated."""
    spec = parse_spec(text)
    begin = time.perf_counter()
    assert len(list(islice(expand(spec).cases, 100))) == 100
    return time.perf_counter() - begin


def counted(text: str) -> float:
    """Seconds until the cases are counted."""
    spec = parse_spec(text)
    begin = time.perf_counter()
    assert expand(spec).count() == 1_000_000
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
