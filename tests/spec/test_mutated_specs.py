"""Mutated specs load or raise SpecError with locations, and no other exception."""

from __future__ import annotations

import random
import re

import pytest
from design_examples import FACTORY, NORM, VARLEN

from tlmatrix.spec import SpecError, parse_spec

PIECES = (
    *("none", "true", "no", "''", "[]", "{}", "[1, 2]", "{a: 1}", "-1", "1e3", "010", "2027-02-30"),
    *("&a", "*a", "<<", "<<: *a", "!!str", "!x", "---", "\t", "\n", "  ", ": ", "- ", "#", "'"),
    *("|", ">", "%", "@", "{", "}", "[", "]", ",", "?", "\x00", "\x85", "\u2028", "\ufeff", '"'),
    *(
        "9" * 500,
        "window",
        "arch",
        "or or",
        "(",
        "**",
        "extra_cases",
        "cases",
        "path",
        "$dtype",
        "a:b",
    ),
    "\ud83d",
)


def mutated(text: str, draw: random.Random) -> str:
    for _ in range(draw.randint(1, 4)):
        lines = text.split("\n")
        at = draw.randrange(len(lines))
        words = re.split(r"(\W)", lines[at])
        match draw.randrange(7):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, draw.choice(lines))
            case 2:
                lines[at] = " " * draw.randrange(6) + lines[at].lstrip()
            case 3:
                words[draw.randrange(len(words))] = draw.choice(PIECES)
                lines[at] = "".join(words)
            case 4:
                del words[draw.randrange(len(words))]
                lines[at] = "".join(words)
            case 5:
                words.insert(draw.randrange(len(words) + 1), draw.choice(PIECES))
                lines[at] = "".join(words)
            case 6:
                other = draw.choice(draw.choice(lines).split(" "))
                words[draw.randrange(len(words))] = other
                lines[at] = "".join(words)
        text = "\n".join(lines)
    return text


@pytest.mark.parametrize("base", [VARLEN, NORM, FACTORY], ids=["varlen", "norm", "factory"])
def test_a_mutated_spec_loads_or_has_located_errors(base: str) -> None:
    draw = random.Random(20270301)
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(400):
        text = mutated(base, draw)
        try:
            parse_spec(text, "mutated.yaml")
        except SpecError as error:
            outcomes["refused"] += 1
            lines = re.split("\n", text)
            for issue in error.issues:
                assert 1 <= issue.line <= len(lines) + 1, (issue, text)
                assert 1 <= issue.column <= max(len(line) for line in lines) + 2, (issue, text)
                assert issue.message
        else:
            outcomes["loaded"] += 1
    assert min(outcomes.values()) > 10, outcomes  # both ways were tried


def test_random_bytes_have_located_errors() -> None:
    draw = random.Random(3)
    for _ in range(300):
        content = draw.randbytes(draw.randrange(60))
        with pytest.raises(SpecError) as caught:
            parse_spec(content)
        assert all(issue.line >= 1 and issue.column >= 1 for issue in caught.value.issues)
