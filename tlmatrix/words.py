"""Helpers for messages: suggestions for unknown names, and enumerations."""

from __future__ import annotations

import difflib
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_NOTE = 60
"""The most characters of the note in place of what is left out of a text."""


def guess(word: object, known: Iterable[str]) -> str | None:
    """The known name most similar to `word`; None if none is similar."""
    names = list(known)
    text = str(word)
    if found := difflib.get_close_matches(text, names, n=1, cutoff=0.6):
        return found[0]
    folded = {name.lower().replace("_", ""): name for name in names}
    return folded.get(text.lower().replace("_", "").replace("-", ""))


def suggestion(word: object, known: Iterable[str], what: str) -> str:
    """`; did you mean 'where'? Keys here: ...`, to end a message about an unknown word."""
    names = list(known)
    near = guess(word, names)
    meant = f"; did you mean {near!r}?" if near else "."
    return f"{meant} {what}: {', '.join(names) if names else 'none'}"


def nearest(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'float16'?`, or a list of the known names if none is similar."""
    names = sorted(set(known))
    near = guess(word, names)
    if near:
        return f"; did you mean {near!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def printable(text: str) -> str:
    """Escape control characters and lone surrogates; the same object if it has none."""
    if _UNPRINTABLE.search(text) is None:
        return text
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def quoted(argument: str) -> str:
    """A path, case or expression as one word of a shell command, in quotes.

    A shell reads it back as it is: no command of its name runs, and none is an option.
    """
    word = f"./{argument}" if argument.startswith("-") else argument
    if printable(word) is not word:
        escaped = word.replace("\\", "\\\\").replace("'", "\\'")
        return f"$'{printable(escaped)}'"
    return shlex.quote(word) if shlex.quote(word) != word else f"'{word}'"


def bounded(text: str, most: int) -> str:
    """A printable text of about `most` characters: of a longer one, the head and the tail.

    Between them is the number of bytes that are left out.
    """
    text = printable(_without_middle(text, most))
    return _without_middle(text, most)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    kept = (most - _NOTE) // 2
    missing = len(text[kept : len(text) - kept].encode(errors="replace"))
    return f"{text[:kept]} [... {missing:,} bytes left out ...] {text[len(text) - kept :]}"


def shortened(text: str, length: int) -> str:
    """Cut a text after `length` characters; the end says how many are missing."""
    if len(text) <= length:
        return text
    return f"{text[:length]} [... {len(text) - length:,} more characters]"


def ellipsis(text: str, length: int) -> str:
    """Cut a text to `length` characters, with an ellipsis as the last one."""
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


def listed(words: Iterable[str]) -> str:
    """Join words: `a`, `a and b`, `a, b and c`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def ranks_words(ranks: Collection[int], world: int) -> str:
    """`rank 1 of 4`, `ranks 0 and 2 of 4`, or `every rank` for all of several."""
    if len(ranks) == world > 1:
        return "every rank"
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {listed(map(str, sorted(ranks)))} of {world}"
