"""The settings of a session, from options, the resumed run, and the project, in this order."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.options.run_options import RunOptions
from tlmatrix.options.table import (
    ARCH,
    BACKEND,
    RESULTS,
    RESUME,
    SEED,
    SHARD,
    TIER,
    TIMEOUT,
    TIMES,
    plugin_options,
)
from tlmatrix.results_file import kept_results, new_results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.config import Config
    from tlmatrix.options.option import Option
    from tlmatrix.run.events import RunHeader
    from tlmatrix.run.records import RunRecords
    from tlmatrix.run.shards import Shard


@dataclass(frozen=True)
class Settings:
    """The settings of a session, the same in the controller of pytest-xdist and in every worker.

    Attributes:
        options: the options of the run.
        results_path: the results file.
        passed_before: cases of the resumed run that need not run again: (absolute path of the spec,
            id).
        problems: lines of the resumed results file that cannot be used, and why cases run again.
        shard: the part of the plan that runs; None for all of it.
        times: the results file with the times by which the plan is sharded.
        sources: the parts of the sources with which the run began, by absolute path of the spec;
            empty before it began.
    """

    options: RunOptions
    results_path: Path
    passed_before: frozenset[tuple[str, str]]
    problems: tuple[str, ...] = ()
    shard: Shard | None = None
    times: str = ""
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """The settings as plain data, for a worker."""
        return asdict(self) | {
            "options": dict(self.options.values),
            "results_path": str(self.results_path),
            "passed_before": sorted(self.passed_before),
            "problems": [],
            "shard": str(self.shard) if self.shard else "",
        }

    @classmethod
    def from_plain(cls, sent: Mapping[str, Any]) -> Settings:
        """The settings that `to_plain` converted."""
        known = {
            "options": RunOptions(sent["options"]),
            "results_path": Path(sent["results_path"]),
            "passed_before": frozenset(map(tuple, sent["passed_before"])),
            "problems": tuple(sent["problems"]),
            "shard": _shard(sent["shard"]),
        }
        return cls(**{**sent, **known})


def _shard(given: str) -> Shard | None:
    if not given:
        return None
    # Here, not above: sessions without specs import none of this.
    from tlmatrix.run.shards import Shard, ShardError

    try:
        return Shard.parse(given)
    except ShardError as error:
        raise pytest.UsageError(f"--shard: {error}") from error


def own_timeout(config: pytest.Config) -> float:
    """The seconds of a test by pytest-timeout's options; 0 without, or with `-p no:timeout`."""
    if not hasattr(config.option, "timeout"):
        return 0.0
    return float(config.option.timeout or config.getini("timeout") or 0)


def settings_of(config: pytest.Config, project: Config) -> Settings:
    """The settings of a session.

    Raises:
        UsageError: options exclude each other, or the run to resume does not exist.
    """
    if (seconds := own_timeout(config)) not in TIMEOUT.kind:
        raise pytest.UsageError(f"--timeout {seconds:g}: must be {TIMEOUT.kind}")
    given = {
        each.name: getattr(config.option, f"tlmatrix_{each.name}") for each in plugin_options()
    }
    resumed = _resumed(given[RESUME.name], given[RESULTS.name])
    header = resumed.header if resumed else None
    options = project.options.updated(_recorded(header) if header else {}).updated(given)
    options = options.updated({ARCH.name: _architectures(given[ARCH.name], options[BACKEND])})
    shard = _shard(options[SHARD] or "")
    passed, again = _passed(resumed, config.rootpath, options[SEED], options[BACKEND])
    return Settings(
        options,
        results_path=(
            resumed.path.resolve() if resumed else new_results(given[RESULTS.name], project, "run")
        ),
        passed_before=passed,
        problems=(*resumed.problems, *again) if resumed else (),
        shard=shard,
        times=_times(options[TIMES], project) if shard else "",
    )


def _recorded(header: RunHeader) -> dict[str, Any]:
    """The options of a resumed run that its header has."""
    recorded: dict[Option[Any], object] = {
        TIER: header.tier,
        BACKEND: header.backend,
        SEED: header.seed,
        TIMES: header.times,
        ARCH: list(header.architectures) or None,
        SHARD: header.shard or None,
    }
    return {option.name: value for option, value in recorded.items()}


def _times(given: str | None, project: Config) -> str:
    """The results file with recorded times: the given or resumed one, else the last run here."""
    if given is None:
        return next((str(path.resolve()) for path in kept_results(None, project, "run")), "")
    if given and not Path(given).is_file():
        raise pytest.UsageError(f"--times {given}: no such file; --times '' shards without times")
    return str(Path(given).resolve()) if given else ""


def _architectures(given: Sequence[str] | None, backend: str) -> list[str] | None:
    """The given architectures, each once."""
    if given is None:
        return None
    if backend != "compile":
        raise pytest.UsageError("--arch needs --backend compile")
    from tlmatrix.spec.model.fields import TARGET_ARCH

    for arch in given:
        if not re.fullmatch(TARGET_ARCH, arch):
            raise pytest.UsageError(
                f"--arch {arch}: unknown architecture; expected sm_80, sm_90a, sm_100a or similar, "
                "with a letter from sm_90 on"
            )
    return list(dict.fromkeys(given))


def _resumed(path: str | None, results: str | None) -> RunRecords | None:
    if path is None:
        return None
    from tlmatrix.run.records import RecordsError, read_records

    if results is not None and Path(results).resolve() != Path(path).resolve():
        raise pytest.UsageError(
            f"--results {results}: a resumed run appends to its own file, {path}; omit --results, "
            "and copy that file first to keep it"
        )
    try:
        return read_records(Path(path))
    except (OSError, RecordsError) as error:
        raise pytest.UsageError(f"--tlmatrix-resume {path}: {error}") from error


def _passed(
    resumed: RunRecords | None, root: Path, seed: int, backend: str
) -> tuple[frozenset[tuple[str, str]], tuple[str, ...]]:
    if resumed is None:
        return frozenset(), ()
    from tlmatrix.run.records import reusable

    return reusable(resumed, (root,), seed=seed, backend=backend)
