"""Phases of mbarriers: each wait is for the phase that its number demands.

A counted pipeline uses barrier `n % S` of an array of S in its n-th step, and waits there for
parity `n // S % 2`, or for the other one where it waits for the phase before (PTX ISA, "mbarrier").
How many waits a thread has made before one is a sum over the loops around it, written as an
expression over sizes and loop variables. The barrier and the parity of the wait must follow from
that sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import z3

from tlmatrix.interpreter.analysis.accesses import interval_of
from tlmatrix.interpreter.analysis.expressions import MIRRORED, NEGATED, add_terms, interval, number
from tlmatrix.interpreter.analysis.ownership import conjuncts
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .properties import answered

if TYPE_CHECKING:
    from tlmatrix.interpreter.analysis.accesses import Event, Range

    from .answers import Proof
    from .properties import Question
    from .solving import Questions
    from .terms import Terms

_ZERO, _ONE = ir.IntImm("int32", 0), ir.IntImm("int32", 1)


class UncountedError(ValueError):
    """How often a statement is executed is no expression of the sizes."""


def phases(questions: Questions, barrier: ir.Buffer) -> Iterator[Proof]:
    """Waits and arrivals of each thread at an array of barriers take them in turn.

    The n-th arrival is at barrier `n % S`; the n-th wait is there, for the phase n // S or the one
    before; and no wait is for a phase that no arrival completes. Parts of an array that no index
    reaches from another part are arrays of their own.
    """
    whole = number(barrier.shape[0])
    events = [e for e in questions.accesses.events if e.barrier.data is barrier.data]
    spans = {e: interval(e.index, {r.var: interval_of(r) for r in e.ranges}) for e in events}
    parts: list[tuple[int, int, list[Event]]] = []
    for event in sorted(events, key=lambda e: spans[e]):
        low, high = max(spans[event][0], 0), min(spans[event][1], whole - 1)
        if parts and low <= parts[-1][1]:
            first, last, own = parts.pop()
            parts.append((first, max(last, high), [*own, event]))
        else:
            parts.append((low, high, [event]))
    for low, high, own in parts:
        part = f"[{low}]" if high == low else f"[{low}:{high + 1}]"
        name = f"{barrier.name}{part if high - low + 1 < whole else ''}"
        start = ir.IntImm("int32", low)
        ordered = [replace(e, index=ir.Sub("int32", e.index, start)) for e in events if e in own]
        yield _phases(questions, name, ordered, high - low + 1)


def _phases(questions: Questions, name: str, events: Sequence[Event], size: int) -> Proof:
    """The answer about `size` barriers that are used in turn."""
    answer = partial(answered, questions, "phases", name)
    for event in events:
        if not event.certain or any(r.kind in ("parallel", "tile") for r in event.ranges):
            reason = "how often, or which barrier, depends on a value that is not known"
            return answer([(None, reason, event.location)])
    arrivals = [event for event in events if event.parity is None]
    waits = [event for event in events if event.parity is not None]
    late: dict[Event, int] = {}
    facts: list[str] = []
    try:
        for event in [*(arrivals if size > 1 and waits else ()), *waits]:
            for late[event] in (0, 1):
                proof = answer([_out_of_turn(questions, event, events, size, late[event])])
                if proof.answer == "proven":
                    break
            else:
                return proof
            facts += proof.facts
        spare = {event: late[event] * size for event in waits}
        return answer(_lacking(questions, spare, arrivals), facts)
    except UncountedError as error:
        return answer([(None, str(error), events[0].location)])


def _out_of_turn(
    questions: Questions, event: Event, events: Sequence[Event], size: int, late: int
) -> Question:
    """That the barrier or the parity of an event is not what its number among its kind says.

    With `late` 1 a wait is for the phase before.
    """
    questions.fresh()
    terms = questions.terms

    def holds(test: ir.Expr) -> bool:
        found = [*questions.executed(event), z3.Not(terms.boolean(test))]
        return questions.ask(found)[0] == "none"

    alike = [each for each in events if (each.parity is None) == (event.parity is None)]
    before = _earlier(event, alike, holds)
    divisor = ir.IntImm("int32", size)
    wrong = [terms.integer(event.index) != terms.integer(ir.FloorMod("int32", before, divisor))]
    if event.parity is not None:
        turn = ir.FloorDiv("int32", before, divisor)
        shifted = ir.Add("int32", turn, ir.IntImm("int32", late))
        parity = ir.FloorMod("int32", shifted, ir.IntImm("int32", 2))
        wrong.append(terms.integer(event.parity) != terms.integer(parity))
    reason = "a wait may be for another phase than its number among the waits demands"
    if event.parity is None:
        reason = "an arrival may be at another barrier than its number among the arrivals demands"
    return [*questions.executed(event), z3.Or(wrong)], reason, event.location


def _lacking(
    questions: Questions, waits: Mapping[Event, int], arrivals: Sequence[Event]
) -> Iterator[Question]:
    """That threads wait more often than others arrive; by wait, as many more pass without."""
    for spare in set(waits.values()):
        questions.fresh()
        terms = questions.terms
        own = [event for event, each in waits.items() if each == spare]
        waited, arrived = terms.integer(_total([*waits]), "1"), terms.integer(_total(arrivals), "2")
        ranges = [r for e in (*waits, *arrivals) for r in e.ranges if r.kind != "loop"]
        found = [*terms.bounds(ranges, "1"), *terms.bounds(ranges, "2")]
        blocks = {r.var for r in ranges if r.kind == "block"}
        found += [terms.variable(var, "1") == terms.variable(var, "2") for var in blocks]
        found.append(z3.Or([_role(terms, event, "1") for event in own]))
        found += [z3.Or([_role(terms, event, "2") for event in arrivals])] if arrivals else []
        found.append(waited > arrived + spare)
        yield found, "a wait may be for a phase that no arrival completes", own[0].location


def _role(terms: Terms, event: Event, block: str) -> z3.BoolRef:
    """That a thread may execute an event, by the conditions on nothing but the thread."""
    threads = {each.var for each in event.ranges if each.kind == "thread"}
    tests = (part for test in event.path for part in conjuncts(test))
    values = ((t, {n for n in walk(t) if isinstance(n, (ir.Var, ir.BufferLoad))}) for t in tests)
    return z3.And([terms.boolean(test, block) for test, used in values if used <= threads])


# How often statements are executed ----------------------------------------------------------------


def _total(events: Sequence[Event]) -> ir.Expr:
    """How often a thread executes events, all in all."""
    return _sum(_executions(event, _loops(event), {}, lambda _: False) for event in events)


def _earlier(event: Event, alike: Sequence[Event], holds: Callable[[ir.Expr], bool]) -> ir.Expr:
    """How often a thread has executed events before it executes `event`, which is one of them.

    `holds` says whether a condition holds wherever `event` is executed.
    """
    parts = []
    follows = False
    for other in alike:
        follows |= other is event
        common = []
        for mine, its in zip(_loops(event), _loops(other), strict=False):
            if mine.var is not its.var:
                break
            common.append(mine)
        for k, each in enumerate(common):
            parts.append(_executions(other, _loops(other)[k:], {each.var: each.var}, holds))
        if not follows:
            parts.append(_executions(other, _loops(other)[len(common) :], {}, holds))
    return _sum(parts)


def _loops(event: Event) -> list[Range]:
    return [r for r in event.ranges if r.kind == "loop"]


def _executions(
    event: Event,
    free: Sequence[Range],
    ends: Mapping[ir.Var, ir.Expr],
    holds: Callable[[ir.Expr], bool],
) -> ir.Expr:
    """How often an event is executed in all iterations of loops; of some, up to an iteration.

    Raises:
        UncountedError: a condition on a loop's variable is no bound of it, or the number of
            iterations of one loop depends on another.
    """
    tests = [part for test in event.path for part in conjuncts(test)]
    found: ir.Expr = _ONE
    for loop in reversed(free):
        if loop.var in walk(found) or loop.extent is None:
            raise UncountedError(f"the iterations of {loop.var.name} differ in their waits")
        own = [test for test in tests if loop.var in walk(test)]
        tests = [test for test in tests if test not in own]
        low, end = loop.low, ends.get(loop.var, ir.Add("int32", loop.low, loop.extent))
        for test in own:
            least, most = _bound(test, loop.var)
            low = low if least is None else _larger(low, least, holds)
            if most is not None:
                after = ir.Add("int32", most, _ONE)
                inside = holds(ir.Compare("bool", end, after, "<="))
                end = end if inside else ir.Min("int32", end, after)
        count = _larger(ir.Sub("int32", end, low), _ZERO, holds)
        found = ir.Mul("int32", count, found)
    for test in tests:
        found = ir.Select("int32", test, found, _ZERO)
    return found


def _larger(a: ir.Expr, b: ir.Expr, holds: Callable[[ir.Expr], bool]) -> ir.Expr:
    if holds(ir.Compare("bool", a, b, ">=")):
        return a
    return b if holds(ir.Compare("bool", a, b, "<=")) else ir.Max("int32", a, b)


def _bound(test: ir.Expr, var: ir.Var) -> tuple[ir.Expr | None, ir.Expr | None]:
    """The least and the largest value of a variable for which a condition holds.

    Raises:
        UncountedError: the condition is no bound.
    """
    holds = True
    while isinstance(test, ir.Not):
        test, holds = test.a, not holds
    if isinstance(test, ir.Compare):
        # The sides differ by a constant, multiples of terms, and the variable or its negative.
        terms: dict[Any, int] = {}
        constant = add_terms(test.a, 1, terms) + add_terms(test.b, -1, terms)
        factor = terms.pop(var, 0)
        symbol = test.symbol if holds else NEGATED[test.symbol]
        symbol = MIRRORED[symbol] if factor < 0 else symbol
        if abs(factor) == 1 and symbol != "!=" and not any(var in walk(term) for term in terms):
            limit: ir.Expr = ir.IntImm("int32", -factor * constant)
            for term, count in terms.items():
                multiple = ir.Mul("int32", ir.IntImm("int32", -factor * count), term)
                limit = ir.Add("int32", limit, multiple)
            least = ir.Add("int32", limit, _ONE) if symbol == ">" else limit
            most = ir.Sub("int32", limit, _ONE) if symbol == "<" else limit
            return (
                least if symbol in (">", ">=", "==") else None,
                most if symbol in ("<", "<=", "==") else None,
            )
    raise UncountedError(f"a condition on {var.name} is not a bound of it")


def _sum(parts: Iterable[ir.Expr]) -> ir.Expr:
    none: ir.Expr = _ZERO
    return reduce(partial(ir.Add, "int32"), parts, none)
