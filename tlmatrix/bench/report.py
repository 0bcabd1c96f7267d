"""Prints timings: a table per case, with a row and a verdict for each implementation.

Wide terminals show both rates and the host's time; narrow ones only the rate nearer to its roof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tlmatrix.bench.results import State, speed_since
from tlmatrix.bench.statistics import Verdict
from tlmatrix.report.text import count
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from rich.console import Console

    from tlmatrix.bench.results import BenchFile, CaseTimes, PassTimes
    from tlmatrix.bench.roofs import Roof
    from tlmatrix.bench.statistics import Interval

_ENTRY = "entry"
_WIDE = 108
"""Least width of a terminal for all columns of a table."""
_NUMBERS = 86
"""Width of the numeric columns of a wide table."""
_NAME = 18
"""Width of the names on a narrow terminal."""
_SPREAD = 84
"""Least width of a terminal for the column `±` of a narrow table."""
_COLUMNS = {
    "ms": "ms",
    "spread": "±",
    "rate": "rate",
    "of rate": "roof",
    "speed": "entry's speed",
    "verdict": "",
}
_WIDE_COLUMNS = {
    "ms": "ms",
    "spread": "±",
    "operations": "operations",
    "of operations": "roof",
    "memory": "memory",
    "of memory": "roof",
    "host": "host ms",
    "speed": "entry's speed",
    "verdict": "",
}
_STYLES = {
    Verdict.FASTER: "bold green",
    Verdict.SAME: "green",
    Verdict.SLOWER: "bold red",
    Verdict.UNSURE: "yellow",
}


class BenchReport:
    """Prints timings to `console`, compared with an earlier run `before`, named `since`."""

    def __init__(
        self,
        console: Console,
        roof: Roof | None,
        margin: float,
        before: BenchFile | None = None,
        since: str = "",
    ) -> None:
        self._console = console
        self._roof = roof
        self._margin = margin
        self._before = before
        self._since = since
        self._wide = console.width >= _WIDE
        self.beside: Counter[Verdict] = Counter()
        """Verdicts of the entry against other implementations."""
        self.against: Counter[Verdict] = Counter()
        """Verdicts of the entry against the earlier run."""

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Show a status line while the context is active, on a terminal only."""
        return self._console.status(text) if self._console.is_terminal else nullcontext()

    def head(self, about: BenchFile) -> None:
        """Print the GPU and the versions."""
        hardware, versions = about.about.get("hardware", {}), about.about.get("versions", {})
        parts = [about.gpu or "unknown GPU"]
        if hardware.get("driver"):
            parts.append(f"driver {hardware['driver']}")
        parts += [f"{name} {versions[name]}" for name in ("torch", "tilelang") if name in versions]
        self._print(", ".join(parts), "bold")
        if self._roof is None:
            gpu = about.gpu or "this GPU"
            self._print(f"the peak rates of {gpu} are unknown: no column `roof`", "yellow")

    def case(self, case: CaseTimes) -> None:
        """Print one case with all passes."""
        self._console.print()
        values = "  ".join(f"{name}={label(value)}" for name, value in case.values.items())
        self._print(f"{case.spec}: {values}", "bold")
        before = self._before.find(case) if self._before is not None else None
        if case.passes:
            self._console.print(self._table(case, before))
        for each in case.implementations:
            if each.state is not State.TIMED:
                style = "" if each.state is State.NOT_APPLICABLE else "bold red"
                self._print(f"  {each.name} {_STATES[each.state]}: {each.reason}", style)
        for line in _launch_bound(case):
            self._print(line, "yellow")
        if self._before is not None and before is None:
            self._print(f"  not in {self._since}", "yellow")

    def end(self, stored: str) -> None:
        """Print the counts of verdicts and the path of the file."""
        self._console.print()
        for verdicts, what in (
            (self.beside, "with other implementations"),
            (self.against, f"with {self._since}"),
        ):
            if verdicts.total():
                counts = ", ".join(f"{verdicts[each]} {each}" for each in Verdict if verdicts[each])
                self._print(f"{count(sum(verdicts.values()), 'comparison')} {what}: {counts}")
        if stored:
            self._print(f"timings: {stored}")

    def best(self, case: CaseTimes, gpu: str) -> None:
        """Print the fastest configuration of a sweep as YAML."""
        for times in case.passes:
            configs = {name: each for name, each in case.configs.items() if name in times.samples}
            if not configs:
                continue
            best = min(configs, key=lambda name: times.time(name).median)
            self._print(
                f"  best of {count(len(configs), 'configuration')}, {times.name}, on {gpu}:"
            )
            for name, value in configs[best].items():
                self._print(f"    {name}: {_yaml(value)}", "green")

    def _table(self, case: CaseTimes, before: CaseTimes | None) -> Table:
        """The table of all passes, without empty columns."""
        rows: list[dict[str, str | Text]] = []
        widest = self._console.width - _NUMBERS if self._wide else _NAME
        names, legend = _shown_names(case, widest - 2)
        if legend:
            self._print(f"  configurations as {legend}")
        for times in case.passes:
            rows.append({"name": Text(times.name, style="bold")})
            rows += self._rows(case, times, before, names)
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="")
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=widest)
        width = self._console.width
        offered = _WIDE_COLUMNS if self._wide else _COLUMNS
        columns = {
            name: title
            for name, title in offered.items()
            if any(row.get(name) for row in rows) and (name != "spread" or width >= _SPREAD)
        }
        for name, title in columns.items():
            table.add_column(title, justify="left" if name == "verdict" else "right", no_wrap=True)
        for row in rows:
            table.add_row(row["name"], *(row.get(name, "") for name in columns))
        return table

    def _rows(
        self,
        case: CaseTimes,
        times: PassTimes,
        before: CaseTimes | None,
        names: Mapping[str, str],
    ) -> Iterator[dict[str, str | Text]]:
        configs = case.configs
        order = [name for name in times.samples if name not in configs]
        swept = [name for name in times.samples if name in configs]
        order += sorted(swept, key=lambda name: times.time(name).median)
        earlier = before.named(times.name) if before is not None else None
        for name in order:
            row = {"name": f"  {names[name]}", **self._cells(case, times, times.time(name))}
            if host := times.samples[name].host:
                row["host"] = f"{host:.3f}"
            if name != _ENTRY and _ENTRY in times.samples:
                speed = times.speed(_ENTRY, name)
                self.beside[speed.verdict(self._margin)] += name not in configs
                row |= self._verdict(speed)
            yield row
            if name == _ENTRY and earlier is not None and _ENTRY in earlier.samples:
                since = speed_since(times, earlier, _ENTRY)
                self.against[since.verdict(self._margin)] += 1
                cells = self._cells(case, times, earlier.time(_ENTRY))
                yield {"name": "  entry before", **cells, **self._verdict(since)}

    def _verdict(self, speed: Interval) -> dict[str, str | Text]:
        verdict = speed.verdict(self._margin)
        return {
            "speed": f"{speed.median:.3f} ({speed.low:.3f}-{speed.high:.3f})",
            "verdict": Text(verdict, style=_STYLES[verdict]),
        }

    def _cells(self, case: CaseTimes, times: PassTimes, time: Interval) -> dict[str, str | Text]:
        operations, memory = self._rates(case, times, time.median)
        nearer = operations if operations[0] and operations[2] >= memory[2] else memory
        return {
            "ms": f"{time.median:.4f}" if time.median < 10 else f"{time.median:.2f}",
            "spread": f"{50 * (time.high - time.low) / time.median:.1f} %",
            "operations": operations[0],
            "of operations": operations[1],
            "memory": memory[0],
            "of memory": memory[1],
            "rate": nearer[0],
            "of rate": nearer[1],
        }

    def _rates(
        self, case: CaseTimes, times: PassTimes, milliseconds: float
    ) -> tuple[tuple[str, str, float], tuple[str, str, float]]:
        """Operations and bytes per second as (text, share of the roof as text, share)."""
        if times.cost is None:
            return ("", "", 0.0), ("", "", 0.0)
        rates = []
        peak = self._roof.peak(case.dtype) if self._roof is not None else None
        bandwidth = self._roof.bandwidth if self._roof is not None else None
        for amount, most, unit in (
            (times.cost.flops, peak, "TFLOP/s"),
            (times.cost.bytes, bandwidth, "TB/s"),
        ):
            rate = amount / milliseconds * 1e3
            share = rate / most if most else 0.0
            digits = 2 if unit == "TB/s" else 0 if rate >= 1e13 else 1
            text = f"{rate / 1e12:.{digits}f} {unit}" if amount else ""
            rates.append((text, f"{100 * share:.0f} %" if most and amount else "", share))
        return rates[0], rates[1]

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), highlight=False)


_STATES = {
    State.NOT_APPLICABLE: "not applicable",
    State.WRONG: "is wrong and is not timed",
    State.FAILED: "failed",
}


def _shown_names(case: CaseTimes, widest: int) -> tuple[dict[str, str], str]:
    """Names of implementations that fit a table, and a legend for abbreviated ones.

    If names of configurations are too long, they are abbreviated to their values: `192/128/2` with
    the legend `queries/keys/stages`.
    """
    names = {each.name: each.name for each in case.implementations}
    leaves = {name: dict(_leaves(config)) for name, config in case.configs.items()}
    if not any(len(name) > widest for name in leaves):
        return names, ""
    keys = {tuple(each) for each in leaves.values()}
    if len(keys) != 1:
        return names, ""
    short = {
        name: "/".join(_yaml(value) for value in each.values()) for name, each in leaves.items()
    }
    return names | short, "/".join(keys.pop())


def _leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The scalar values of a nested configuration."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield name, value


def _yaml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_yaml(each)}" for name, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _launch_bound(case: CaseTimes) -> Iterator[str]:
    """Lines about implementations whose launches take longer on the host than on the device."""
    for times in case.passes:
        slow = [
            f"{name} {samples.host:.3f}"
            for name, samples in times.samples.items()
            if samples.host > times.time(name).median
        ]
        if slow:
            yield f"  {times.name}: the host takes longer than the device (ms): {', '.join(slow)}"
