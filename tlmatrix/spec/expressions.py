"""The closed little language of `where`, `when`, `compile` and shapes: text in, a value out.

A spec must not be able to run code, and a hostile one must not be able to hang a test run, so
this is a parser of our own and never `eval`. What there is: names, numbers, quoted text, lists,
`none`/`null`, `true`/`false` (and Python's spellings), comparison (chained as in Python, `in`,
`not in`, and `is` against none, true and false), `and`/`or`/`not`, `+ - * / // % **`, and calls
of `min`, `max`, `abs`, `len` and `ceildiv`. Values are Python's: `or` returns an operand, `/`
is true division. Arithmetic takes numbers only.

Parsing builds closures, one a node, so that evaluating `a is none or b` costs well under a
microsecond: a matrix of a million cases asks each rule a million times.
"""

from __future__ import annotations

import operator
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FUNCTIONS", "WORDS", "Expression", "ExpressionError"]

MAX_LENGTH = 2000
"""Characters in an expression."""
MAX_DEPTH = 40
"""Levels of the tree; chains of `and`, `or` and comparisons count as one level."""
MAX_POWER_BITS = 4096
"""Bits an integer power may have."""


class ExpressionError(ValueError):
    """An expression that cannot be read, or has no value for the names it was given.

    `offset` counts characters of `text` from 0, to where the reason lies.
    """

    def __init__(self, reason: str, text: str, offset: int) -> None:
        self.reason = reason
        self.text = text
        self.offset = offset
        super().__init__(f"{reason}, at character {offset + 1} of {shorten(text)!r}")

    def __reduce__(self) -> tuple[type[ExpressionError], tuple[str, str, int]]:
        return (ExpressionError, (self.reason, self.text, self.offset))


class Expression:
    """An expression that was read once and can be evaluated often.

    Two expressions are equal when their texts are. Raises `ExpressionError` when the text is
    not in the language.
    """

    __slots__ = ("_evaluate", "_offsets", "names", "text")

    text: str
    names: frozenset[str]
    """The names that evaluation looks up."""

    def __init__(self, text: str) -> None:
        root, offsets = _parse(text)
        self.text = text
        self.names = frozenset(offsets)
        self._offsets = offsets
        self._evaluate = root

    def evaluate(self, names: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the value decides
        """The value over `names`; raises `ExpressionError` where there is none."""
        try:
            return self._evaluate(names)
        except _Failed as failed:
            raise ExpressionError(failed.reason, self.text, failed.offset) from None
        except KeyError:
            for name, offset in self._offsets.items():
                if name not in names:
                    raise ExpressionError(f"unknown name {name!r}", self.text, offset) from None
            raise

    def offset_of(self, name: str) -> int:
        """Where `name` first stands in the text, in characters from 0."""
        return self._offsets[name]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return (Expression, (self.text,))  # closures do not pickle; the text says it all


def shorten(text: str, width: int = 80) -> str:
    """`text`, or its beginning where it is too long for one line of a message."""
    return text if len(text) <= width else text[: width - 3] + "..."


# Reading: text -> tokens -> closures -------------------------------------------------------

WORDS: Mapping[str, Any] = {
    "none": None,
    "null": None,
    "None": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
}
"""Words that stand for a value, in expressions and (but for Python's `None`) in YAML alike."""

_OPERATOR_WORDS = frozenset({"and", "or", "not", "in", "is"})
_FOREIGN_WORDS = frozenset(
    {"if", "else", "for", "lambda", "while", "await", "yield", "import", "def", "class", "return"}
)
_FOREIGN_SIGNS = {
    "&&": "write 'and'",
    "||": "write 'or'",
    "!": "write 'not'",
    "=": "write '==' to compare",
    "<>": "write '!='",
    "?": "write 'and' and 'or'",
}
_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
    | (?P<text>'[^'\\]*'|"[^"\\]*")
    | (?P<name>[^\W\d]\w*)
    | (?P<sign>\*\*|//|==|!=|<=|>=|<>|&&|\|\||[-+*/%<>()\[\],=!?.])
    """,
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    offset: int


class _Part(NamedTuple):
    """A parsed piece: how to evaluate it, how deep it is, and whether it looks up no name."""

    evaluate: Callable[[Any], Any]
    depth: int
    constant: bool = False

    @property
    def is_singleton(self) -> bool:
        """Whether the piece is none, true or false, written out: what `is` may compare with."""
        if not self.constant or self.depth > 1:
            return False
        value = self.evaluate({})
        return value is None or value is True or value is False


class _Failed(Exception):  # noqa: N818 - never leaves this module
    """Why evaluation stopped, before the text of the expression is known."""

    def __init__(self, reason: str, offset: int) -> None:
        self.reason = reason
        self.offset = offset


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[Callable[[Any], Any], Mapping[str, int]]:
    """The closure of a text, and each name with the offset where it first stands."""
    if len(text) > MAX_LENGTH:
        reason = f"an expression of {len(text)} characters; the limit is {MAX_LENGTH}"
        raise ExpressionError(reason, text, MAX_LENGTH)
    parser = _Parser(text)
    root = parser.everything()
    return root.evaluate, parser.offsets


def _tokens(text: str) -> list[_Token]:
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            sign = text[position]
            reason = f"{sign!r} is not part of the expression language"
            if sign in "'\"":
                reason = f"text that opens with {sign} never closes, or holds a backslash"
            raise ExpressionError(reason, text, position)
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(_Token(kind, match.group(), position))
        position = match.end()
    found.append(_Token("end", "", len(text)))
    return found


class _Parser:
    """Recursive descent, one method for each level of precedence, loosest first."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.index = 0
        self.level = 0
        self.offsets: dict[str, int] = {}

    # The token at hand.

    @property
    def token(self) -> _Token:
        return self.tokens[self.index]

    def take(self, *texts: str) -> _Token | None:
        """The token at hand, consumed, if it is one of these signs or words."""
        token = self.token
        if token.kind in ("sign", "name") and token.text in texts:
            self.index += 1
            return token
        return None

    def need(self, text: str, opened: _Token) -> None:
        if self.take(text) is None:
            found = f"found {self.token.text!r}" if self.token.text else "the expression ends"
            reason = f"{opened.text!r} needs a {text!r}, but {found}"
            raise self.error(reason)

    def error(self, reason: str, offset: int | None = None) -> ExpressionError:
        return ExpressionError(reason, self.text, self.token.offset if offset is None else offset)

    def part(self, evaluate: Callable[[Any], Any], *inner: _Part) -> _Part:
        """A piece made of smaller ones."""
        depth = 1 + max((part.depth for part in inner), default=0)
        if depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep")
        return _Part(evaluate, depth, constant=all(part.constant for part in inner))

    def deeper(self) -> None:
        """Counts a level of recursion, so that the parser itself cannot overflow the stack."""
        self.level += 1
        if self.level > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep")

    # The grammar.

    def everything(self) -> _Part:
        if self.token.kind == "end":
            raise self.error("an empty expression")
        part = self.disjunction()
        if self.token.kind != "end":
            raise self.error(self.describe_stray())
        return part

    def describe_stray(self) -> str:
        """Why the token after a complete expression cannot stand there."""
        text = self.token.text
        if text in _FOREIGN_SIGNS:
            return f"{text!r} is not part of the expression language; {_FOREIGN_SIGNS[text]}"
        if text == ".":
            return "attributes ('.') are not part of the expression language"
        if text == "[":
            return "indexing ('[...]') is not part of the expression language"
        if text == "(":
            return "only " + ", ".join(FUNCTIONS) + " can be called"
        if text in _FOREIGN_WORDS:
            return f"{text!r} is not part of the expression language"
        return f"{text!r} does not belong here; an operator is missing before it"

    def disjunction(self) -> _Part:
        self.deeper()
        parts = [self.conjunction()]
        while self.take("or"):
            parts.append(self.conjunction())
        self.level -= 1
        return parts[0] if len(parts) == 1 else self.part(_first_true(parts), *parts)

    def conjunction(self) -> _Part:
        parts = [self.negation()]
        while self.take("and"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else self.part(_first_false(parts), *parts)

    def negation(self) -> _Part:
        signs = 0
        while self.take("not"):
            signs += 1
        part = self.comparison()
        for _ in range(signs):
            part = self.part(_negated(part.evaluate), part)
        return part

    def comparison(self) -> _Part:
        first = self.sum()
        links: list[tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = []
        parts = [first]
        while (link := self.comparator()) is not None:
            name, offset = link
            right = self.sum()
            if name in ("is", "is not") and not (right.is_singleton or parts[-1].is_singleton):
                reason = f"'{name}' compares with none, true and false only; write '=='"
                raise self.error(reason, offset)
            parts.append(right)
            # A list written out is built once, not once a case.
            fixed = name in ("in", "not in") and right.constant
            value_of = _fixed(right.evaluate) if fixed else right.evaluate
            links.append((_comparison(name, offset), value_of))
        if not links:
            return first
        if len(links) == 1:
            compare, right_of = links[0]
            return self.part(_compared(first.evaluate, compare, right_of), *parts)
        return self.part(_chained(first.evaluate, links), *parts)

    def comparator(self) -> tuple[str, int] | None:
        offset = self.token.offset
        if sign := self.take("==", "!=", "<", "<=", ">", ">=", "in"):
            return sign.text, offset
        if self.take("is"):
            return ("is not" if self.take("not") else "is"), offset
        if self.token.text == "not" and self.tokens[self.index + 1].text == "in":
            self.index += 2
            return "not in", offset
        return None

    def sum(self) -> _Part:
        left = self.product()
        while sign := self.take("+", "-"):
            right = self.product()
            left = self.part(_arithmetic(sign, left.evaluate, right.evaluate), left, right)
        return left

    def product(self) -> _Part:
        left = self.signed()
        while sign := self.take("*", "/", "//", "%"):
            right = self.signed()
            left = self.part(_arithmetic(sign, left.evaluate, right.evaluate), left, right)
        return left

    def signed(self) -> _Part:
        signs = []
        while sign := self.take("-", "+"):
            signs.append(sign)
        part = self.power()
        for sign in reversed(signs):
            part = self.part(_signed(sign, part.evaluate), part)
        return part

    def power(self) -> _Part:
        base = self.primary()
        if sign := self.take("**"):
            self.deeper()  # the right side may be another power, and so on
            exponent = self.signed()
            self.level -= 1
            return self.part(_arithmetic(sign, base.evaluate, exponent.evaluate), base, exponent)
        return base

    def primary(self) -> _Part:
        token = self.token
        if token.kind == "number":
            return self.number()
        if token.kind == "text":
            self.index += 1
            return self.part(_constant(token.text[1:-1]))
        if token.kind == "name" and token.text not in _OPERATOR_WORDS | _FOREIGN_WORDS:
            return self.name()
        if self.take("("):
            return self.parenthesis(token)
        if self.take("["):
            items, _ = self.items("]", token)
            return self.part(_collected(items), *items)
        if token.kind == "end":
            raise self.error("the expression ends where a value is needed")
        hint = f"; {_FOREIGN_SIGNS[token.text]}" if token.text in _FOREIGN_SIGNS else ""
        raise self.error(f"{token.text!r} stands where a value is needed{hint}")

    def number(self) -> _Part:
        token = self.token
        self.index += 1
        following = self.token
        if following.kind in ("name", "number") and following.offset == token.offset + len(
            token.text
        ):
            written = token.text + following.text
            raise self.error(f"{written!r} is neither a number nor a name", token.offset)
        if not token.text.isdigit():
            return self.part(_constant(float(token.text)))
        if token.text.startswith("0") and token.text.strip("0"):
            raise self.error(f"{token.text!r} has a leading zero", token.offset)
        return self.part(_constant(int(token.text)))

    def name(self) -> _Part:
        token = self.token
        self.index += 1
        if token.text in WORDS:
            return self.part(_constant(WORDS[token.text]))
        if self.token.text == "(" and token.text in FUNCTIONS:
            opened = self.token
            self.index += 1
            arguments, _ = self.items(")", opened)
            function, least, most = FUNCTIONS[token.text]
            if not least <= len(arguments) <= most:
                counts = f"{least}" if least == most else f"{least} or more"
                reason = f"{token.text} takes {counts} values, not {len(arguments)}"
                raise self.error(reason, token.offset)
            return self.part(_called(token, function, arguments), *arguments)
        self.offsets.setdefault(token.text, token.offset)
        return _Part(operator.itemgetter(token.text), depth=1)

    def parenthesis(self, opened: _Token) -> _Part:
        items, trailing = self.items(")", opened)
        if len(items) == 1 and not trailing:
            return items[0]
        return self.part(_collected(items), *items)

    def items(self, closing: str, opened: _Token) -> tuple[list[_Part], bool]:
        """What stands between commas up to `closing`, and whether a comma came last."""
        found: list[_Part] = []
        while not self.take(closing):
            found.append(self.disjunction())
            if self.take(","):
                if self.take(closing):
                    return found, True
            else:
                self.need(closing, opened)
                break
        return found, False


# Evaluating: the closures -------------------------------------------------------------------

_Evaluate = Any  # Callable[[Names], Any], too long for the signatures below
_NUMBERS = (int, float)


def _constant(value: object) -> _Evaluate:
    return lambda _names: value


def _fixed(evaluate: _Evaluate) -> _Evaluate:
    """The closure of a piece that looks up no name, evaluated now (later if that fails)."""
    try:
        return _constant(evaluate({}))
    except _Failed:
        return evaluate


def _negated(evaluate: _Evaluate) -> _Evaluate:
    return lambda names: not evaluate(names)


def _first_true(parts: list[_Part]) -> _Evaluate:
    """`or`: the first operand that is true, else the last one."""
    if len(parts) == 2:
        left, right = (part.evaluate for part in parts)
        return lambda names: left(names) or right(names)
    *leading, last = (part.evaluate for part in parts)

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        for each in leading:
            if value := each(names):
                return value
        return last(names)

    return evaluate


def _first_false(parts: list[_Part]) -> _Evaluate:
    """`and`: the first operand that is false, else the last one."""
    if len(parts) == 2:
        left, right = (part.evaluate for part in parts)
        return lambda names: left(names) and right(names)
    *leading, last = (part.evaluate for part in parts)

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        for each in leading:
            if not (value := each(names)):
                return value
        return last(names)

    return evaluate


def _collected(items: list[_Part]) -> _Evaluate:
    parts = tuple(item.evaluate for item in items)
    return lambda names: [part(names) for part in parts]


def _compared(left: _Evaluate, compare: Callable[[Any, Any], Any], right: _Evaluate) -> _Evaluate:
    return lambda names: compare(left(names), right(names))


def _chained(
    first: _Evaluate, links: list[tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]]
) -> _Evaluate:
    """`a < b < c`: every operand evaluated at most once, and none after the first failure."""

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        left = first(names)
        result: Any = True
        for compare, right_of in links:
            right = right_of(names)
            result = compare(left, right)
            if not result:
                return result
            left = right
        return result

    return evaluate


def _comparison(name: str, offset: int) -> Callable[[Any, Any], Any]:
    """A comparison of two values; identity and equality cannot fail, order and `in` can."""
    match name:
        case "is":
            return operator.is_
        case "is not":
            return operator.is_not
        case "==":
            return _equal
        case "!=":
            return lambda left, right: not _equal(left, right)
        case "in" | "not in":
            return _membership(name, offset)
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[name]

    def ordered(left: Any, right: Any) -> Any:  # noqa: ANN401
        try:
            return compare(left, right)
        except TypeError:
            reason = f"cannot compare {_show(left)} {name} {_show(right)}"
            raise _Failed(reason, offset) from None

    return ordered


def _equal(left: Any, right: Any) -> bool:  # noqa: ANN401
    """`==`, where a list from YAML equals the same values in a tuple from Python."""
    if (
        type(left) is not type(right)
        and type(left) in (list, tuple)
        and type(right) in (list, tuple)
    ):
        return list(left) == list(right)
    return bool(left == right)


def _membership(name: str, offset: int) -> Callable[[Any, Any], Any]:
    wanted = name == "in"

    def contained(left: Any, right: Any) -> bool:  # noqa: ANN401
        try:
            return (left in right) is wanted
        except TypeError:
            reason = f"{_show(right)} is no list to look for {_show(left)} in"
            raise _Failed(reason, offset) from None

    return contained


def _signed(sign: _Token, evaluate: _Evaluate) -> _Evaluate:
    apply = operator.neg if sign.text == "-" else operator.pos

    def signed(names: Any) -> Any:  # noqa: ANN401
        value = evaluate(names)
        if not isinstance(value, _NUMBERS):
            raise _Failed(f"{sign.text!r} needs a number, not {_show(value)}", sign.offset)
        return apply(value)

    return signed


def _arithmetic(sign: _Token, left: _Evaluate, right: _Evaluate) -> _Evaluate:
    """Numbers only: `'%999999999d' % 1` and `[0] * 10**9` would eat all memory."""
    apply: Callable[[Any, Any], Any] = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": operator.truediv,
        "//": operator.floordiv,
        "%": operator.mod,
        "**": _bounded_power,
    }[sign.text]

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        a = left(names)
        b = right(names)
        if not (isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS)):
            bad = b if isinstance(a, _NUMBERS) else a
            raise _Failed(f"{sign.text!r} needs numbers, not {_show(bad)}", sign.offset)
        try:
            return apply(a, b)
        except ZeroDivisionError:
            reason = f"{_show(a)} {sign.text} {_show(b)} divides by zero"
        except (OverflowError, ValueError) as problem:
            reason = f"{_show(a)} {sign.text} {_show(b)}: {problem}"
        raise _Failed(reason, sign.offset)

    return evaluate


def _bounded_power(base: Any, exponent: Any) -> Any:  # noqa: ANN401
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(exponent) * base.bit_length() > MAX_POWER_BITS:
        raise OverflowError("too large a power")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("a root of a negative number")  # noqa: TRY004 - the value is wrong
    return result


def _called(token: _Token, function: Callable[..., Any], arguments: list[_Part]) -> _Evaluate:
    parts = tuple(argument.evaluate for argument in arguments)

    def call(names: Any) -> Any:  # noqa: ANN401
        values = [part(names) for part in parts]
        try:
            return function(*values)
        except ZeroDivisionError:
            reason = "divides by zero"
        except (TypeError, ValueError, OverflowError):
            reason = "has no such value"
        shown = ", ".join(_show(value) for value in values)
        raise _Failed(f"{token.text}({shown}) {reason}", token.offset)

    return call


def _ceildiv(total: Any, step: Any) -> Any:  # noqa: ANN401
    """How many steps cover the total: `ceildiv(65, 64)` is 2."""
    if not (isinstance(total, _NUMBERS) and isinstance(step, _NUMBERS)):
        raise TypeError
    return -(-total // step)


FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {
    "min": (min, 1, MAX_LENGTH),
    "max": (max, 1, MAX_LENGTH),
    "abs": (abs, 1, 1),
    "len": (len, 1, 1),
    "ceildiv": (_ceildiv, 2, 2),
}
"""Functions an expression may call: what runs, and the least and most values it takes."""


def _show(value: object) -> str:
    """A value as a spec writes it, and never more than a line of it."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 200:
            return f"a number of {value.bit_length()} bits"
        case _:
            return shorten(repr(value), 40)
