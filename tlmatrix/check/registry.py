"""The checks that are made after the first call of a case, in their order, and their selection.

A check is a class here or in a module of its own, and an entry of `CHECKS`. Those of the first
call itself (`numeric`, `gradients`, `poison`, `guards`, `sanitizers`) are made by
`tlmatrix.check.pipeline`, and by the guards and sanitizers of that call.

Most checks need one to three more calls each, which is most of a case's time. A case of a tier gets
all of them. A fuzz case gets one, in rotation; its own seed selects it, so that the case is checked
in the same way whenever it runs. Its determinism check makes two equal calls instead of three.
Shrinking keeps only the checks that failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Literal

from tlmatrix.check.determinism import check_equal_calls, seeded_generator
from tlmatrix.check.relations import check_calls, check_history, check_layouts, check_many_calls
from tlmatrix.problem.model import HistoryRelation, LayoutRelation, ManyCallsRelation

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.running import CaseRun
    from tlmatrix.problem.model import Relation, RelationKind

Reruns = Literal["all", "rotate"] | Collection[str]
"""Which checks to make after the first call: `all`, one in rotation (`rotate`), or these names."""

_LATER = "propagation"


class Check(ABC):
    """A check of a case after its first call, whose results are `CaseRun.results`.

    Attributes:
        name: as `checks` of a spec has it.
        masked: when it is made if the findings of the first call are masked: before the others,
            after them if they have no findings, or not at all.
        noted: whether a finding notes that it was not made after wrong values.
    """

    name: str
    masked: Literal["before", "after"] | None = None
    noted: bool = True

    @abstractmethod
    def findings(self, run: CaseRun) -> list[Finding]:
        """Make the check."""

    def rotated(self, run: CaseRun) -> list[Finding] | None:
        """Make the cheapest part of the check, as the case's seed selects; None if none applies."""
        return self.findings(run)

    def applies(self, run: CaseRun) -> bool:  # noqa: ARG002
        """Whether the check has something to do."""
        return True

    def useful(self, run: CaseRun, *, keep_going: bool) -> bool:  # noqa: ARG002
        """Whether it may say more after wrong values, or is made anyway with `keep_going`."""
        return True


class Determinism(Check):
    """Equal calls have equal results."""

    name = "determinism"
    masked = "before"

    def findings(self, run: CaseRun) -> list[Finding]:
        """See `Check`."""
        run.on_check(self.name)
        found = check_equal_calls(run)
        run.stable = not found
        return found

    def rotated(self, run: CaseRun) -> list[Finding] | None:
        """Two calls instead of three."""
        run.on_check(self.name)
        return check_equal_calls(run, 2)

    def useful(self, run: CaseRun, *, keep_going: bool) -> bool:  # noqa: ARG002
        """The bound of wrong sums in any order is not known."""
        return run.deterministic


class RelationCheck(Check):
    """The metamorphic relations of one kind hold."""

    _USEFUL: ClassVar[dict[RelationKind, bool]] = {
        # A later call has its own reference, which says nothing if the first call was wrong.
        "repeat": False, "propagation": False,
        "isolation": True, "poison": True,
    }  # fmt: skip
    """Whether a kind says more after wrong values; others do with `keep_going`."""

    def __init__(self, kind: RelationKind) -> None:
        self.name = self.kind = kind
        self.masked = "after" if kind in ("isolation", "poison", "relations") else None
        self.noted = kind != "propagation"

    def findings(self, run: CaseRun) -> list[Finding]:
        """See `Check`."""
        found = []
        for relation in run.problem.relations(self.kind):
            found += self._related(run, relation, exact=run.stable)
        return found

    def rotated(self, run: CaseRun) -> list[Finding] | None:
        """One of the relations."""
        relations = list(run.problem.relations(self.kind))
        if not relations:
            return None
        relation = seeded_generator(run.case.seed + 1).choice(relations)
        return self._related(run, relation, exact=True)

    def applies(self, run: CaseRun) -> bool:
        """See `Check`."""
        return next(iter(run.problem.relations(self.kind)), None) is not None

    def useful(self, run: CaseRun, *, keep_going: bool) -> bool:  # noqa: ARG002
        """See `Check`."""
        return self._USEFUL.get(self.kind, keep_going)

    def _related(self, run: CaseRun, relation: Relation, *, exact: bool) -> list[Finding]:
        run.on_check(relation.name)
        exact = exact and run.deterministic
        match relation:
            case ManyCallsRelation():
                return check_many_calls(relation, run)
            case LayoutRelation():
                return check_layouts(relation, run)
            case HistoryRelation():
                return check_history(relation, run, exact=exact)
        return check_calls(relation, run, exact=exact)


_KINDS: tuple[RelationKind, ...] = (
    "isolation", "poison", "repeat", "relations", "agreement", "propagation",
)  # fmt: skip
CHECKS: dict[str, Check] = {
    check.name: check for check in (Determinism(), *map(RelationCheck, _KINDS))
}
"""The checks by name, the most informative first."""


def is_selected(check: str, reruns: Reruns) -> bool:
    """Whether `reruns` is `all` or contains the check."""
    if isinstance(reruns, str):
        return reruns == "all"
    return check in reruns


def rotation_order(checks: Collection[str], seed: int) -> list[str]:
    """The order in which a case with this seed tries checks, given as in `CHECKS`."""
    order = [check for check in checks if check != _LATER]
    seeded_generator(seed).shuffle(order)
    if _LATER in checks:
        # Inserted, so that the order of the others does not depend on it.
        order.insert(seeded_generator(seed + 3).randrange(len(order) + 1), _LATER)
    return order
