"""Covering arrays: number of rows, and time to generate them without and with the cache.

    python benchmarks/covering.py [SPEC.yaml] [--strength 2 3] [--repeat 3]

Without a spec it uses `covering.yaml` beside this file. The targets, printed after "of": pairwise
at most 76 rows in 1 s, 3-wise at most 490 rows in 10 s, and 0.1 s from the cache. Each time is
the best of `--repeat` runs; "cold" starts with an empty cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tlmatrix.matrix import Expansion, expand
from tlmatrix.problem import family_for
from tlmatrix.spec import Spec, parse_spec

HEAD = "name: covering\nproblem: attention\nentry: none.here:nothing\n"
TARGETS = {2: (76, 1.0), 3: (490, 10.0)}


def main() -> None:
    """Print one row per strength."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", nargs="?", type=Path, default=Path(__file__).with_suffix(".yaml"))
    parser.add_argument("--strength", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()

    table = Table("t", "rows", "cold s", "cached s")
    for strength in arguments.strength:
        spec = read(arguments.spec, strength)
        cold: list[float] = []
        warm: list[float] = []
        for _ in range(arguments.repeat):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["TLMATRIX_CACHE"] = folder
                seconds, expansion = timed(spec)
                cold.append(seconds)
                warm.append(timed(spec)[0])
        rows, seconds = TARGETS.get(strength, ("?", "?"))
        table.add_row(
            str(strength),
            f"{expansion.count()} of {rows}",
            f"{min(cold):.3f} of {seconds}",
            f"{min(warm):.3f} of 0.1",
        )
    console = Console()
    console.print(table)
    console.print(f"{expansion.combinations:,} combinations; each rule alone removes:")
    for rule, count in expansion.removed.items():
        console.print(f"  {count:9,}  {rule.text}  ({rule.because})", markup=False)


def read(path: Path, strength: int) -> Spec:
    """A spec with the axes and constraints of a file, and one tier of the strength."""
    text = path.read_text(encoding="utf-8")
    head = "" if "\nproblem:" in text else HEAD
    return parse_spec(f"{head}{text}\ntiers: {{quick: {strength}-wise}}\n", path)


def timed(spec: Spec) -> tuple[float, Expansion]:
    """Expand the spec and count its cases: seconds, and the expansion."""
    start = time.perf_counter()
    expansion = expand(spec, "quick", partial(family_for(spec).compile_key, spec))
    expansion.count()
    return time.perf_counter() - start, expansion


if __name__ == "__main__":
    main()
