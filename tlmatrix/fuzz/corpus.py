"""The corpus of a spec: failing cases kept in its own file, where nobody can forget them.

`regressions` of a YAML file gets entries, and loses them to `retired`, with every other byte of the
file left as it is. The new text is read and compared with what it must mean before anything is
written, is written beside the file and put in its place in one step, and is read once more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tlmatrix.matrix import Case
from tlmatrix.matrix.fixed import completed, fixed_cases
from tlmatrix.spec.editing import appended, removed
from tlmatrix.spec.flow import flow
from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.loader import parse_spec
from tlmatrix.spec.nodes import plain
from tlmatrix.spec.values import canonical, label
from tlmatrix.spec.yaml_text import read_document
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tlmatrix.spec.models import Spec

__all__ = ["regression_number", "retire", "save"]

_Entry = dict[str, Any]
_LISTS = ("regressions", "retired")


def save(
    path: Path,
    cases: Sequence[Case],
    *,
    failed: Mapping[Case, str] | None = None,
    found: date | None = None,
    seed: int = 0,
) -> tuple[Case, ...]:
    """Append resolved cases to `regressions` of a spec's file; those it did not have are returned.

    `failed` says of a case what failed, `found` on which day, `seed` the seed of the run, where it
    is not 0. Without any of them an entry is the values alone. Comments, layout and line ends
    of the file stay. Safe against other processes that save to the same file.

    Raises:
        SpecError: the file is no spec, a case cannot stand in it (an unknown axis, a `where` rule
            that excludes it, an id that another case has), or the file cannot be written. The file
            is as it was.
    """
    with _locked(path):
        content = _read(path)
        spec = parse_spec(content, path)
        known = {case for case in fixed_cases(spec) if case.origin == "regression"}
        new = tuple(case for case in dict.fromkeys(cases) if case not in known)
        entries = []
        for case in new:
            _refuse_labels(spec, case)
            told = {"failed": (failed or {}).get(case), "found": found, "seed": seed or None}
            entries.append(_entry(spec, case, {key: each for key, each in told.items() if each}))
        if new:
            _write(path, content, _with(content, path, "regressions", entries))
    return new


def retire(
    path: Path, case_id: str, because: str, *, today: date | None = None
) -> Mapping[str, object]:
    """Move a regression to `retired`, with the reason and the day; the new entry is returned.

    Whether it is fixed is for the caller to find out (`tlmatrix.fuzz.replay`).

    Raises:
        SpecError: the spec has no such regression, or its list cannot be changed (an alias, an
            anchor that other values refer to). The file is as it was.
    """
    with _locked(path):
        content = _read(path)
        spec = parse_spec(content, path)
        number = regression_number(spec, case_id)
        lists = _lists(content, path)
        kept = lists["regressions"][number]
        entry: _Entry = dict(kept) if isinstance(kept.get("case"), dict) else {"case": kept}
        entry |= {"because": because, "date": today or datetime.now(UTC).date()}
        text = _decoded(content)
        # The same case may stand there twice, with an axis and without it.
        for place in reversed(_numbers(spec, case_id)):
            try:
                text = removed(text, "regressions", place)
            except (ValueError, yaml.YAMLError) as error:
                raise SpecError([spec.issue(("regressions",), str(error))]) from None
            del lists["regressions"][place]
        shorter = _judged([text], path, content, lists)
        _write(path, content, _with(shorter, path, "retired", [entry]))
    return entry


def regression_number(spec: Spec, case_id: str) -> int:
    """Which entry of `regressions` has the id, counted from 0.

    Raises:
        SpecError: none has.
    """
    if numbers := _numbers(spec, case_id):
        return numbers[0]
    ids = _ids(spec)
    if not ids:
        raise SpecError([spec.issue(("regressions",), "the spec has no regressions")])
    message = f"no regression has the id {case_id!r}{nearest(case_id, ids)}"
    raise SpecError([spec.issue(("regressions",), message)])


def _ids(spec: Spec) -> list[str]:
    return [Case(spec.name, completed(spec, each.case)).id for each in spec.regressions]


def _numbers(spec: Spec, case_id: str) -> list[int]:
    return [number for number, each in enumerate(_ids(spec)) if each == case_id]


# What an entry says --------------------------------------------------------------------------


def _entry(spec: Spec, case: Case, told: Mapping[str, object]) -> _Entry:
    """A case as the file has it, axes in the order of the spec."""
    ordered = {axis: case.values[axis] for axis in spec.axes if axis in case.values}
    values = _plain({**ordered, **case.values})
    # Values of a case called `case` would read as what an entry that says more has there.
    return {"case": values, **told} if told or isinstance(values.get("case"), dict) else values


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of an axis
    """The value in the types that reading it back gives."""
    match value:
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value


def _refuse_labels(spec: Spec, case: Case) -> None:
    """An id stands for one case: no value may read as another one of its axis does."""
    for axis, value in case.values.items():
        for other in spec.axes.get(axis, ()):
            if label(other) == label(value) and canonical(other) != canonical(value):
                message = f"{flow(value)} and {flow(other)} both read {label(value)!r} in a case id"
                raise SpecError([spec.issue(("axes", axis), message)])


# The text ------------------------------------------------------------------------------------


def _with(content: bytes, path: Path, key: str, entries: Iterable[_Entry]) -> bytes:
    """The file with entries at the end of a list of its root."""
    lists = _lists(content, path)
    before = [flow(each) for each in lists[key]]
    lists[key] += entries
    written = [flow(each) for each in entries]
    return _judged(appended(_decoded(content), key, written, before), path, content, lists)


def _judged(
    texts: Iterable[str], path: Path, before: bytes, lists: Mapping[str, list[Any]]
) -> bytes:
    """The first text that is the spec of `before` with the lists in place of its own.

    Raises:
        SpecError: none is; says why the last one is not.
    """
    expected = {**_meaning(before, path), **lists}
    problem: SpecError | None = None
    for text in _readable(texts, before, path):
        content = text.encode()
        try:
            # Rules that exclude a case, and two cases with one id, show here.
            fixed_cases(parse_spec(content, path))
            meant = _meaning(content, path)
        except SpecError as error:
            problem = error
            continue
        if _words(meant) == _words(expected):
            return content
    if problem is not None:
        raise problem
    spec = parse_spec(before, path)
    message = "the entry cannot be written here without a change of other values; write it by hand"
    raise SpecError([spec.issue(("regressions",), message)])


def _readable(texts: Iterable[str], before: bytes, path: Path) -> Iterator[str]:
    """The texts; an error of the parser that finds places is one at the list's."""
    try:
        yield from texts
    except yaml.YAMLError as error:
        spec = parse_spec(before, path)
        message = f"no place can be found for the entry, write it by hand: {error}"
        raise SpecError([spec.issue(("regressions",), message)]) from None


def _words(meaning: Mapping[str, Any]) -> str:
    """What a file says, as text: that tells 1 from 1.0 and true, and finds two NaN alike."""
    said = {key: each for key, each in meaning.items() if each or key not in _LISTS}
    return repr(sorted(said.items()))


def _meaning(content: bytes, path: Path) -> dict[str, Any]:
    data: dict[str, Any] = plain(read_document(content, path).root)
    return data


def _lists(content: bytes, path: Path) -> dict[str, list[Any]]:
    """The entries of the two lists as they are written."""
    data = _meaning(content, path)
    return {key: list(data.get(key, ())) for key in _LISTS}


def _decoded(content: bytes) -> str:
    return content.decode()  # It was read as a spec, so it is UTF-8.


# The file ------------------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise SpecError([Issue(path, 1, 1, message)]) from None


def _write(path: Path, before: bytes, after: bytes) -> None:
    """Put new content in the place of a file in one step; a link goes on pointing at it."""
    target = path.resolve()
    try:
        _replace(target, after)
        if target.read_bytes() != after:
            _replace(target, before)
            message = "the file was changed by something else while it was written; try again"
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
    """One process at a time, through the folder: the file itself is replaced."""
    try:
        descriptor = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise SpecError([Issue(path, 1, 1, message)]) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
