"""Saves failing cases to `regressions` of a spec's own file; verdicts on them.

Every other byte of the YAML file is preserved. Before writing, the new text is parsed and compared
with the expected content; it replaces the file atomically and is read again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tlmatrix.cache_files import lock
from tlmatrix.matrix.listed_cases import listed_cases
from tlmatrix.run.result import Status
from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.loader import parse_spec
from tlmatrix.spec.values import canonical, label
from tlmatrix.spec.yaml.text import appended, flow
from tlmatrix.spec.yaml.tree import plain, read_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import date

    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Spec

_Entry = dict[str, Any]
_KEY = "regressions"


class Verdict(StrEnum):
    """The state of a regression after a run."""

    FIXED = "FIXED"
    FAILED = "FAILED"
    """A check has a finding, known bug or not."""
    ERROR = "ERROR"
    """The code raised, crashed or timed out, or the spec does not match it."""
    SKIPPED = "SKIPPED"
    """The case cannot run here, or is quarantined."""


_OF_STATUS = {
    Status.PASSED: Verdict.FIXED,
    Status.FAILED: Verdict.FAILED,
    Status.KNOWN_BUG: Verdict.FAILED,
    Status.ERROR: Verdict.ERROR,
    Status.CRASHED: Verdict.ERROR,
    Status.TIMEOUT: Verdict.ERROR,
    Status.SKIPPED: Verdict.SKIPPED,
    Status.QUARANTINED: Verdict.SKIPPED,
}


def verdict(result: CaseResult) -> Verdict:
    """The verdict on a regression with this result."""
    if any(finding.check == "known_bugs" for finding in result.findings):
        return Verdict.FIXED  # it passed, so its entry in known_bugs is stale
    return _OF_STATUS[result.status]


def reason(result: CaseResult) -> str:
    """The first finding and the message of a result, in one line; empty if it has neither."""
    parts = [finding.summary for finding in result.findings[:1]]
    if len(result.findings) > 1:
        parts.append(f"and {len(result.findings) - 1} more")
    return "; ".join([*parts, *([result.message] if result.message else [])])


def save(
    path: Path,
    cases: Sequence[Case],
    *,
    failed: Mapping[Case, str] | None = None,
    found: date | None = None,
    seed: int = 0,
) -> tuple[Case, ...]:
    """Append resolved cases to `regressions` of a spec's file; return the new ones.

    `failed` describes the failure of each case, `found` is the date, `seed` that of the run. With
    none of them an entry consists of the values alone. Comments, layout and line endings of the
    file are preserved. Several processes may save to the same file.

    Raises:
        SpecError: the file is not a spec, a case is invalid in it (an unknown axis, a constraint
            that excludes it, a duplicate id), or the file cannot be written. The file is unchanged.
    """
    with _locked(path):
        content = _read(path)
        spec = parse_spec(content, path)
        known = {case for case in listed_cases(spec) if case.origin == "regression"}
        new = tuple(case for case in dict.fromkeys(cases) if case not in known)
        entries = []
        for case in new:
            _refuse_labels(spec, case)
            notes = {"failed": (failed or {}).get(case), "found": found, "seed": seed or None}
            entries.append(_entry(spec, case, {key: each for key, each in notes.items() if each}))
        if new:
            _write(path, content, _with_entries(content, path, entries))
    return new


# Entries -------------------------------------------------------------------------------------


def _entry(spec: Spec, case: Case, notes: Mapping[str, object]) -> _Entry:
    """The YAML entry of a case, with axes in the order of the spec."""
    ordered = {axis: case.values[axis] for axis in spec.axes if axis in case.values}
    values = _plain({**ordered, **case.values})
    # The long form is needed if an axis named `case` would make the short one ambiguous.
    return {"case": values, **notes} if notes or isinstance(values.get("case"), dict) else values


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of an axis
    """Convert a value to the types that the YAML reader returns."""
    match value:
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value


def _refuse_labels(spec: Spec, case: Case) -> None:
    """Raise SpecError if a value has the same label in case ids as another value of its axis."""
    for axis, value in case.values.items():
        for other in spec.axes.get(axis, ()):
            if label(other) == label(value) and canonical(other) != canonical(value):
                message = f"{flow(value)} and {flow(other)} are both {label(value)!r} in a case id"
                raise SpecError([spec.issue(("axes", axis), message)])


# The text ------------------------------------------------------------------------------------


def _with_entries(content: bytes, path: Path, entries: Iterable[_Entry]) -> bytes:
    """The file with entries appended to `regressions`.

    Raises:
        SpecError: no text with them parses to the same data otherwise; has the error of the last.
    """
    data = _data(content, path)
    before = data.get(_KEY, ())
    expected = _comparable({**data, _KEY: [*before, *entries]})
    written, there = ([flow(each) for each in some] for some in (entries, before))
    problem: SpecError | None = None
    for text in _readable(appended(content.decode(), _KEY, written, there), content, path):
        changed = text.encode()
        try:
            # Raises if a constraint excludes a case, or two cases have the same id.
            listed_cases(parse_spec(changed, path))
            found = _data(changed, path)
        except SpecError as error:
            problem = error
            continue
        if _comparable(found) == expected:
            return changed
    if problem is not None:
        raise problem
    message = "the entry cannot be added without changing other values; write it by hand"
    raise SpecError([parse_spec(content, path).issue((_KEY,), message)])


def _readable(texts: Iterable[str], before: bytes, path: Path) -> Iterator[str]:
    """The texts; a YAML error while finding where to insert becomes a SpecError at the list."""
    try:
        yield from texts
    except yaml.YAMLError as error:
        spec = parse_spec(before, path)
        message = f"the entry cannot be inserted; write it by hand: {error}"
        raise SpecError([spec.issue((_KEY,), message)]) from None


def _comparable(data: Mapping[str, Any]) -> str:
    """The data of a file as text, so that 1, 1.0 and true differ and two NaN are equal."""
    given = {key: each for key, each in data.items() if each or key != _KEY}
    return repr(sorted(given.items()))


def _data(content: bytes, path: Path) -> dict[str, Any]:
    data: dict[str, Any] = plain(read_document(content, path).root)
    return data


# The file ------------------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise SpecError([Issue(path, 1, 1, message)]) from None


def _write(path: Path, before: bytes, after: bytes) -> None:
    """Replace a file atomically; a symbolic link keeps pointing to it."""
    target = path.resolve()
    try:
        _replace(target, after)
        if target.read_bytes() != after:
            _replace(target, before)
            message = "another process changed the file while it was written; try again"
            raise SpecError([Issue(path, 1, 1, message)])
    except OSError as error:
        message = f"the file cannot be written: {error.strerror}"
        raise SpecError([Issue(path, 1, 1, message)]) from None


def _replace(target: Path, content: bytes) -> None:
    descriptor, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(target, draft)
        Path(draft).replace(target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file's folder against other processes; the file itself is replaced."""
    try:
        descriptor = lock(path.resolve().parent)
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise SpecError([Issue(path, 1, 1, message)]) from None
    try:
        yield
    finally:
        os.close(descriptor)
