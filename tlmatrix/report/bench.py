"""Timings as tables: a case each, its implementations below the entry, a verdict for each of them.

Narrow terminals show the rate that is nearer to its roof; wide ones both, and what the host takes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tlmatrix.bench.results import State, speed_since
from tlmatrix.bench.statistics import Verdict
from tlmatrix.report.text import count
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from tlmatrix.bench.results import BenchFile, CaseTimes, PassTimes
    from tlmatrix.bench.roofs import Roof
    from tlmatrix.bench.statistics import Interval

__all__ = ["BenchReport"]

_ENTRY = "entry"
_WIDE = 108
_STYLES = {
    Verdict.FASTER: "bold green",
    Verdict.SAME: "green",
    Verdict.SLOWER: "bold red",
    Verdict.UNSURE: "yellow",
}


class BenchReport:
    """Prints timings to `console`; `before` is an earlier run, `since` what it is called."""

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

    def head(self, about: BenchFile) -> None:
        """What the timings were taken on."""
        hardware, versions = about.about.get("hardware", {}), about.about.get("versions", {})
        parts = [about.gpu or "unknown GPU"]
        if hardware.get("driver"):
            parts.append(f"driver {hardware['driver']}")
        parts += [f"{name} {versions[name]}" for name in ("torch", "tilelang") if name in versions]
        self._say(", ".join(parts), "bold")
        if self._roof is None:
            words = f"no peak is known of {about.gpu or 'it'}: shares of a roof are not shown"
            self._say(words, "yellow")

    def case(self, case: CaseTimes) -> None:
        """One case, all passes."""
        self._console.print()
        values = "  ".join(f"{name}={label(value)}" for name, value in case.values.items())
        self._say(f"{case.spec}: {values}", "bold")
        before = self._before.find(case) if self._before is not None else None
        if case.passes:
            self._console.print(self._table(case, before))
        for each in case.implementations:
            if each.state is not State.TIMED:
                style = "" if each.state is State.CANNOT else "bold red"
                self._say(f"  {each.name} {_STATES[each.state]}: {each.reason}", style)
        for line in _launch_bound(case):
            self._say(line, "yellow")
        if self._before is not None and before is None:
            self._say(f"  not in {self._since}", "yellow")

    def end(self, stored: str) -> None:
        """Counts of verdicts, and where everything is."""
        self._console.print()
        for verdicts, what in (
            (self.beside, "with other implementations"),
            (self.against, f"with {self._since}"),
        ):
            if verdicts:
                told = ", ".join(f"{verdicts[each]} {each}" for each in Verdict if verdicts[each])
                self._say(f"{count(sum(verdicts.values()), 'comparison')} {what}: {told}")
        if stored:
            self._say(f"timings: {stored}")

    def best(self, case: CaseTimes, gpu: str) -> None:
        """The fastest configuration of a sweep, to be written down."""
        for times in case.passes:
            configs = [who for who in times.samples if "=" in who]
            if not configs:
                continue
            best = min(configs, key=lambda who: times.time(who).median)
            self._say(f"  best of {count(len(configs), 'configuration')}, {times.name}, on {gpu}:")
            for pair in best.split(","):
                self._say(f"    {pair.replace('=', ': ', 1)}", "green")

    def _table(self, case: CaseTimes, before: CaseTimes | None) -> Table:
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="")
        table.add_column(
            "", no_wrap=True, overflow="ellipsis", max_width=None if self._wide else 18
        )
        columns = ["ms", "±", "rate", "roof", "entry's speed"]
        if self._wide:
            columns = [
                "ms",
                "±",
                "operations",
                "roof",
                "memory",
                "roof",
                "host ms",
                "entry's speed",
            ]
        elif self._console.width < 84:
            columns.remove("±")
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for times in case.passes:
            table.add_row(Text(times.name, style="bold"))
            for row in self._rows(case, times, before):
                table.add_row(*row)
        return table

    def _rows(
        self, case: CaseTimes, times: PassTimes, before: CaseTimes | None
    ) -> Iterator[list[str | Text]]:
        order = [who for who in times.samples if "=" not in who]
        configs = [who for who in times.samples if "=" in who]
        order += sorted(configs, key=lambda who: times.time(who).median)
        for who in order:
            ending = None
            if who != _ENTRY and _ENTRY in times.samples:
                ending = times.speed(_ENTRY, who)
                self.beside[ending.verdict(self._margin)] += "=" not in who
            host = times.samples[who].host
            yield self._row(case, times, f"  {who}", times.time(who), host, ending)
            earlier = before.named(times.name) if before is not None else None
            if who == _ENTRY and earlier is not None:
                speed = speed_since(times, earlier, _ENTRY)
                if speed is not None:
                    self.against[speed.verdict(self._margin)] += 1
                    yield self._row(case, times, "  entry before", earlier.time(_ENTRY), 0.0, speed)

    def _row(
        self,
        case: CaseTimes,
        times: PassTimes,
        who: str,
        time: Interval,
        host: float,
        speed: Interval | None,
    ) -> list[str | Text]:
        spread = 50 * (time.high - time.low) / time.median
        operations, memory = self._rates(case, times, time.median)
        row: list[str | Text] = [
            who,
            f"{time.median:.4f}" if time.median < 10 else f"{time.median:.2f}",
        ]
        if self._wide:
            row += [f"{spread:.1f} %", *operations[:2], *memory[:2], f"{host:.3f}" if host else ""]
        else:
            nearer = operations if operations[2] >= memory[2] else memory
            row += [f"{spread:.1f} %"] if self._console.width >= 84 else []
            row += nearer[:2]
        if speed is None:
            return [*row, "", ""]
        verdict = speed.verdict(self._margin)
        words = f"{speed.median:.3f} ({speed.low:.3f}-{speed.high:.3f})"
        return [*row, words, Text(verdict, style=_STYLES[verdict])]

    def _rates(
        self, case: CaseTimes, times: PassTimes, milliseconds: float
    ) -> tuple[tuple[str, str, float], tuple[str, str, float]]:
        """Operations and bytes a second as words, with their shares of the roof."""
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
            words = f"{rate / 1e12:.{digits}f} {unit}" if amount else ""
            rates.append((words, f"{100 * share:.0f} %" if most and amount else "", share))
        return rates[0], rates[1]

    def _say(self, words: str, style: str = "") -> None:
        self._console.print(Text(words, style=style), highlight=False)


_STATES = {
    State.CANNOT: "cannot",
    State.WRONG: "is wrong and is not timed",
    State.FAILED: "failed",
}


def _launch_bound(case: CaseTimes) -> Iterator[str]:
    """Who keeps the device waiting: with one call after the other, the host's time counts."""
    for times in case.passes:
        slow = [
            f"{who} {samples.host:.3f}"
            for who, samples in times.samples.items()
            if samples.host > times.time(who).median
        ]
        if slow:
            yield f"  {times.name}: the host takes longer than the device (ms): {', '.join(slow)}"
