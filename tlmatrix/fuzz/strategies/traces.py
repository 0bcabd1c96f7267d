"""Lengths of a serving log, for batches as they came: CSV with a header, JSON, or JSON Lines.

A row is one request. In CSV, and in JSON as objects, the columns are those that the spec names; a
JSON list of plain numbers has a length in each. What is wrong with a file is said at its line.
"""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import TYPE_CHECKING, NoReturn

from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.spec.model.fuzz import FuzzLengths, FuzzTrace
    from tlmatrix.spec.model.spec import Spec

__all__ = ["Requests", "requests_of"]

_MOST_BYTES = 1 << 24
_AT = ("fuzz", "seqlens", "trace")

Requests = tuple[tuple[int, int], ...]
"""Query and key lengths of requests, in the order of the log."""


def requests_of(spec: Spec, lengths: FuzzLengths) -> Requests:
    """The requests of the trace that `fuzz.seqlens` names, none where it names none.

    Those outside of `length`, where the spec gives it, are left out.

    Raises:
        SpecError: no such file, no such column, no length where one should be, key lengths that
            `k` does not allow, or no request within `length`.
    """
    trace = lengths.trace
    if trace is None:
        return ()
    path = spec.path.parent / trace.file
    found = []
    for line, row in _rows(spec, trace, path):
        queries = _length(path, line, trace.q, row)
        keys = queries if trace.k is None else _length(path, line, trace.k, row)
        if trace.k is not None and lengths.q is None:
            _check_keys(path, line, lengths.relation, queries, keys)
        if "length" not in lengths.model_fields_set or _within(lengths, queries, keys):
            found.append((queries, keys))
    if not found:
        given = "length" in lengths.model_fields_set
        told = f" of {lengths.length.low} to {lengths.length.high} tokens" if given else ""
        _refuse(spec, f"{trace.file} has no request{told}")
    return tuple(found)


def _within(lengths: FuzzLengths, queries: int, keys: int) -> bool:
    own, other = lengths.q or lengths.length, lengths.keys
    return own.low <= queries <= own.high and other.low <= keys <= other.high


def _check_keys(path: Path, line: int, relation: str, queries: int, keys: int) -> None:
    allowed = {
        "same": keys == queries,
        "longer": keys >= queries,
        "shorter": keys <= queries,
        "independent": True,
    }
    if not allowed[relation]:
        message = (
            f"{keys} keys beside {queries} queries, where 'fuzz.seqlens' has k: {relation}; "
            "k: independent allows any"
        )
        raise SpecError([Issue(path, line, 1, message)])


def _length(path: Path, line: int, column: str, row: Mapping[str, object]) -> int:
    value = row[column]
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 12:
        return int(text)
    if type(value) is int and 0 <= value < 10**12:
        return value
    raise SpecError([Issue(path, line, 1, f"{column} is {value!r}, not a length")])


def _rows(spec: Spec, trace: FuzzTrace, path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The rows of a file, each with its line, with at least the columns asked for."""
    text = _text(spec, trace, path)
    columns = [trace.q] if trace.k is None else [trace.q, trace.k]
    match path.suffix.lower():
        case ".csv":
            reader = csv.DictReader(StringIO(text), strict=True)
            try:
                for row in reader:
                    yield reader.line_num, _checked(spec, path, reader.line_num, row, columns)
            except csv.Error as error:
                message = f"not CSV: {error}"
                place = max(1, reader.reader.line_num)
                raise SpecError([Issue(path, place, 1, message)]) from None
        case ".json":
            data = _json(path, 1, text)
            if not isinstance(data, list):
                raise SpecError([Issue(path, 1, 1, "must be a list of lengths, or of objects")])
            for each in data:
                yield 1, _checked(spec, path, 1, each, columns)
        case ".jsonl":
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    yield number, _checked(spec, path, number, _json(path, number, line), columns)
        case suffix:
            _refuse(spec, f"a trace is .csv, .json or .jsonl, not {suffix or 'a file without'}")


def _text(spec: Spec, trace: FuzzTrace, path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        _refuse(spec, f"{trace.file} cannot be read: {error.strerror or error}")
    except ValueError as error:
        _refuse(spec, f"{trace.file!r} is no path: {error}")
    if len(content) > _MOST_BYTES:
        _refuse(spec, f"{trace.file} has more than {_MOST_BYTES >> 20} MiB; take a part of it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SpecError([Issue(path, line, 1, "not UTF-8 text")]) from None


def _json(path: Path, first: int, text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}"
        raise SpecError([Issue(path, first + error.lineno - 1, error.colno, message)]) from None
    except (RecursionError, ValueError):
        raise SpecError([Issue(path, first, 1, "not JSON that can be read")]) from None


def _checked(
    spec: Spec, path: Path, line: int, row: object, columns: Sequence[str]
) -> Mapping[str, object]:
    """A row that has the columns; a plain number has them all."""
    if type(row) is int:
        return dict.fromkeys(columns, row)
    if not isinstance(row, dict):
        raise SpecError([Issue(path, line, 1, f"{row!r} is no length, and no object with some")])
    for column in columns:
        if column not in row:
            message = f"no {column!r} here{nearest(column, filter(None, row))}"
            if path.suffix.lower() == ".csv":  # the header's, so rather the spec's mistake
                _refuse(spec, f"{path.name} has no {column!r}{nearest(column, filter(None, row))}")
            raise SpecError([Issue(path, line, 1, message)])
        if row[column] is None:
            raise SpecError([Issue(path, line, 1, f"the row ends before its {column}")])
    return row


def _refuse(spec: Spec, message: str) -> NoReturn:
    raise SpecError([spec.issue(_AT, message)])
