"""How many packed examples a second fuzzing runs on one core, and where their time goes.

    python benchmarks/fuzz.py [--examples 100] [--backward default atomic ...] [--relations rotate]

Packed attention forward and backward (the entry of specs/gqa_varlen.yaml), interpreted: head_dim
64, 2 query heads in groups of 1 and 2, causal and not, 1 to 8 sequences of up to 100 tokens, drawn
by Hypothesis, with keys as long as queries or not. Each example takes the whole way of one:
inputs, references, the entry between guards and under sanitizers, every check of the spec. With
`--relations rotate` the checks that need further runs take turns, as in a fuzz run; with `all`
each example gets all of them, as a case of a tier does.

One process, one thread. Kernels are traced before. Rates are examples by CPU time, which a busy
machine changes less than wall time; the target is 60. The table is of a second pass over the same
examples, with clocks around each part: a part does not count in what is around it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from overhead import Clock, guards_counted
from rich.console import Console
from rich.table import Table

from tlmatrix.backend import backend_named
from tlmatrix.check import judging, relations, sanitizers
from tlmatrix.check.memory import Guards
from tlmatrix.check.relations import CHECK_OF_KIND
from tlmatrix.fuzz.generation import without_hook
from tlmatrix.interpreter.kernel import InterpretedKernel
from tlmatrix.interpreter.session import current
from tlmatrix.matrix import Case
from tlmatrix.problem.attention import build, family
from tlmatrix.run import runner as running
from tlmatrix.run.records import RecordsWriter
from tlmatrix.run.result import Status
from tlmatrix.run.runner import Runner
from tlmatrix.spec import load_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tlmatrix.problem.attention.reference import Precision
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.models import Spec

ROOT = Path(__file__).resolve().parents[1]
HEADS, DIM, LONGEST, MOST = 2, 64, 100, 8
STRATEGIES = ("default", "atomic", "split", "grouped", "reordered")
EDGES = (0, 1, 63, 64, 65, 99, 100)
Relations = Literal["all", "rotate"]


def main() -> int:
    """Print a row a backward strategy, then where the time goes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=100, help="for each strategy")
    parser.add_argument("--backward", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--relations", default="rotate", choices=("all", "rotate"))
    given_ = parser.parse_args()
    torch.set_num_threads(1)
    spec = load_spec(ROOT / "specs" / "gqa_varlen.yaml")
    console = Console(width=110)
    table = Table("backward", "examples", "a CPU s", "ms", "wall ms", "runs", "tokens", "failed")
    clock, counted = Clock(), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(spec, given_.relations, Path(folder) / "run.jsonl")
        for name in given_.backward:
            bench.warm(name)
            bench.measure(name, 3)  # what Hypothesis and kernels of relations cost once
            gc.collect()
            spent = bench.measure(name, given_.examples)
            table.add_row(name, *spent.cells())
        with clocked(clock):
            for name in given_.backward:
                counted += bench.measure(name, given_.examples, clock).examples
    console.print(table)
    console.print(f"milliseconds an example, of all {counted}:")
    console.print(parts(clock.spent, counted))
    return 1 if bench.failures else 0


class Spent:
    """What some examples took."""

    def __init__(self) -> None:
        self.examples = self.failed = self.runs = self.tokens = 0
        self.cpu = self.wall = 0.0

    def cells(self) -> list[str]:
        """A row of the table, without the name."""
        count = self.examples
        return [
            str(count),
            f"{count / self.cpu:.1f}",
            f"{1e3 * self.cpu / count:.2f}",
            f"{1e3 * self.wall / count:.2f}",
            f"{self.runs / count:.1f}",
            f"{self.tokens / count:.0f}",
            str(self.failed),
        ]


class Bench:
    """Runs drawn examples as a fuzz run does, and records them."""

    def __init__(self, spec: Spec, relations: Relations, path: Path) -> None:
        self.spec = spec
        self.relations = relations
        self.runner = Runner(backend_named("interpreter"), asked="interpreter")
        self.runner.prepare()
        self.writer = RecordsWriter(path)
        self.failures = 0

    def warm(self, backward: str) -> None:
        """Trace every kernel that the examples may need, those of their relations too."""
        lengths = {"q": [5, 70], "k": [70, 5]}
        for options in itertools.product(("float16", "bfloat16"), (1, 2), (False, True)):
            self.runner.run(self.spec, case_of(backward, *options, lengths))

    def example(self, case: Case) -> CaseResult:
        """What a fuzz run does with a case."""
        result = self.runner.run(self.spec, case, relations=self.relations)
        self.writer.case(result)
        return result

    def measure(self, backward: str, examples: int, clock: Clock | None = None) -> Spent:
        """Draw examples and run them; with a clock, by parts."""
        spent = Spent()
        run = self.example if clock is None else clock.timed("runner, and the rest", self.example)

        @settings(
            max_examples=examples, phases=(Phase.generate,), database=None, deadline=None,
            derandomize=True, suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(cases(backward))
        def search(case: Case) -> None:
            result = run(case)
            spent.examples += 1
            spent.runs += RUNS.pop("runs", 0)
            spent.tokens += sum(case.values["seqlens"]["q"])
            if result.status is not Status.PASSED:
                spent.failed += 1
                self.failures += 1
                print(result.command, result.message, *(f.title for f in result.findings))

        with runs_counted(), without_hook():
            begin, cpu = time.perf_counter(), time.process_time()
            (search if clock is None else clock.timed("Hypothesis", search))()
            spent.cpu, spent.wall = time.process_time() - cpu, time.perf_counter() - begin
        return spent


def cases(backward: str) -> st.SearchStrategy[Case]:
    """Packed batches of up to 8 sequences of up to 100 tokens, with weight on edges of tiles."""
    length = st.integers(0, LONGEST) | st.sampled_from(EDGES)

    def batch(size: int) -> st.SearchStrategy[dict[str, object]]:
        some = st.lists(length, min_size=size, max_size=size)
        return st.fixed_dictionaries({"q": some, "k": st.just("same") | some})

    return st.builds(
        case_of, st.just(backward), st.sampled_from(("float16", "bfloat16")),
        st.sampled_from((1, 2)), st.booleans(), st.integers(1, MOST).flatmap(batch),
    )  # fmt: skip


def case_of(
    backward: str, dtype: str, groups: int, causal: bool, seqlens: dict[str, Any]
) -> Case:  # fmt: skip
    """A case of specs/gqa_varlen.yaml."""
    values = {
        "dtype": dtype, "kv_heads": HEADS // groups, "groups": groups, "head_dim": DIM,
        "head_dim_v": "same", "causal": causal, "window": None, "scale": None,
        "backward": None if backward == "default" else backward, "seqlens": seqlens,
    }  # fmt: skip
    return Case("gqa_varlen", values, origin="fuzz")


# Where the time goes ----------------------------------------------------------------------------

RUNS: Counter[str] = Counter()
TOLD = {"judge": "guards: buffers", "entry": "entry: operators"}
"""What `guards_counted` charges."""


@contextmanager
def runs_counted() -> Iterator[None]:
    """Counts calls of the entry."""
    plain = running.execute

    def execute(*arguments: Any, **keywords: Any) -> Any:
        RUNS["runs"] += 1
        return plain(*arguments, **keywords)

    with patched([(running, "execute", execute)]):
        yield


@contextmanager
def patched(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Other attributes for a while."""
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


@contextmanager
def clocked(clock: Clock) -> Iterator[None]:
    """Charges the parts of every example to the clock."""
    judge = judging._Judge  # noqa: SLF001 - where the checks of a case come by
    watch = sanitizers.Watch

    def timed(part: str, place: Any, name: str) -> tuple[Any, str, Any]:
        return place, name, clock.timed(part, getattr(place, name))

    def by_name(place: Any, name: str, part: Callable[..., str]) -> tuple[Any, str, Any]:
        plain = getattr(place, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            return clock.timed(part(*arguments, **keywords), plain)(*arguments, **keywords)

        return place, name, call

    def kernel(each: InterpretedKernel, *_: Any) -> str:
        session = current()
        watched = session is not None and session.sanitizers
        return f"kernel {each.name}{', sanitized' if watched else ''}"

    def reference(_: object, __: object, precision: Precision, *, sizes: bool = False) -> str:
        if sizes:
            return "reference: sizes of its terms"
        kind = str(precision.compute).removeprefix("torch.")
        return f"reference in {kind}"

    changes = [
        timed("inputs", family.AttentionFamily, "problem"),
        by_name(build, "attend", reference),
        timed("entry: autograd and Python around kernels", running, "execute"),
        by_name(InterpretedKernel, "__call__", kernel),
        timed("guards: buffers", Guards, "move"),
        timed("guards: canaries and inputs", Guards, "findings"),
        timed("sanitizers: reports", watch, "findings"),
        timed("numeric, gradients and poison: values", judge, "_numeric"),
        timed("determinism: comparing", judge, "_repeatable"),
        by_name(relations, "_judged", lambda check, *_: f"{check}: judging its own reference"),
        by_name(
            judge,
            "_related",
            lambda _, relation, *__, **___: f"{CHECK_OF_KIND[relation.kind]}: comparing",
        ),
        timed("relations: their problems", judge, "_one_in_turn"),
        timed("relations: their problems", judge, "_all"),
        timed("records", RecordsWriter, "case"),
    ]
    with patched(changes), guards_counted(clock):
        yield


def parts(spent: dict[str, float], examples: int) -> Table:
    """A row a part, the largest first."""
    total = sum(spent.values())
    table = Table("part", "ms", "%")
    named: dict[str, float] = defaultdict(float)
    for name, seconds in spent.items():
        named[TOLD.get(name, name)] += seconds
    for name, seconds in sorted(named.items(), key=lambda each: -each[1]):
        if seconds >= total / 1000:
            table.add_row(name, f"{1e3 * seconds / examples:.2f}", f"{100 * seconds / total:.1f}")
    table.add_row("all", f"{1e3 * total / examples:.2f}", "100")
    return table


if __name__ == "__main__":
    sys.exit(main())
