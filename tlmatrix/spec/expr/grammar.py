"""The recursive-descent parser of expressions, from tokens to closures.

Length and depth are bounded.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tlmatrix.spec.expr.closures import (
    FUNCTIONS,
    arithmetic,
    called,
    chained,
    collected,
    compared,
    comparison,
    conditional,
    constant,
    first_false,
    first_true,
    fixed,
    negated,
    one_side,
    signed,
)
from tlmatrix.spec.expr.tokens import (
    FOREIGN_SIGNS,
    FOREIGN_WORDS,
    OPERATOR_WORDS,
    WORDS,
    ExpressionError,
    Token,
    tokens_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tlmatrix.spec.expr.closures import Evaluate

MAX_LENGTH = 2000
"""The most characters of an expression."""
MAX_DEPTH = 40
"""The most levels of the tree; chains of `and`, `or` and comparisons count as one level."""


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[Evaluate, Mapping[str, int]]:
    """The closure of a text, and the offset of the first occurrence of each name."""
    if len(text) > MAX_LENGTH:
        reason = f"an expression of {len(text)} characters; the limit is {MAX_LENGTH}"
        raise ExpressionError(reason, text, MAX_LENGTH)
    parser = _Parser(text)
    root = parser.everything()
    return root.evaluate, parser.offsets


class _Part(NamedTuple):
    """A parsed node: its closure, its depth, and whether it has no names."""

    evaluate: Evaluate
    depth: int
    constant: bool = False

    @property
    def is_singleton(self) -> bool:
        """Whether the node is the constant none, true or false, which `is` accepts."""
        if not self.constant or self.depth > 1:
            return False
        value = self.evaluate({})
        return value is None or value is True or value is False


class _Parser:
    """A recursive-descent parser with one method for each level of precedence."""

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
            reason = f"{opened.text!r} needs {article} {text!r}, but {found}"
            raise self.error(reason)

    def error(self, reason: str, offset: int | None = None) -> ExpressionError:
        return ExpressionError(reason, self.text, self.token.offset if offset is None else offset)

    def part(self, evaluate: Evaluate, *inner: _Part) -> _Part:
        """A node with children."""
        depth = 1 + max((part.depth for part in inner), default=0)
        if depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep")
        return _Part(evaluate, depth, constant=all(part.constant for part in inner))

    def deeper(self) -> None:
        """Count a level of recursion; raises before the stack overflows."""
        self.level += 1
        if self.level > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep")

    # The grammar.

    def everything(self) -> _Part:
        if self.token.kind == "end":
            raise self.error("an empty expression")
        part = self.conditional()
        if self.token.kind != "end":
            raise self.error(self.describe_stray())
        return part

    def describe_stray(self) -> str:
        """The error for a token after a complete expression."""
        text = self.token.text
        if text in FOREIGN_SIGNS:
            return f"{text!r} is not part of the expression language; {FOREIGN_SIGNS[text]}"
        if text == ".":
            return "'.' names one side of a packed axis, as in seqlens.q"
        if text == "[":
            return "indexing ('[...]') is not part of the expression language"
        if text == "(":
            return "only " + ", ".join(FUNCTIONS) + " can be called"
        if text == "else":
            return "'else' without an 'if' before it; write 'a if condition else b'"
        if text in FOREIGN_WORDS:
            return f"{text!r} is not part of the expression language"
        return f"an operator is missing before {text!r}"

    def conditional(self) -> _Part:
        self.deeper()
        part = self.disjunction()
        if opened := self.take("if"):
            condition = self.disjunction()
            self.need("else", opened)
            other = self.conditional()
            evaluate = conditional(condition.evaluate, part.evaluate, other.evaluate)
            part = self.part(evaluate, condition, part, other)
        self.level -= 1
        return part

    def disjunction(self) -> _Part:
        return self.joined("or", self.conjunction, first_true)

    def conjunction(self) -> _Part:
        return self.joined("and", self.negation, first_false)

    def joined(
        self, word: str, operand: Callable[[], _Part], join: Callable[[list[Evaluate]], Evaluate]
    ) -> _Part:
        """One operand, or several with `word` between them."""
        parts = [operand()]
        while self.take(word):
            parts.append(operand())
        if len(parts) == 1:
            return parts[0]
        return self.part(join([part.evaluate for part in parts]), *parts)

    def negation(self) -> _Part:
        signs = 0
        while self.take("not"):
            signs += 1
        part = self.comparison()
        for _ in range(signs):
            part = self.part(negated(part.evaluate), part)
        return part

    def comparison(self) -> _Part:
        first = self.sum()
        links: list[tuple[Callable[[Any, Any], Any], Evaluate]] = []
        parts = [first]
        while (link := self.comparator()) is not None:
            name, offset = link
            right = self.sum()
            if name in ("is", "is not") and not (right.is_singleton or parts[-1].is_singleton):
                reason = f"'{name}' compares with none, true and false only; write '=='"
                raise self.error(reason, offset)
            parts.append(right)
            # A constant list is built once.
            is_list = name in ("in", "not in") and right.constant
            value_of = fixed(right.evaluate) if is_list else right.evaluate
            links.append((comparison(name, offset), value_of))
        if not links:
            return first
        if len(links) == 1:
            compare, right_of = links[0]
            return self.part(compared(first.evaluate, compare, right_of), *parts)
        return self.part(chained(first.evaluate, links), *parts)

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
        return self.computed(self.product, "+", "-")

    def product(self) -> _Part:
        return self.computed(self.signed, "*", "/", "//", "%")

    def computed(self, operand: Callable[[], _Part], *signs: str) -> _Part:
        """Operands with `signs` between them, computed from left to right."""
        left = operand()
        while sign := self.take(*signs):
            right = operand()
            evaluate = arithmetic(sign.text, sign.offset, left.evaluate, right.evaluate)
            left = self.part(evaluate, left, right)
        return left

    def signed(self) -> _Part:
        signs = []
        while sign := self.take("-", "+"):
            signs.append(sign)
        part = self.power()
        for sign in reversed(signs):
            part = self.part(signed(sign.text, sign.offset, part.evaluate), part)
        return part

    def power(self) -> _Part:
        base = self.primary()
        if sign := self.take("**"):
            self.deeper()  # the right side may be another power, and so on
            exponent = self.signed()
            self.level -= 1
            return self.part(
                arithmetic(sign.text, sign.offset, base.evaluate, exponent.evaluate), base, exponent
            )
        return base

    def primary(self) -> _Part:
        token = self.token
        if token.kind == "number":
            return self.number()
        if token.kind == "text":
            self.index += 1
            return self.part(constant(token.text[1:-1]))
        if token.kind == "name" and token.text not in OPERATOR_WORDS | FOREIGN_WORDS:
            return self.name()
        if self.take("("):
            return self.parenthesis(token)
        if self.take("["):
            items, _ = self.items("]", token)
            return self.part(collected([item.evaluate for item in items]), *items)
        if token.kind == "end":
            raise self.error("expected a value, but the expression ends")
        hint = f"; {FOREIGN_SIGNS[token.text]}" if token.text in FOREIGN_SIGNS else ""
        raise self.error(f"expected a value, got {token.text!r}{hint}")

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
            return self.part(constant(float(token.text)))
        if token.text.startswith("0") and token.text.strip("0"):
            raise self.error(f"{token.text!r} has a leading zero", token.offset)
        return self.part(constant(int(token.text)))

    def name(self) -> _Part:
        token = self.token
        self.index += 1
        if token.text in WORDS:
            return self.part(constant(WORDS[token.text]))
        if self.token.text == "(" and token.text in FUNCTIONS:
            opened = self.token
            self.index += 1
            arguments, _ = self.items(")", opened)
            _, least, most = FUNCTIONS[token.text]
            if not least <= len(arguments) <= most:
                counts = f"{least}" if least == most else f"{least} or more"
                reason = f"{token.text} takes {counts} values, not {len(arguments)}"
                raise self.error(reason, token.offset)
            return self.part(
                called(token.text, token.offset, [each.evaluate for each in arguments]), *arguments
            )
        self.offsets.setdefault(token.text, token.offset)
        if self.token.text == "." and self.tokens[self.index + 1].kind == "name":
            side = self.tokens[self.index + 1]
            self.index += 2
            return _Part(one_side(token.text, side.text, side.offset), depth=1)
        return _Part(operator.itemgetter(token.text), depth=1)

    def parenthesis(self, opened: Token) -> _Part:
        items, trailing = self.items(")", opened)
        if len(items) == 1 and not trailing:
            return items[0]
        return self.part(collected([item.evaluate for item in items]), *items)

    def items(self, closing: str, opened: Token) -> tuple[list[_Part], bool]:
        """The items up to `closing`, and whether the last has a trailing comma."""
        found: list[_Part] = []
        while not self.take(closing):
            found.append(self.conditional())
            if self.take(","):
                if self.take(closing):
                    return found, True
            else:
                self.need(closing, opened)
                break
        return found, False
