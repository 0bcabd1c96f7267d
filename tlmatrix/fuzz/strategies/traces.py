"""Reads query and key lengths from a serving log: CSV with a header, JSON, or JSON Lines.

A row is one request. The spec names the columns; a row of JSON may also be a plain length. Errors
have the line of the file.
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

_MOST_BYTES = 1 << 24
_AT = ("fuzz", "seqlens", "trace")

Requests = tuple[tuple[int, int], ...]
"""Query and key lengths of requests, in the order of the log."""


def requests_of(spec: Spec, lengths: FuzzLengths) -> Requests:
    """The requests of the trace in `fuzz.seqlens`, if any, within `length` if the spec sets it.

    Raises:
        SpecError: the file or a column is missing, a value is not a length, `k` excludes a key
            length, or no request is within `length`.
    """
    trace = lengths.trace
    if trace is None:
        return ()
    path = spec.path.parent / trace.file
    found = []
    for line, row in _rows(spec, trace, path):
        queries = _length(path, line, trace.q, row)
        keys = queries if trace.k is None else _length(path, line, trace.k, row)
        if trace.k is not None and lengths.q is None and not lengths.relates(queries, keys):
            message = (
                f"{keys} keys for {queries} queries, but 'fuzz.seqlens' has "
                f"k: {lengths.relation}; k: independent allows any"
            )
            raise SpecError([Issue(path, line, 1, message)])
        if "length" not in lengths.model_fields_set or _within(lengths, queries, keys):
            found.append((queries, keys))
    if not found:
        given = "length" in lengths.model_fields_set
        within = f" of {lengths.length.low} to {lengths.length.high} tokens" if given else ""
        _refuse(spec, f"{trace.file} has no request{within}")
    return tuple(found)


def _within(lengths: FuzzLengths, queries: int, keys: int) -> bool:
    return queries in (lengths.q or lengths.length) and keys in lengths.keys


def _length(path: Path, line: int, column: str, row: Mapping[str, object]) -> int:
    value = row[column]
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 12:
        return int(text)
    if type(value) is int and 0 <= value < 10**12:
        return value
    raise SpecError([Issue(path, line, 1, f"{column} is {value!r}, not a length")])


def _rows(spec: Spec, trace: FuzzTrace, path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield the rows of a file with their lines; every row has the columns of the trace."""
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
                raise SpecError([Issue(path, 1, 1, "expected a list of lengths or of objects")])
            for each in data:
                yield 1, _checked(spec, path, 1, each, columns)
        case ".jsonl":
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    yield number, _checked(spec, path, number, _json(path, number, line), columns)
        case suffix:
            _refuse(spec, f"a trace is .csv, .json or .jsonl, not {suffix or 'without suffix'}")


def _text(spec: Spec, trace: FuzzTrace, path: Path) -> str:
    try:
        if path.exists() and not path.is_file():  # a device or a pipe may have no end
            _refuse(spec, f"{trace.file} is not a file")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        _refuse(spec, f"{trace.file} cannot be read: {error.strerror or error}")
    except ValueError as error:
        _refuse(spec, f"{trace.file!r} is not a path: {error}")
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
        raise SpecError(
            [Issue(path, first, 1, "not JSON: too deep or a number too long")]
        ) from None


def _checked(
    spec: Spec, path: Path, line: int, row: object, columns: Sequence[str]
) -> Mapping[str, object]:
    """A row with all columns; a plain number is the value of each."""
    if type(row) is int:
        return dict.fromkeys(columns, row)
    if not isinstance(row, dict):
        raise SpecError([Issue(path, line, 1, f"expected a length or an object, not {row!r}")])
    for column in columns:
        if column not in row:
            message = f"the row has no {column!r}{nearest(column, filter(None, row))}"
            if path.suffix.lower() == ".csv":  # the header has no such column, so the spec is wrong
                _refuse(spec, f"{path.name} has no {column!r}{nearest(column, filter(None, row))}")
            raise SpecError([Issue(path, line, 1, message)])
        if row[column] is None:
            raise SpecError([Issue(path, line, 1, f"the row ends before its {column}")])
    return row


def _refuse(spec: Spec, message: str) -> NoReturn:
    raise SpecError([spec.issue(_AT, message)])
