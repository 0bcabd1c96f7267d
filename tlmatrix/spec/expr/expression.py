"""The expression language of specs: `require`, `when`, `factory_args`, `call` and shapes.

Expressions cannot run code or hang: the language has its own parser, with limits of length and
depth, whose errors name their place in the words of the language. It has names,
numbers, quoted text, lists, `none`/`null`, `true`/`false` (and Python's spellings), comparison
(chained as in Python, `in`, `not in`, and `is` against none, true and false), `and`/`or`/`not`,
`a if condition else b`, `+ - * / // % **`, one side of a packed axis (`seqlens.q`), and calls of
`sum`, `min`, `max`, `abs`, `len`, `ceildiv` and `pages`. Values are Python's: `or` returns an
operand, `/` is true division. Arithmetic takes numbers, and lists of numbers element by element.

A parsed expression becomes closures (`evaluation`), because a large matrix evaluates
each constraint millions of times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tlmatrix.dtypes import DTYPES
from tlmatrix.spec.expr.evaluation import FUNCTIONS, Evaluate, Failed, Node, evaluator, shorten

MAX_LENGTH = 2000
"""The most characters of an expression."""
MAX_DEPTH = 40
"""The most levels of the tree; chains of `and`, `or` and comparisons count as one level."""

WORDS: Mapping[str, Any] = {
    "none": None,
    "null": None,
    "None": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    **{name: name for name in DTYPES},
}
"""Constants by name: those of YAML, and dtype names, which are text."""
_OPERATOR_WORDS = frozenset({"and", "or", "not", "in", "is", "if", "else"})
_LEVELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("or", ()),
    ("and", ()),
    ("not", ("not",)),
    ("compare", ()),
    ("arithmetic", ("+", "-")),
    ("arithmetic", ("*", "/", "//", "%")),
    ("signed", ("-", "+")),
)
"""Levels of precedence, loosest first, below `if`; `**` is tighter than all."""
_FOREIGN_WORDS = frozenset(
    {"for", "lambda", "while", "await", "yield", "import", "def", "class", "return"}
)
"""Keywords of Python that are not in the language and cannot be names."""
_FOREIGN_SIGNS = {
    "&&": "write 'and'",
    "||": "write 'or'",
    "!": "write 'not'",
    "=": "write '==' to compare",
    "<>": "write '!='",
    "?": "write 'a if condition else b'",
}
"""Operators of other languages, with a hint."""
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


class ExpressionError(ValueError):
    """An expression that cannot be parsed or evaluated.

    `offset` is the index of the error in `text`, from 0.
    """

    def __init__(self, reason: str, text: str, offset: int) -> None:
        self.reason = reason
        self.text = text
        self.offset = offset
        super().__init__(f"{reason}, at character {offset + 1} of {shorten(text)!r}")

    def __reduce__(self) -> tuple[type[ExpressionError], tuple[str, str, int]]:
        return (ExpressionError, (self.reason, self.text, self.offset))


class Token(NamedTuple):
    """A token: `kind` is a group of `_TOKEN` or `end`, `offset` its index from 0."""

    kind: str
    text: str
    offset: int


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, `end` last; raises ExpressionError at an invalid character."""
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            sign = text[position]
            reason = f"{sign!r} is not part of the expression language"
            if sign in "'\"":
                reason = f"text in {sign} is not closed, or has a backslash"
            raise ExpressionError(reason, text, position)
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup or "", match.group(), position))
        position = match.end()
    found.append(Token("end", "", len(text)))
    return found


def parse(text: str) -> tuple[Node, Mapping[str, int]]:
    """The tree of a text, and the offset of the first occurrence of each name.

    Raises:
        ExpressionError: the text is not in the language.
    """
    if len(text) > MAX_LENGTH:
        reason = f"an expression of {len(text)} characters; the limit is {MAX_LENGTH}"
        raise ExpressionError(reason, text, MAX_LENGTH)
    parser = _Parser(text)
    return parser.everything(), parser.offsets


class _Parser:
    """A recursive-descent parser; precedence is that of Python."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens_of(text)
        self.index = 0
        self.level = 0
        self.offsets: dict[str, int] = {}

    # The current token.

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def take(self, *texts: str) -> Token | None:
        """Consume and return the current token if it is one of `texts`."""
        token = self.token
        if token.kind in ("sign", "name") and token.text in texts:
            self.index += 1
            return token
        return None

    def need(self, text: str, opened: Token) -> None:
        if self.take(text) is None:
            found = f"found {self.token.text!r}" if self.token.text else "the expression ends"
            article = "an" if text == "else" else "a"
            raise self.error(f"{opened.text!r} needs {article} {text!r}, but {found}")

    def error(self, reason: str, offset: int | None = None) -> ExpressionError:
        return ExpressionError(reason, self.text, self.token.offset if offset is None else offset)

    def node(self, kind: Any, value: object, *parts: Node, offset: int = 0) -> Node:  # noqa: ANN401
        """A node with children, not too deep."""
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep")
        return Node(kind, value, parts, offset, depth)

    def deeper(self) -> None:
        """Count a level of recursion; raises before the stack overflows."""
        self.level += 1
        if self.level > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep")

    # The grammar.

    def everything(self) -> Node:
        if self.token.kind == "end":
            raise self.error("an empty expression")
        node = self.conditional()
        if self.token.kind != "end":
            raise self.error(self.describe_stray())
        return node

    def describe_stray(self) -> str:
        """The error for a token after a complete expression."""
        text = self.token.text
        if text in _FOREIGN_SIGNS:
            return f"{text!r} is not part of the expression language; {_FOREIGN_SIGNS[text]}"
        if text == ".":
            return "'.' names one side of a packed axis, as in seqlens.q"
        if text == "[":
            return "indexing ('[...]') is not part of the expression language"
        if text == "(":
            return "only " + ", ".join(FUNCTIONS) + " can be called"
        if text == "else":
            return "'else' without an 'if' before it; write 'a if condition else b'"
        if text in _FOREIGN_WORDS:
            return f"{text!r} is not part of the expression language"
        return f"an operator is missing before {text!r}"

    def conditional(self) -> Node:
        self.deeper()
        node = self.operation()
        if opened := self.take("if"):
            condition = self.operation()
            self.need("else", opened)
            node = self.node("if", None, condition, node, self.conditional())
        self.level -= 1
        return node

    def operation(self, level: int = 0) -> Node:
        """Operands with the operators of a level of precedence, and of tighter ones inside."""
        kind, signs = _LEVELS[level] if level < len(_LEVELS) else ("power", ())
        match kind:
            case "or" | "and":
                parts = [self.operation(level + 1)]
                while self.take(kind):
                    parts.append(self.operation(level + 1))
                return parts[0] if len(parts) == 1 else self.node(kind, None, *parts)
            case "not" | "signed":
                prefixes = []
                while prefix := self.take(*signs):
                    prefixes.append(prefix)
                node = self.operation(level + 1)
                for prefix in reversed(prefixes):
                    node = self.node(kind, prefix.text, node, offset=prefix.offset)
                return node
            case "compare":
                return self.comparison(level)
            case "arithmetic":  # from left to right
                node = self.operation(level + 1)
                while sign := self.take(*signs):
                    right = self.operation(level + 1)
                    node = self.node(kind, sign.text, node, right, offset=sign.offset)
                return node
        base = self.primary()
        if sign := self.take("**"):
            self.deeper()  # the right side may be another power, and so on
            exponent = self.operation(level - 1)
            self.level -= 1
            return self.node("arithmetic", "**", base, exponent, offset=sign.offset)
        return base

    def comparison(self, level: int) -> Node:
        parts = [self.operation(level + 1)]
        links: list[tuple[str, int]] = []
        while (link := self.comparator()) is not None:
            sign, offset = link
            parts.append(self.operation(level + 1))
            if sign in ("is", "is not") and not any(each.is_singleton for each in parts[-2:]):
                reason = f"'{sign}' compares with none, true and false only; write '=='"
                raise self.error(reason, offset)
            links.append(link)
        return self.node("compare", tuple(links), *parts) if links else parts[0]

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

    def primary(self) -> Node:
        token = self.token
        if token.kind == "number":
            return self.number()
        if token.kind == "text":
            self.index += 1
            return Node("constant", token.text[1:-1])
        if token.kind == "name" and token.text not in _OPERATOR_WORDS | _FOREIGN_WORDS:
            return self.name()
        if self.take("("):
            items, trailing = self.items(")", token)
            return items[0] if len(items) == 1 and not trailing else self.node("list", None, *items)
        if self.take("["):
            return self.node("list", None, *self.items("]", token)[0])
        if token.kind == "end":
            raise self.error("expected a value, but the expression ends")
        hint = f"; {_FOREIGN_SIGNS[token.text]}" if token.text in _FOREIGN_SIGNS else ""
        raise self.error(f"expected a value, got {token.text!r}{hint}")

    def number(self) -> Node:
        token = self.token
        self.index += 1
        following = self.token
        end = token.offset + len(token.text)
        if following.kind in ("name", "number") and following.offset == end:
            written = token.text + following.text
            raise self.error(f"{written!r} is neither a number nor a name", token.offset)
        if not token.text.isdigit():
            return Node("constant", float(token.text))
        if token.text.startswith("0") and token.text.strip("0"):
            raise self.error(f"{token.text!r} has a leading zero", token.offset)
        return Node("constant", int(token.text))

    def name(self) -> Node:
        name, offset = self.token.text, self.token.offset
        self.index += 1
        opened = self.token
        if name in WORDS:
            return Node("constant", WORDS[name])
        if opened.text == "(" and name in FUNCTIONS:
            self.index += 1
            arguments, _ = self.items(")", opened)
            _, least, most = FUNCTIONS[name]
            if not least <= len(arguments) <= most:
                counts = f"{least}" if least == most else f"{least} or more"
                reason = f"{name} takes {counts} values, not {len(arguments)}"
                raise self.error(reason, offset)
            return self.node("call", name, *arguments, offset=offset)
        self.offsets.setdefault(name, offset)
        node = Node("name", name, offset=offset)
        side = self.tokens[self.index + 1] if opened.text == "." else opened
        if opened.text == "." and side.kind == "name":
            self.index += 2
            return Node("side", side.text, (node,), side.offset)
        return node

    def items(self, closing: str, opened: Token) -> tuple[list[Node], bool]:
        """The items up to `closing`, and whether the last has a trailing comma."""
        found: list[Node] = []
        while not self.take(closing):
            found.append(self.conditional())
            if self.take(","):
                if self.take(closing):
                    return found, True
            else:
                self.need(closing, opened)
                break
        return found, False


# Expressions --------------------------------------------------------------------------------------


__all__ = ["FUNCTIONS", "WORDS", "Expression", "ExpressionError", "shorten"]


class Expression:
    """A parsed expression; expressions are equal if their texts are.

    Raises:
        ExpressionError: the text is not in the language.
    """

    __slots__ = ("_evaluate", "_offsets", "names", "text", "tree")

    text: str
    names: frozenset[str]
    """The names that evaluation looks up."""
    tree: Node

    def __init__(self, text: str) -> None:
        self.tree, self._evaluate, self._offsets = _parsed(text)
        self.text = text
        self.names = frozenset(self._offsets)

    def evaluate(self, names: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the value decides
        """The value for `names`; raises `ExpressionError` if it has none."""
        try:
            return self._evaluate(names)
        except Failed as failed:
            raise ExpressionError(failed.reason, self.text, failed.offset) from None
        except KeyError:
            for name, offset in self._offsets.items():
                if name not in names:
                    raise ExpressionError(f"unknown name {name!r}", self.text, offset) from None
            raise

    def offset_of(self, name: str) -> int:
        """The index of the first occurrence of `name` in the text."""
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
        return (Expression, (self.text,))  # closures do not pickle


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Node, Evaluate, Mapping[str, int]]:
    """The tree of a text, its closure, and the offset of the first occurrence of each name."""
    tree, offsets = parse(text)
    return tree, evaluator(tree), offsets
