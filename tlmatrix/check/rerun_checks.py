"""The checks that run the entry again, and the selection of them for a case.

Determinism, isolation, poison in neighbouring sequences, repeated calls, relations and agreement
need one to three more runs each, which is most of a case's time. A case of a tier gets all of them.
A fuzz case gets one, in rotation; its own seed selects it, so that the case is checked in the same
way whenever it runs. Its determinism check makes two equal calls instead of three. Shrinking keeps
only the checks that failed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from tlmatrix.problem.model import AutogradVariant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.model import Problem, Relation, RelationKind

Reruns = Literal["all", "rotate"] | Collection[str]
"""Which checks run the entry again: `all`, one of them in rotation (`rotate`), or these names."""

RELATION_KINDS: tuple[RelationKind, ...] = (
    "isolation",
    "poison",
    "repeat",
    "relations",
    "agreement",
    "propagation",
)
"""Kinds of relations, the most informative first."""

RERUN_CHECKS: tuple[str, ...] = ("determinism", *RELATION_KINDS)
"""The checks that run the entry again, in the order in which they run."""


_WITH_FEWER_GRADIENTS = frozenset(
    {"strided", "transposed", "twice", "shared", "expanded", "absent"}
)
"""Autograd variants that may ask for the gradients of some inputs alone."""

_LATER = "propagation"


def is_selected(check: str, reruns: Reruns) -> bool:
    """Whether `reruns` is `all` or contains the check."""
    if isinstance(reruns, str):
        return reruns == "all"
    return check in reruns


def rotation_order(checks: Collection[str], seed: int) -> list[str]:
    """The rerun checks among `checks`, in the order in which a case with this seed tries them."""
    order = [check for check in RERUN_CHECKS if check in checks and check != _LATER]
    _generator(seed).shuffle(order)
    if _LATER in checks:
        # Inserted, so that the order of the others does not depend on it.
        order.insert(_generator(seed + 3).randrange(len(order) + 1), _LATER)
    return order


def pick_relation(relations: Sequence[Relation], seed: int) -> Relation:
    """One of the relations of a kind, selected by the case's seed."""
    return _generator(seed + 1).choice(relations)


def pick_autograd_variant(problem: Problem, seed: int) -> AutogradVariant | None:
    """Another way to call a differentiable entry, selected by the case's seed.

    None if the problem has no gradients.
    """
    inputs = sorted(set(problem.gradient_of.values()))
    if not problem.cotangents or not inputs:
        return None
    generator = _generator(seed + 2)
    variants = [
        AutogradVariant("strided"),
        AutogradVariant("transposed"),
        AutogradVariant("twice"),
        AutogradVariant("shared"),
        AutogradVariant("expanded"),
        AutogradVariant("no_grad"),
    ]
    if len(inputs) > 1:
        variants.append(AutogradVariant("some", requires=_some(inputs, generator)))
    changeable = changeable_inputs(problem)
    if changeable:
        variants.append(AutogradVariant("changed", (generator.choice(changeable),)))
    outputs = sorted(problem.cotangents)
    if len(outputs) > 1:
        absent = generator.sample(outputs, generator.randrange(1, len(outputs)))
        variants.append(AutogradVariant("absent", tuple(sorted(absent))))
    if set(problem.returns) - set(outputs):
        variants.append(AutogradVariant("claimed"))
    variant = generator.choice(variants)
    if variant.kind in _WITH_FEWER_GRADIENTS and len(inputs) > 1 and generator.random() < 0.5:
        return replace(variant, requires=_some(inputs, generator))
    return variant


def pick_fewer_gradients(problem: Problem, seed: int) -> AutogradVariant | None:
    """A call that asks for the gradients of some inputs; None if the problem has fewer than two."""
    inputs = sorted(set(problem.gradient_of.values()))
    if not problem.cotangents or len(inputs) < 2:
        return None
    return AutogradVariant("some", requires=_some(inputs, _generator(seed + 2)))


def _some(inputs: Sequence[str], generator: random.Random) -> tuple[str, ...]:
    """Some of the inputs, but not all: half the time a single one."""
    most = generator.choice([2, len(inputs)])
    return tuple(sorted(generator.sample(inputs, generator.randrange(1, most))))


def changeable_inputs(problem: Problem, *, integers: bool = False) -> list[str]:
    """Inputs that can be changed in place without a change of another.

    Integers are among them only with `integers`: many entries keep lengths and indices without
    `save_for_backward`. Output gradients never are: a backward pass takes their new values.
    """
    tensors = [*problem.inputs.values(), *problem.cotangents.values()]
    storages = Counter(each.untyped_storage().data_ptr() for each in tensors)
    return sorted(
        name
        for name, each in problem.inputs.items()
        if each.numel()
        and (each.is_floating_point() or (integers and not each.is_complex()))
        and storages[each.untyped_storage().data_ptr()] == 1
        and all(stride or size < 2 for size, stride in zip(each.shape, each.stride(), strict=True))
    )


def _generator(seed: int) -> random.Random:
    """Independent of the one that picks a relation's sequence or head, which has the same seed."""
    return random.Random(seed ^ 0x70A7E)  # noqa: S311 - test data, not secrets
