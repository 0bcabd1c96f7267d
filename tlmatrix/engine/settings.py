"""The settings of a run: from options, the resumed run, and the project, in this order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.exit_codes import UsageError
from tlmatrix.options.table import (
    ARCH,
    BACKEND,
    COMPUTE_SANITIZER,
    KEEP,
    NO_FUZZ,
    ONLY,
    PERTURB,
    RESULTS,
    RESUME,
    SEED,
    SHARD,
    TIER,
    TIMEOUT,
    TIMES,
)
from tlmatrix.results_file import kept_results, new_results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.backend.assembly import Keep
    from tlmatrix.config import Config
    from tlmatrix.options.table import RunOptions
    from tlmatrix.run.compute_sanitizer import ComputeSanitizer
    from tlmatrix.run.records import RunRecords


class ShardError(ValueError):
    """The text is not a shard, or there are too many shards."""


@dataclass(frozen=True)
class Shard:
    """Shard `number`, from 1, of `count`."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `3/16`.

        Raises:
            ShardError: the text is not a shard.
        """
        found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            most = int(found[2]) if found and int(found[2]) else 16
            raise ShardError(
                f"{text!r} is no shard; write NUMBER/COUNT, from 1/{most} to {most}/{most}"
            )
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run.

    Attributes:
        options: the options of the run.
        results: the results file.
        passed_before: cases of the resumed run that need not run again: (absolute path of the spec,
            id).
        problems: lines of the resumed results file that cannot be used.
        again: why cases that passed in the resumed run run again.
        shard: the part of the plan that runs; None for all of it.
        times: the results file with the times by which the plan is sharded.
        own_timeout: whether the user gave the time limit of this run.
    """

    options: RunOptions
    results: Path
    passed_before: frozenset[tuple[str, str]] = frozenset()
    problems: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    shard: Shard | None = None
    times: str = ""
    own_timeout: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any], project: Config, root: Path) -> RunSettings:
        """The settings of a run whose entries are imported from `root`.

        Raises:
            UsageError: options exclude each other, or the run to resume does not exist.
        """
        resumed = _resumed(given.get(RESUME.name), given.get(RESULTS.name))
        options = project.options.updated(_recorded(resumed)).updated(given)
        chosen = architectures(given.get(ARCH.name), options[BACKEND])
        options = options.updated({ARCH.name: chosen})
        shard = _shard(options[SHARD] or "")
        passed, again = _passed(resumed, root, options)
        new = new_results(given.get(RESULTS.name), project, "run")
        return cls(
            options,
            results=resumed.path.resolve() if resumed else new,
            passed_before=passed,
            problems=resumed.problems if resumed else (),
            again=again,
            shard=shard,
            times=_times(options[TIMES], project) if shard else "",
            own_timeout=given.get(TIMEOUT.name) is not None,
        )

    @property
    def timeout(self) -> float:
        """The time limit of a case in seconds; 0 for none.

        A case of the backend `compile` has many kernels, of which every compiler step has its own
        limit: only one that was given applies to the case.
        """
        if self.options[BACKEND] == "compile" and not self.own_timeout:
            return 0.0
        return self.options[TIMEOUT]

    @property
    def runs_fuzz_cases(self) -> bool:
        """Whether the fuzz cases of the tier run; if kernels do not, they add nothing."""
        from tlmatrix.backend import backend_class

        wanted = not self.options[NO_FUZZ] and self.options[ONLY] is None
        return wanted and backend_class(self.options[BACKEND]).executes

    @cached_property
    def keep(self) -> Keep | None:
        """What to keep of compiled kernels.

        Raises:
            UsageError: the backend compiles no kernels, or there is no such kind of file.
        """
        if not (kinds := self.options[KEEP]):
            return None
        if self.options[BACKEND] != "compile":
            raise UsageError("--keep: only the backend compile keeps kernels")
        from tlmatrix.backend.assembly import Keep

        try:
            return Keep.parse(kinds, self.results)
        except ValueError as error:
            raise UsageError(f"--keep: {error}") from error

    @cached_property
    def compute_sanitizer(self) -> ComputeSanitizer | None:
        """The tools of compute-sanitizer that run each case again; None for none.

        Raises:
            UsageError: there is no such tool, or compute-sanitizer is not installed.
        """
        if not (tools := self.options[COMPUTE_SANITIZER]):
            return None
        from tlmatrix.run.compute_sanitizer import ComputeSanitizer, ComputeSanitizerError

        try:
            return ComputeSanitizer.named(tools)
        except ComputeSanitizerError as error:
            raise UsageError(f"--compute-sanitizer: {error}") from error

    def require(self) -> None:
        """Check what only a run needs.

        Raises:
            UsageError: the backend or a tool is not available.
        """
        _ = self.keep, self.compute_sanitizer
        require_backend(self.options)


def require_backend(options: RunOptions) -> None:
    """Check that the backend is available; the processes of the run inherit `--perturb`.

    Raises:
        UsageError: it is not.
    """
    name, seed = options[BACKEND], options[PERTURB]
    if name == "auto" and seed is None:
        return  # always available, and the check would import PyTorch
    from tlmatrix.backend import BackendUnavailableError, backend_named

    try:
        backend_named(name, perturb=seed)
    except BackendUnavailableError as error:
        raise UsageError(str(error)) from error


def _resumed(path: str | None, results: str | None) -> RunRecords | None:
    if path is None:
        return None
    from tlmatrix.run.records import RecordsError, read_records

    if results is not None and Path(results).resolve() != Path(path).resolve():
        raise UsageError(
            f"--results {results}: a resumed run appends to its own file, {path}; omit --results, "
            "and copy that file first to keep it"
        )
    try:
        return read_records(Path(path))
    except (OSError, RecordsError) as error:
        raise UsageError(f"--resume {path}: {error}") from error


def _recorded(resumed: RunRecords | None) -> dict[str, Any]:
    """The options of a resumed run that its header has."""
    if resumed is None:
        return {}
    header = resumed.header
    recorded = {TIER: header.tier, BACKEND: header.backend, SEED: header.seed, TIMES: header.times}
    recorded |= {ARCH: list(header.architectures) or None, SHARD: header.shard or None}
    return {option.name: value for option, value in recorded.items()}


def architectures(given: Sequence[str] | None, backend: str) -> list[str] | None:
    """The given architectures, each once.

    Raises:
        UsageError: there is no such architecture, or the backend runs on the one that it has.
    """
    if given is None:
        return None
    if backend not in ("compile", "interpreter", "lowered"):
        raise UsageError("--arch needs --backend compile, interpreter or lowered")
    from tlmatrix.spec.model.fields import TARGET_ARCH

    for arch in given:
        if not re.fullmatch(TARGET_ARCH, arch):
            raise UsageError(
                f"--arch {arch}: unknown architecture; expected sm_80, sm_90a, sm_100a or similar, "
                "with a letter from sm_90 on"
            )
    return list(dict.fromkeys(given))


def _shard(given: str) -> Shard | None:
    if not given:
        return None
    try:
        return Shard.parse(given)
    except ShardError as error:
        raise UsageError(f"--shard: {error}") from error


def _times(given: str | None, project: Config) -> str:
    """The results file with recorded times: the given or resumed one, else the last run here."""
    if given is None:
        return next((str(path.resolve()) for path in kept_results(None, project, "run")), "")
    if given and not Path(given).is_file():
        raise UsageError(f"--times {given}: no such file; --times '' shards without times")
    return str(Path(given).resolve()) if given else ""


def _passed(
    resumed: RunRecords | None, root: Path, options: RunOptions
) -> tuple[frozenset[tuple[str, str]], tuple[str, ...]]:
    if resumed is None:
        return frozenset(), ()
    from tlmatrix.run.records import reusable

    return reusable(resumed, (root,), seed=options[SEED], backend=options[BACKEND])
