"""Values of unquoted YAML scalars, with errors for ambiguous ones.

YAML 1.1 reads `no` as false, `010` as 8 and `1:30` as 90; YAML 1.2 does not. Such scalars are
errors here, with a message that says what to write.
"""

from __future__ import annotations

import re
from datetime import date

from tlmatrix.spec.expr.expression import shorten

_WORDS: dict[str, str | bool | None] = {"": None, "~": None}
for _word in ("none", "null"):
    _WORDS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()))
for _word, _meaning in (("true", True), ("false", False)):
    _WORDS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()), _meaning)

_OLD_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)$")
_OTHER_BASE = re.compile(r"[-+]?0(x[0-9a-fA-F_]+|o[0-7_]+|b[01_]+)$")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+$")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_SPECIAL_FLOAT = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}$")
_LONGEST_NUMBER = 400


def scalar_meaning(text: str) -> tuple[str | int | float | bool | date | None, str | None]:
    """The value of an unquoted scalar, and an error message or None."""
    if text in _WORDS:
        return _WORDS[text], None
    first = text[0]
    if first.isalpha():  # most scalars are words
        if (meant := _OLD_BOOLEANS.get(text.lower())) and text in (
            text.lower(),
            text.upper(),
            text.capitalize(),
        ):
            message = f"YAML parsers disagree on {text!r}: write {meant}, or quote it: '{text}'"
            return text, message
        return text, None
    if not (first.isdigit() or first in "+-."):
        return text, None
    return _number_meaning(text)


def _number_meaning(text: str) -> tuple[str | int | float | date | None, str | None]:
    if len(text) > _LONGEST_NUMBER:
        if text.strip("+-0123456789_.") == "":
            return text, f"the number {shorten(text, 20)} is too long"
        return text, None
    if _INTEGER.match(text):
        return int(text.replace("_", "")), None
    if _OTHER_BASE.match(text):
        return int(text.replace("_", ""), 0), None
    if _LEADING_ZERO.match(text):
        sign = "-" if text.startswith("-") else ""
        decimal = sign + (text.lstrip("+-0_").replace("_", "") or "0")
        message = f"YAML parsers disagree on {text!r}: write {decimal}, or quote it: '{text}'"
        return text, message
    if _FLOAT.match(text):
        return float(text), None
    if _SPECIAL_FLOAT.match(text):
        return float(text.replace(".", "", 1)), None
    if _SEXAGESIMAL.match(text):
        return text, f"YAML parsers disagree on {text!r} (a number, base 60): quote it: '{text}'"
    if _DATE.match(text):
        year, month, day = map(int, text.split("-"))
        try:
            return date(year, month, day), None
        except ValueError as problem:
            return text, f"{text!r} is not a date: {problem}"
    return text, None
