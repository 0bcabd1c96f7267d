"""Generates cases with Hypothesis; the only module that depends on its engine.

The same seed generates the same cases in every process; the ids of fuzz cases under pytest depend
on that. By default Hypothesis also draws constants from the source of imported modules, which it
parses, and writes a folder `.hypothesis`; `_SeededProvider` does neither. Hypothesis does not
shrink here: `tlmatrix.fuzz.shrink` works on the values of a case.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import target as hypothesis_target
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture import data, junkdrawer
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from tlmatrix.matrix.listed_cases import seed_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from random import Random

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.matrix import Case

_MAX_DUPLICATES = 200
"""Duplicates in a row after which generation ends."""


class StopGenerating(BaseException):
    """Ends generation; a BaseException, which Hypothesis does not take for a failing example."""


class _SeededProvider(HypothesisProvider):
    """A provider whose choices depend on the seed alone."""

    def _maybe_draw_constant(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401 - its own
        return None


_NAME = "tlmatrix"
_OURS = f"{__name__}.{_SeededProvider.__name__}"
AVAILABLE_PROVIDERS[_NAME] = _OURS


def _draw_choice(choice_type: str, constraints: Any, *, random: Random) -> Any:  # noqa: ANN401
    """One choice of a new prefix, for which Hypothesis takes its default provider."""
    draws = data.ConjectureData(random=random, provider=_SeededProvider)
    return getattr(draws.provider, f"draw_{choice_type}")(**constraints)


@contextmanager
def _replacing(name: str) -> Iterator[None]:
    """Replace a provider of Hypothesis by ours; only its default one optimizes target scores."""
    before, draw = AVAILABLE_PROVIDERS[name], data.draw_choice
    AVAILABLE_PROVIDERS[name], data.draw_choice = _OURS, _draw_choice
    try:
        yield
    finally:
        AVAILABLE_PROVIDERS[name], data.draw_choice = before, draw


@contextmanager
def without_hook() -> Iterator[None]:
    """Keep Hypothesis from registering a garbage collection callback, which measures for deadlines.

    We use no deadlines, and Python prints and ignores a Ctrl-C that arrives in such a callback.
    """
    before = junkdrawer._gc_initialized  # noqa: SLF001 - no public way
    junkdrawer._gc_initialized = True  # noqa: SLF001
    try:
        yield
    finally:
        junkdrawer._gc_initialized = before  # noqa: SLF001


def derive_seed(*parts: object) -> int:
    """A seed from `parts`, the same in every process."""
    return seed_from(repr(parts))


def explore(
    strategy: SearchStrategy[Case],
    run: Callable[[Case], Mapping[str, float] | None],
    *,
    count: int,
    first: int,
    guided: bool = True,
) -> None:
    """Call `run` with up to `count` generated cases; `first` is the seed.

    `run` returns scores by name, and raises `StopGenerating` to end. It must not raise for a
    failing case. With `guided`, later cases are mutations of those with the best scores;
    otherwise all are independent, which is better for a small number.
    """
    backend = "hypothesis" if guided else _NAME

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
        for label, score in (run(case) or {}).items():
            hypothesis_target(score, label=label)

    try:
        with _replacing(backend), without_hook():
            one()
    except (StopGenerating, Unsatisfiable):
        return


def generate_cases(
    strategy: SearchStrategy[Case], *, count: int, first: int, known: frozenset[str] = frozenset()
) -> list[Case]:
    """Generate up to `count` cases with distinct ids that are not in `known`.

    The same seed and strategy generate the same cases; a larger `count` only appends to them.
    """
    found: dict[str, Case] = {}
    duplicates = 0

    def take(case: Case) -> None:
        nonlocal duplicates
        duplicates += 1
        if case.id not in known and case.id not in found:
            found[case.id] = case
            duplicates = 0
        if len(found) == count or duplicates == _MAX_DUPLICATES:
            raise StopGenerating

    if count:
        explore(strategy, take, count=(count + 1) * _MAX_DUPLICATES, first=first, guided=False)
    return list(found.values())
