"""Hypothesis as tlmatrix uses it: the one place that knows its engine.

A seed gives the same draws in every process, which ids of drawn cases under pytest rest on. As
Hypothesis comes, it also draws numbers that it finds in the source of whatever modules happen to
be imported, and keeps a folder `.hypothesis` where it runs; `_Draws` does neither. Nothing is
shrunk here: a failing case is resolved, and `tlmatrix.fuzz.shrink` works on it as it is.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import target as hypothesis_target
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture import junkdrawer
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from tlmatrix.matrix.case import seed_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.matrix import Case

__all__ = ["Enough", "drawn_cases", "explore", "seed_of", "without_hook"]

_IN_VAIN = 200
"""Draws in a row that bring no new case, after which there is none left to draw."""


class Enough(BaseException):
    """Ends the draws; no exception that Hypothesis would take for a failing example."""


class _Draws(HypothesisProvider):
    """Draws that depend on the seed alone."""

    def _maybe_draw_constant(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401 - its own
        return None


_NAME = "tlmatrix"
_OURS = f"{__name__}.{_Draws.__name__}"
AVAILABLE_PROVIDERS[_NAME] = _OURS


@contextmanager
def _in_place_of(name: str) -> Iterator[None]:
    """Let our draws stand for those of a backend: only Hypothesis's own aims at scores."""
    before = AVAILABLE_PROVIDERS[name]
    AVAILABLE_PROVIDERS[name] = _OURS
    try:
        yield
    finally:
        AVAILABLE_PROVIDERS[name] = before


@contextmanager
def without_hook() -> Iterator[None]:
    """Keep Hypothesis from hooking into the collection of garbage, to time it for deadlines.

    We have none; and a Ctrl-C that falls into such a hook is printed by Python, and lost.
    """
    before = junkdrawer._gc_initialized  # noqa: SLF001 - no public way
    junkdrawer._gc_initialized = True  # noqa: SLF001
    try:
        yield
    finally:
        junkdrawer._gc_initialized = before  # noqa: SLF001


def seed_of(*parts: object) -> int:
    """A seed for a part of a search; the same for equal parts, in every process."""
    return seed_from(repr(parts))


def explore(
    strategy: SearchStrategy[Case],
    each: Callable[[Case], Mapping[str, float] | None],
    *,
    count: int,
    first: int,
    aim: bool = True,
) -> None:
    """Give `each` up to `count` drawn cases, starting from the seed `first`.

    Scores that it returns, by name, are aimed at: later draws vary those that scored best. It
    raises `Enough` to end the draws; that a case fails is no reason to raise. Without `aim`, every
    case is drawn by itself: better for a few.
    """
    backend = "hypothesis" if aim else _NAME

    @seed(first)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.target),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.normal,
        backend=backend,
    )
    @given(strategy)
    def one(case: Case) -> None:
        for label, score in (each(case) or {}).items():
            hypothesis_target(score, label=label)

    try:
        with _in_place_of(backend), without_hook():
            one()
    except (Enough, Unsatisfiable):
        return


def drawn_cases(
    strategy: SearchStrategy[Case], *, count: int, first: int, known: frozenset[str] = frozenset()
) -> list[Case]:
    """Up to `count` cases of different ids that are not `known`, fewer if no more are drawn.

    The same seed and strategy give the same cases, and more of them begin with fewer.
    """
    found: dict[str, Case] = {}
    in_vain = 0

    def take(case: Case) -> None:
        nonlocal in_vain
        in_vain += 1
        if case.id not in known and case.id not in found:
            found[case.id] = case
            in_vain = 0
        if len(found) == count or in_vain == _IN_VAIN:
            raise Enough

    if count:
        explore(strategy, take, count=(count + 1) * _IN_VAIN, first=first, aim=False)
    return list(found.values())
