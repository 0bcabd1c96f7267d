"""Expansion of large products: counting cases, the first hundred cases, and all cases.

    python benchmarks/expansion.py

Seconds to count the cases, to count those that each constraint removes, to generate the first
hundred cases and to generate all of them; and the peak memory of counting.

The targets: a product of a million cases is counted in 10 s without holding them in memory, and its
first hundred cases are available at once. The rows differ in their constraints: none, over few
axes, over all axes (evaluated for each of a million combinations), and a product too large to
enumerate.
"""

from __future__ import annotations

import time
import tracemalloc
from itertools import islice

from rich.console import Console
from rich.table import Table

from tlmatrix.matrix import expand
from tlmatrix.spec import Spec, parse_spec

MILLION = {f"axis_{letter}": list(range(10)) for letter in "abcdef"}
EVERY = " + ".join(MILLION)

SPECS = {
    "a million, no rule": (MILLION, []),
    "a million, small rules": (
        MILLION,
        ["axis_a <= axis_f", "axis_b != axis_c", "axis_d < 9 or axis_e > 2"],
    ),
    "a million, one wide rule": (MILLION, [f"({EVERY}) % 7 != 3"]),
    "a million, 7 cases left": (MILLION, [f"{EVERY} >= 53"]),
    "10 ** 20, small rules": (
        {f"axis_{letter}": list(range(10)) for letter in "abcdefghijklmnopqrst"},
        ["axis_a < axis_t", "axis_b != axis_s"],
    ),
}
WALKABLE = 2_000_000


def main() -> None:
    """Print one row per spec."""
    table = Table("product", "cases", "count s", "removed s", "100 s", "all s", "MB")
    for name, (axes, rules) in SPECS.items():
        first = seconds(lambda spec: list(islice(expand(spec, "full").cases, 100)), axes, rules)
        count = seconds(lambda spec: expand(spec, "full").count(), axes, rules)
        removed = seconds(lambda spec: expand(spec, "full").removed, axes, rules)
        cases = expand(make(axes, rules), "full").count()
        walked = (
            seconds(lambda spec: sum(1 for _ in expand(spec, "full").cases), axes, rules)
            if cases <= WALKABLE
            else None
        )
        tracemalloc.start()
        expand(make(axes, rules), "full").count()
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        table.add_row(
            name, f"{cases:,}", f"{count:.2f}", f"{removed:.2f}", f"{first:.3f}",
            "" if walked is None else f"{walked:.1f}", f"{peak:.1f}",
        )  # fmt: skip
    Console().print(table)


def make(axes: dict[str, list[int]], rules: list[str]) -> Spec:
    """A spec of these axes and constraints, for expansion only."""
    where = "\n".join(f"  - {{require: '{rule}', because: the benchmark}}" for rule in rules)
    text = f"name: large\nproblem: attention\nentry: none.here:nothing\naxes: {axes}\n"
    return parse_spec(text + (f"constraints:\n{where}\n" if rules else ""), "large.yaml")


def seconds(what, axes, rules) -> float:  # noqa: ANN001
    """Seconds that `what` takes on a freshly parsed spec, without parsing."""
    spec = make(axes, rules)
    start = time.perf_counter()
    what(spec)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
