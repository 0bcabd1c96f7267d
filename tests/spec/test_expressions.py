"""Expressions evaluate as in Python, have located errors, and have bounded cost."""

import math
import pickle
import time
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlmatrix.spec import Expression, ExpressionError

NAMES = {
    "a": 5,
    "b": 0,
    "w": None,
    "f": 1.5,
    "t": True,
    "dtype": "float16",
    "q": [1, 2],
    "big": 2**64,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("w is none or t", True),
        ("w is not null and t", False),
        ("t is true", True),
        ("w == none", True),
        ("None is w", True),
        ("dtype == 'float16'", True),
        ('dtype in ["float16", "bfloat16"]', True),
        ("dtype not in ('float32',)", True),
        ("'16' in dtype", True),
        ("1 < a < 10", True),
        ("1 < a < 3 < 1 / b", False),  # as in Python, what follows a failure is not evaluated
        ("not a == 5", False),
        ("b or 7", 7),
        ("a and b", 0),
        ("b and 1 / b", 0),
        ("-a ** 2", -25),
        ("2 ** -1", 0.5),
        ("2 ** 3 ** 2", 512),
        ("(2 ** 3) ** 2", 64),
        ("7 // 2 * 2 + 7 % 2", 7),
        ("-7 // 2", -4),
        ("7 / 2", 3.5),
        ("1e3", 1000.0),
        (".5 + 1.", 1.5),
        ("min(a, 3) + max(1, 2, 3) + abs(-1) + len(q) + ceildiv(65, 64)", 11),
        ("min([4, 3])", 3),
        ("q == [1, 2]", True),
        ("(1, 2) == q", True),
        ("q != (1, 3)", True),
        ("(a)", 5),
        ("()", []),
        ("[a, [b]]", [5, [0]]),
        ("not not w", False),
        ("  a\n+ 1", 6),
        ("1 if a == 5 else 2", 1),
        ("1 if w else 2 if b else 3", 3),
        ("(1 if t else 2) + 1", 2),
        ("1 if b else 2 + 1", 3),
        ("a if w is none or 1 / b else 1 / b", 5),  # the other branch is not evaluated
        ("w < 3 if w is not none else true", True),
        ("[1 if t else 2, 3]", [1, 3]),
        ("max(1 if t else 9, 2)", 2),
    ],
)
def test_expression_evaluates_as_in_python(text, value):
    found = Expression(text).evaluate(MappingProxyType(NAMES))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sum(plain)", 82),
        ("max(plain) + min(plain) + len(plain)", 68),
        ("max([]) + min([]) + sum([])", 0),
        ("ceildiv(plain, 16)", [2, 4, 1]),
        ("ceildiv(plain, 16) * 16 - plain", [15, 0, 15]),
        ("2 ** [1, 2]", [2, 4]),
        ("plain.q == plain.k == plain", True),
        ("sum(apart.q) + sum(apart.k)", 16),
        ("apart.q", [1, 1]),
        ("alike.k", [3, 0]),
        ("sum(alike) + len(alike) + max(alike * 2)", 11),
        ("len(apart)", 2),
        ("pages(plain, 16)", 10),
        ("min(['b', 'a'])", "a"),
    ],
)
def test_arithmetic_on_lists_is_elementwise(text, value):
    names = {
        "plain": [17, 64, 1],
        "alike": {"q": [3, 0], "k": "same"},
        "apart": {"q": 1, "k": [5, 9]},
    }
    assert Expression(text).evaluate(names) == value


def test_packed_axis_with_different_sides_is_not_one_list():
    names = {"lens": {"q": [1, 2], "k": [5, 9]}}
    for text, reason in (("sum(lens)", "has no value"), ("lens * 2", "lens")):
        with pytest.raises(ExpressionError, match="the sides q and k differ; name one") as caught:
            Expression(text).evaluate(names)
        assert reason in str(caught.value)


def test_arithmetic_on_a_too_long_list_fails_at_once():
    names = {"lens": [3] * 90_000}
    assert Expression("sum(lens)").evaluate(names) == 270_000
    began = time.perf_counter()
    with pytest.raises(ExpressionError, match="a list of more than 16384 elements"):
        Expression("[" + ", ".join(["lens * lens"] * 100) + "]").evaluate(names)
    assert time.perf_counter() - began < 1


numbers = st.integers(-9, 9) | st.sampled_from([0.5, 2.0, -1.25])
leaves = st.one_of(
    st.sampled_from(["a", "b", "w", "f", "t", "dtype"]),
    numbers.map(lambda number: f"({number})" if number < 0 else str(number)),
    st.sampled_from(["None", "True", "False", "'float16'", "'x'"]),
)


def expressions(*arithmetic):
    """Texts that Python reads, too, with these operators among others."""
    compared = ["==", "!=", "<", "<=", ">", ">="]

    def combined(inner):
        def made(form, *parts):
            return st.builds(form.format, *parts)

        return st.one_of(
            made("({} {} {})", inner, st.sampled_from(arithmetic), inner),
            made("{} {} {}", inner, st.sampled_from(arithmetic), inner),
            made("{} {} {}", inner, st.sampled_from(["and", "or"]), inner),
            made(
                "({} {} {} {} {})",
                inner,
                st.sampled_from(compared),
                inner,
                st.sampled_from(compared),
                inner,
            ),
            made("(not {})", inner),
            made("(- {})", inner),
            made("({} in [{}, {}])", inner, inner, inner),
            made("({} is {})", inner, st.sampled_from(["None", "True", "False"])),
            made("max({}, {})", inner, inner),
            made("({} if ({}) else {})", inner, inner, inner),
            made("{} if ({}) else {}", inner, inner, inner),
        )

    return st.recursive(leaves, combined, max_leaves=8)


def by_python(text):
    return eval(text, {"__builtins__": {"max": max}}, dict(NAMES))


@settings(deadline=None)
@given(expressions("+", "-", "*", "/", "//", "%", "**"))
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_generated_expressions_evaluate_as_in_python(text):
    try:
        found = Expression(text).evaluate(NAMES)
    except ExpressionError:
        return
    expected = by_python(text)
    assert found == expected or (math.isnan(found) and math.isnan(expected))
    assert type(found) is type(expected)


@settings(deadline=None)
@given(expressions("+", "-", "*", "/", "//", "%"))  # Python alone would compute 9 ** 9 ** 9
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_expressions_that_only_python_evaluates_have_an_error(text):
    try:
        Expression(text).evaluate(NAMES)
    except ExpressionError as error:
        refused = error.reason
    else:
        return
    try:
        value = by_python(text)
    except (TypeError, ArithmeticError):
        return
    # Arithmetic with text and lists is Python's alone.
    assert isinstance(value, str) or "needs a number" in refused or "needs numbers" in refused


@settings(deadline=None)
@given(st.text(alphabet="ab1 .,()[]'\"<>=!+-*/%&|notrinis\\@#{}:;\u00e9\u0663\t\n", max_size=40))
def test_any_text_parses_or_has_an_error_inside_it(text):
    try:
        expression = Expression(text)
    except ExpressionError as error:
        offset = error.offset
    else:
        offset = 0
        assert all(text[expression.offset_of(n) :].startswith(n) for n in expression.names)
    assert 0 <= offset <= len(text)


@pytest.mark.parametrize(
    ("text", "offset", "reason"),
    [
        ("", 0, "an empty expression"),
        ("   ", 3, "an empty expression"),
        ("a b", 2, "an operator is missing before 'b'"),
        ("a and", 5, "expected a value, but the expression ends"),
        ("a or or b", 5, "expected a value, got 'or'"),
        ("a && b", 2, "'&&' is not part of the expression language; write 'and'"),
        ("a || b", 2, "'||' is not part of the expression language; write 'or'"),
        ("!a", 0, "expected a value, got '!'; write 'not'"),
        ("a = 1", 2, "'=' is not part of the expression language; write '==' to compare"),
        ("a.", 1, "'.' names one side of a packed axis, as in seqlens.q"),
        ("a[0].b", 1, "indexing ('[...]') is not part of the expression language"),
        ("a[0]", 1, "indexing ('[...]') is not part of the expression language"),
        ("exec('x')", 4, "only sum, min, max, abs, len, ceildiv, pages can be called"),
        ("__import__('os')", 10, "only sum, min, max, abs, len, ceildiv, pages can be called"),
        ("(a)(b)", 3, "only sum, min, max, abs, len, ceildiv, pages can be called"),
        ("a if b", 6, "'if' needs an 'else', but the expression ends"),
        ("a if b or c)", 11, "'if' needs an 'else', but found ')'"),
        ("a else b", 2, "'else' without an 'if' before it; write 'a if condition else b'"),
        ("if a else b", 0, "expected a value, got 'if'"),
        ("a if b else", 11, "expected a value, but the expression ends"),
        ("a ? b", 2, "'?' is not part of the expression language; write 'a if condition else b'"),
        ("lambda: 1", 6, "':' is not part of the expression language"),
        ("[x for x in q]", 3, "'[' needs a ']', but found 'for'"),
        ("{1: 2}", 0, "'{' is not part of the expression language"),
        ("a := 1", 2, "':' is not part of the expression language"),
        ("@", 0, "'@' is not part of the expression language"),
        ("(a", 2, "'(' needs a ')', but the expression ends"),
        ("a is 5", 2, "'is' compares with none, true and false only; write '=='"),
        ("a is not b", 2, "'is not' compares with none, true and false only; write '=='"),
        ("'a", 0, "text in ' is not closed, or has a backslash"),
        ("'\\n'", 0, "text in ' is not closed, or has a backslash"),
        ("3x", 0, "'3x' is neither a number nor a name"),
        ("0x10", 0, "'0x10' is neither a number nor a name"),
        ("010", 0, "'010' has a leading zero"),
        ("min()", 0, "min takes 1 or more values, not 0"),
        ("ceildiv(1)", 0, "ceildiv takes 2 values, not 1"),
    ],
)
def test_syntax_error_has_its_offset_and_reason(text, offset, reason):
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert (caught.value.offset, caught.value.reason) == (offset, reason)


@pytest.mark.parametrize(
    ("text", "offset", "reason"),
    [
        ("a + missing", 4, "unknown name 'missing'"),
        ("w < 3", 2, "cannot compare none < 3"),
        ("a < 'x'", 2, "cannot compare 5 < 'x'"),
        ("a in 3", 2, "'in' needs a list, not 3"),
        ("a / b", 2, "5 / 0 divides by zero"),
        ("1 % b", 2, "1 % 0 divides by zero"),
        ("0 ** -1", 2, "0 ** -1 divides by zero"),
        ("dtype + 'x'", 6, "'+' needs numbers, not 'float16'"),
        ("dtype * 3", 6, "'*' needs numbers, not 'float16'"),
        ("q + [1]", 2, "[1, 2] + [1]: lists of 2 and 1 elements"),
        ("q.v", 2, "'q' has no side 'v'; a packed axis has q and k"),
        (
            "b.q",
            2,
            (
                "b is 0, not a list of lengths; write {q: [17, 64], k: same}, "
                "{q: [17, 64], k: [20, 64]} or a list for both"
            ),
        ),
        ("sum(dtype)", 0, "sum('float16') needs a list of numbers"),
        ("pages(q, b)", 0, "pages([1, 2], 0) needs a page size of 1 or more"),
        ("q * dtype", 2, "'*' needs numbers, not 'float16'"),
        ("q ** 999", 2, "[1, 2] ** 999: too large a number for a list"),
        ("-w", 0, "'-' needs a number, not none"),
        ("len(3)", 0, "len(3) is not defined"),
        ("ceildiv(3, b)", 0, "ceildiv(3, 0) divides by zero"),
        ("max(w, 1)", 0, "max(none, 1) is not defined"),
        ("1 if w else missing", 12, "unknown name 'missing'"),
        ("3 if w < 3 else 4", 7, "cannot compare none < 3"),
        ("(-8) ** 0.5", 5, "-8 ** 0.5: a root of a negative number"),
        ("2.0 ** 9999", 4, "2.0 ** 9999: (34, 'Numerical result out of range')"),
    ],
)
def test_evaluation_error_has_its_offset_and_reason(text, offset, reason):
    with pytest.raises(ExpressionError) as caught:
        Expression(text).evaluate(NAMES)
    assert (caught.value.offset, caught.value.reason) == (offset, reason)


@pytest.mark.parametrize(
    "text",
    [
        "9 ** 9 ** 9",
        "big ** big",
        "(9 ** 999) ** 999",
        "2 ** -99999999",
        "'%999999999d' % 1",
        "'a' * 999999999",
        "(" * 900 + "a" + ")" * 900,
        "-" * 1900 + "a",
        "not " * 450 + "a",
        "a" + " + a" * 450,
        "a" + "[" * 300,
        "2 ** " * 300 + "2",
        "[" * 1000,
        "a" * 5000,
        "a or " * 1000 + "a",
        "a if a else " * 150 + "a",
    ],
)
def test_a_hostile_expression_fails_at_once(text):
    began = time.perf_counter()
    with pytest.raises(ExpressionError):
        Expression(text).evaluate(NAMES)
    assert time.perf_counter() - began < 1  # it would be minutes, or all memory


def test_long_chains_count_as_one_level():
    text = " or ".join(f"a == {number}" for number in range(150))
    assert Expression(text).evaluate({"a": 149}) is True
    assert Expression(text).evaluate({"a": 150}) is False


def test_names_of_an_expression_exclude_constants():
    expression = Expression("a < b and max(c, 1) in [d, none] and 'e' != true and a")
    assert expression.names == {"a", "b", "c", "d"}
    assert expression.offset_of("a") == 0


def test_expressions_compare_and_hash_by_text():
    one, same, other = Expression("a + 1"), Expression("a + 1"), Expression("a+1")
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "a + 1"
    assert (str(one), repr(one)) == ("a + 1", "Expression('a + 1')")
    assert pickle.loads(pickle.dumps(one)).evaluate({"a": 1}) == 2


def test_expression_error_can_be_pickled():
    with pytest.raises(ExpressionError) as caught:
        Expression("a b")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert str(again) == ("an operator is missing before 'b', at character 3 of 'a b'")
