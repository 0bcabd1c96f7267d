"""`tlmatrix merge`: puts the results of all shards of a run into one file."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.engine.settings import Shard
from tlmatrix.exit_codes import ExitCode, OutputError, UsageError, writing
from tlmatrix.report.text import count
from tlmatrix.results_file import PACKAGES, shown_path
from tlmatrix.run.events import Summary
from tlmatrix.run.records import RecordsError, RecordsWriter, read_records
from tlmatrix.run.result import FAILURES, Status

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from tlmatrix.config import Config
    from tlmatrix.run.records import RunRecords

_NAMED = 5
"""Cases of a shard without a result that are named."""
_COVERAGE = (b'{"record":"sites"', b'{"record":"coverage"')
"""The start of records of coverage."""


def merge(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Merge the results files of shards.

    Raises:
        UsageError: shards or results of cases are missing, or they are of several runs; nothing is
            written.
        OutputError: the file cannot be written.
    """
    output = Path(arguments.output)
    shards = _newest_of_each(_records(arguments.paths, output))
    problems = list(_problems(shards))
    if problems:
        raise UsageError("\n".join(["merge: nothing is written:", *problems]))
    _write(output, shards)
    results = [result for records in shards for result in records.results]
    counts = Counter(result.status for result in results)
    words = ", ".join(f"{number} {status}" for status in Status if (number := counts[status]))
    cases = f"{count(len(results), 'case')} of {count(len(shards), 'shard')}"
    print(f"{cases}: {words}\nresults: {shown_path(output.resolve())}")
    return ExitCode.FINDINGS if any(counts[status] for status in FAILURES) else ExitCode.OK


def _records(paths: Iterable[str], output: Path) -> Iterator[RunRecords]:
    """The results files of shards in folders, or of given paths."""
    for given in map(Path, paths):
        if not given.exists():
            raise UsageError(f"merge: no such file or folder: {given}")
        files = sorted(given.rglob("*.jsonl")) if given.is_dir() else [given]
        for file in files:
            if file.resolve() == output.resolve():
                continue
            try:
                records = read_records(file)
            except (OSError, RecordsError) as error:
                if given.is_dir():
                    continue
                raise UsageError(f"merge: {error}") from error
            if records.header.shard:
                yield records
            elif not given.is_dir():
                raise UsageError(f"merge: {file} is not of a shard (`tlmatrix run --shard I/N`)")


def _newest_of_each(found: Iterable[RunRecords]) -> list[RunRecords]:
    """The last run of each shard of each plan, in their order."""
    newest: dict[tuple[str, str], RunRecords] = {}
    for records in found:
        key = (records.header.plan, records.header.shard)
        if key not in newest or newest[key].header.started <= records.header.started:
            newest[key] = records
    if not newest:
        raise UsageError("merge: no results of shards there (`tlmatrix run --shard I/N`)")
    return sorted(newest.values(), key=lambda records: Shard.parse(records.header.shard).number)


def _problems(shards: Sequence[RunRecords]) -> Iterator[str]:
    """What is missing, one line each."""
    plans = Counter(records.header.plan for records in shards)
    if len(plans) > 1:
        yield (
            "the shards are of several plans: the specs, options or recorded times (--times) of "
            "their runs differ"
        )
        for records in shards:
            yield f"  {records.path}: shard {records.header.shard} of plan {records.header.plan}"
        return
    yield from _mixed(shards)
    parsed = [Shard.parse(records.header.shard) for records in shards]
    total = parsed[0].count
    there = {shard.number for shard in parsed}
    for number in range(1, total + 1):
        if number not in there:
            yield f"shard {number}/{total} is missing"
    for records in shards:
        yield from _missing_cases(records)


def _mixed(shards: Sequence[RunRecords]) -> Iterator[str]:
    """What differs between the shards, so that they are not one run: each with its values."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for records in shards:
        file = shown_path(records.path.resolve())
        for name, value in _facts(records):
            found.setdefault(name, {}).setdefault(value, {})[file] = None
    for name, values in found.items():
        if len(values) > 1:
            words = "; ".join(
                f"{value or 'none'} in {', '.join([*files][:_NAMED])}"
                for value, files in values.items()
            )
            yield f"the results have different values of {name}: {words}"


def _facts(records: RunRecords) -> Iterator[tuple[str, str]]:
    """What must be equal in all results of a run: its settings, versions and sources."""
    header = records.header
    yield "--tier", header.tier
    yield "--backend", header.backend
    yield "--arch", " ".join(header.architectures)
    yield "-k", header.select
    yield "--no-fuzz", str(not header.fuzz)
    for seed in {header.seed, *(result.seed for result in records.results)}:
        yield "--seed", str(seed)
    for name in PACKAGES[:3]:
        yield name, header.versions.get(name, "")
    for path, digest in {(result.path, result.sources) for result in records.results}:
        for name, value in records.sources.get(digest, {}).items():
            yield (name if name in PACKAGES else f"{name} ({path})"), value


def _missing_cases(records: RunRecords) -> Iterator[str]:
    shard, file = records.header.shard, shown_path(records.path.resolve())
    yield from records.problems
    missing = records.missing
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        planned = sum(map(len, records.planned.values()))
        yield (
            f"shard {shard}: {len(missing)} of {count(planned, 'case')} have no result: "
            f"{', '.join(missing[:_NAMED])}{more}; `tlmatrix run --resume {shlex.quote(file)}` "
            "runs them"
        )


def _write(output: Path, shards: Sequence[RunRecords]) -> None:
    """Write one results file: a header, the last record of each case, and a summary."""
    with writing("-o", output):
        if output.is_file():
            output.unlink()
    writer = RecordsWriter(output)
    first = shards[0].header
    command = shlex.join(["tlmatrix", "merge", *(shown_path(each.path) for each in shards)])
    sources = {path: parts for each in shards for path, parts in each.header.sources.items()}
    writer.header(replace(first, shard="", command=command, sources=sources))
    for records in shards:
        writer.plan(records.planned)
    for records in shards:
        for result in records.results:
            writer.case(result)
        for line in records.path.read_bytes().splitlines():
            if line.startswith(_COVERAGE):
                writer.copy(line)
    results = [result for records in shards for result in records.results]
    counts = Counter(str(result.status) for result in results)
    seconds = sum(records.summary.seconds for records in shards if records.summary is not None)
    failed = any(result.failed for result in results)
    writer.summary(Summary(dict(counts), round(seconds, 3), int(failed)))
    writer.close()
    if writer.error:
        raise OutputError(f"-o {output}: cannot be written: {writer.error}")
