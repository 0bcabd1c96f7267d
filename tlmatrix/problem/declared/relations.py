"""Metamorphic relations of declared problems: repeated calls, and those of packed axes.

A relation of sequences is checked for a result only if the float64 reference satisfies it in this
case. An operator that mixes sequences (a norm over all rows) therefore has no such relation, and no
false positive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import torch

from tlmatrix.problem.declared.cancelling import with_cancelling_parts
from tlmatrix.problem.declared.equal_inputs import with_equal_inputs
from tlmatrix.problem.declared.inputs import (
    generate_inputs,
    packed_axes,
    packing_of,
    paging_of,
    selected_lengths,
    value_of,
)
from tlmatrix.problem.declared.logits import with_low_products, with_other_logits
from tlmatrix.problem.distributions import generator, poison_scale, seeded_random
from tlmatrix.problem.model import Relation, judged_alone
from tlmatrix.problem.relations import balanced_lengths, repeated
from tlmatrix.problem.relations.batch import NEW, Batch, NotComposableError, place, select
from tlmatrix.spec.model.spec import has_ranks
from tlmatrix.spec.values import sides_of

if TYPE_CHECKING:
    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.problem.model import Problem, RelationKind, Tensors
    from tlmatrix.problem.relations.batch import Along, Right

_FAR = {torch.float16: 1024, torch.bfloat16: 128}
"""What is added to inputs by dtype: whole numbers about it are exact, and float32 has enough bits
left for the results."""
_SCALED = {torch.float16: 10, torch.bfloat16: 20, torch.float32: 20}
"""Powers of two that inputs are scaled by: float32 holds products of six, float16 not even two."""
_LARGEST = 0.75
"""The share of the cases in which the largest inputs are scaled."""
_ALIKE = 1e-3
"""Largest difference of results that scale with an input, as a part of the largest; an epsilon that
is added to squares is less."""
_LAST = 0.75
"""The share of rows whose largest number is the last one; it is the first one of others."""
_SPECIAL = 0.5
"""The share of second calls with special values."""
_SOME = 0.5
"""The share of their rows with extremes."""
_SPECIAL_VALUES = ("zero_rows", "one_hot", "constant_rows", "equal_rows")
_OPTIONAL = 2
"""Of this many cases with optional inputs, one is also called without one of them."""
_CLOSE = 1e-9
"""Largest relative difference of two float64 references that counts as rounding."""


@dataclass(frozen=True)
class DeclaredRelations:
    """The relations of one kind for a declared case."""

    case: Declared

    def __call__(self, kind: RelationKind) -> Iterator[Relation]:
        """See `Problem.relations`."""
        if kind == "relations":
            yield from self._of_other_values
        yield from _relations(self.case, kind)

    @cached_property
    def _of_other_values(self) -> Sequence[Relation]:
        case = self.case
        made = (
            with_cancelling_parts,
            _far_from_zero,
            with_other_logits,
            with_low_products,
            with_equal_inputs,
            _scaled_input,
            _without_input,
        )
        return [relation for each in made for relation in each(case)]


def _relations(case: Declared, kind: RelationKind) -> Iterator[Relation]:
    if kind == "repeat":
        other = _of_other_values(case)
        because = "a second call must not remember the first"
        judge = () if case.reference is None else (0,)
        yield repeated(other.problem(), case.problem(), because, judge=judge)
    for axis in packed_axes(case.setup.values, case.declaration):
        yield from DeclaredBatch(case, axis).relations(kind)


# Values far from zero -----------------------------------------------------------------------------


def _far_from_zero(case: Declared) -> Iterator[Relation]:
    """A call with a large constant added to the first input, if results do not depend on it.

    Or if they move by it. A norm whose variance is the mean of squares less the square of the
    mean, which float32 cannot tell from each other then, is wrong in it; so is a softmax, or the
    logarithm of a sum of exponentials, that subtracts no maximum. The input holds small whole
    numbers, to which the constant is added exactly. The bounds of results that stay are those of
    the call without it. In half of the cases, as the seed selects.
    """
    first = next(iter(case.inputs))
    tensor, decl = case.inputs[first], case.declaration.inputs[first]
    if (
        case.reference is None
        or case.reference.exact_dtype != torch.float64
        or tensor.dtype not in (*_FAR, torch.float32)
        or decl.fill is not None
        or case.seed // 19 % 2
        or not tensor.numel()
    ):
        return
    by = _FAR.get(tensor.dtype, _FAR[torch.bfloat16])
    small = torch.randint(-4, 5, tensor.shape, generator=generator(case.seed + 9))
    near = replace(case, inputs={**case.inputs, first: small.to(tensor)}, distribution="normal")
    far = replace(near, inputs={**near.inputs, first: (small + by).to(tensor)})
    kept, moved = (
        {name for name, exact in near.exact.items() if _is_close(exact + more, far.exact[name])}
        for more in (0, by)
    )
    kept = {name for name in kept if {tensor.dtype, case.infos[name].dtype} <= {*_FAR}}
    if not (kept | moved).issuperset(case.declaration.output_names):
        return
    call, stays = far.problem(), kept.issuperset(case.declaration.output_names)
    if stays:
        changed = {first: call.inputs[first]}
        call = near.problem()
        inputs, names = {**call.inputs, **changed}, {**call.names, **changed}
        call = replace(call, inputs=inputs, names=names)
    judged = kept if stays else kept | moved
    outputs = {name: info for name, info in call.outputs.items() if name in judged}
    how = "changes no result" if stays else "moves results by it"
    yield judged_alone(
        "far_from_zero",
        replace(call, outputs=outputs),
        because=f"{by} added to all of {first} {how}: are squares of large values subtracted, "
        "or exponentials of them added or divided?",
        control=near.problem,
    )


# Scaled inputs ------------------------------------------------------------------------------------


def _scaled_input(case: Declared) -> Iterator[Relation]:
    """A call with an input times a power of two, if results stay, all but, or scale with it.

    As those of norms, and of copies, sums and products do. What a kernel squares in 16 bits,
    converts to float16 or limits to a range is wrong then. Inputs of equal sizes may scale
    together, as the terms of a residual. In half of the cases, as the seed selects.
    """
    if (
        case.reference is None
        or case.reference.exact_dtype != torch.float64
        or case.seed // 23 % 2
        or not all(tensor.numel() for tensor in case.inputs.values())
    ):
        return
    alike = defaultdict[str, list[str]](list)
    for name, decl in case.declaration.inputs.items():
        if decl.is_free and case.inputs[name].dtype in _SCALED:
            alike[f"{decl.sizes} {case.inputs[name].dtype}"].append(name)
    groups = [*alike.values(), *([n] for each in alike.values() if len(each) > 1 for n in each)]
    pick = seeded_random(case.seed + 12)
    inputs = generate_inputs(case.setup, case.declaration, "normal", pick.randrange(2**32))
    near = replace(case, inputs=inputs, distribution="normal", given_cotangents=case.cotangents)
    groups = pick.sample(groups, len(groups))
    if pick.random() < _LARGEST:
        groups.sort(key=lambda names: -inputs[names[0]].numel())
    for names in groups[:2]:
        negated = {name: -inputs[name] for name in names}
        if _are_equal(near, replace(near, inputs={**inputs, **negated})):
            continue  # they have no influence
        # Twice the input first: an exponential of a large one may be 0 or 1, and stay.
        for exponent in (1, _SCALED[inputs[names[0]].dtype]):
            scaled = {name: inputs[name] * 2.0**exponent for name in names}
            far = replace(near, inputs={**inputs, **scaled})
            factors = {name: _factor(near, far, name, exponent) for name in case.infos}
            if None in factors.values():
                break
        else:
            yield _scaled_call(near, far, factors, f"{' and '.join(names)} times 2**{exponent}")
            return


def _are_equal(one: Declared, other: Declared) -> bool:
    return all(torch.equal(one.exact[name], other.exact[name]) for name in one.infos)


def _scaled_call(
    near: Declared, far: Declared, factors: Mapping[str, float | None], words: str
) -> Relation:
    def lowp() -> Tensors:
        # PyTorch in 16 bits may overflow as well: its errors are those near 1.
        errors = {n: near.low[n].double() - near.exact[n].double() for n in factors}
        moved = {n: errors[n] * (factors[n] or 0.0) + far.exact[n].double() for n in factors}
        return {name: each.to(far.infos[name].dtype) for name, each in moved.items()}

    return judged_alone(
        "scaled_input",
        replace(far.problem(), lowp=lowp),
        because=f"{words}, with which results stay or scale: is a value squared, converted or "
        "limited to fewer bits?",
        control=near.problem,
    )


def _factor(near: Declared, far: Declared, name: str, exponent: int) -> float | None:
    """What a result is multiplied by if inputs are by 2**exponent: 1, that, or 1 / that.

    None if it is not, or not finite in its dtype.
    """
    dtype = far.infos[name].dtype
    one, other = near.exact[name].double(), far.exact[name].double()
    if not dtype.is_floating_point:
        return 1.0 if bool(((one - other).abs() <= 1).all()) else None  # an epsilon moves codes
    most = max(torch.finfo(dtype).max / 2, float(one.abs().max()) if one.numel() else 0.0)
    if not other.numel() or not bool((other.abs() <= most).all()):
        return None
    alike = torch.finfo(dtype).eps if dtype.itemsize == 1 else _ALIKE
    for factor in (1.0, 2.0**exponent, 2.0**-exponent):
        if bool(((other - one * factor).abs() <= one.abs().max() * factor * alike).all()):
            return factor
    return None


# Inputs that may be left out ----------------------------------------------------------------------


def _without_input(case: Declared) -> Iterator[Relation]:
    """A call without an input that both the reference and the entry may be called without.

    Each has None as its default for it, and the results of the reference are others without it. A
    kernel has a branch of its own then, which no other case of the spec may take.
    """
    spec, reference, inputs = case.setup.spec, case.reference, case.declaration.inputs
    if reference is None or reference.decl.call or reference.parameters is None:
        return
    if case.setup.seed // 11 % _OPTIONAL or spec.entry is None or has_ranks(spec):
        return
    optional = [
        name
        for name, parameter in reference.parameters.items()
        if name in inputs and inputs[name].derived is None and parameter.default is None
    ]
    optional = [n for n in optional if case.inputs[n].dtype.is_floating_point]
    for name in seeded_random(case.seed + 10).sample(optional, min(1, len(optional))):
        declaration = case.declaration.model_copy(
            update={"inputs": {other: each for other, each in inputs.items() if other != name}}
        )
        given = {other: each for other, each in case.inputs.items() if other != name}
        without = replace(case, declaration=declaration, inputs=given)
        try:
            problem, exact = without.problem(), without.exact
        except Exception:  # noqa: BLE001 - the reference cannot do without it
            return
        if all(
            each.shape == case.exact[result].shape and _is_close(each, case.exact[result])
            for result, each in exact.items()
        ):
            return
        mine = case.problem()
        yield judged_alone(
            "without_input",
            replace(problem, names=mine.names, inputs=mine.inputs, absent=(name,)),
            because=f"called without {name}, as the reference is",
        )


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), _CLOSE, _CLOSE, equal_nan=True)


# Other lengths ------------------------------------------------------------------------------------


def _of_other_values(case: Declared) -> Declared:
    """The case with other inputs and lengths, half of the time of a kind that its seed selects.

    Such as rows of zeros and equal numbers, which a case of few tiers has; else `normal` ones.
    Where they matter, with extremes: in half of the rows, or in all.
    """
    pick = seeded_random(case.seed + 13)
    if case.reference is not None and pick.random() < _SPECIAL:
        other = _other_lengths(case, pick.choice(_SPECIAL_VALUES), case.seed + 1)
        other = _with_extremes(other, _SOME)
        if other.is_finite:
            return other
    return _with_extremes(_other_lengths(case, "normal", case.seed + 1))


def _other_lengths(case: Declared, distribution: str, seed: int) -> Declared:
    """The case with other inputs, and other lengths if tensors keep their sizes.

    Detects an entry that caches what it read from a tensor of lengths.
    """
    setup = case.setup
    made = generate_inputs(setup, case.declaration, distribution, seed)
    plain = replace(case, inputs=made, distribution=distribution, seed=seed, given_cotangents=None)
    changed = {
        axis: value_of(
            setup.values[axis], list(map(balanced_lengths, sides_of(setup.values[axis])))
        )
        for axis in packed_axes(setup.values, case.declaration)
    }
    values = {**setup.values, **changed}
    if not changed or case.reference is None or not setup.satisfies_where(values):
        return plain
    try:
        setup = replace(setup, values=values)
        inputs = generate_inputs(setup, case.declaration, distribution, seed)
        other = replace(plain, setup=setup, inputs=inputs)
        shapes = {name: info.shape for name, info in other.infos.items()}
    except Exception:  # noqa: BLE001 - the reference cannot take these lengths
        return plain
    same = all(inputs[name].shape == made[name].shape for name in made)
    mine = {name: info.shape for name, info in case.infos.items()}
    return other if same and shapes == mine else plain


def _with_extremes(case: Declared, share: float = 1.0) -> Declared:
    """The case with the largest, or least, numbers of a share of the rows at ends of dimensions.

    Only if the reference takes such numbers: a kernel that leaves out the last element of a maximum
    is right where another one is larger.
    """
    sign = case.extremes
    if not sign:
        return case
    pick, source, inputs = seeded_random(case.seed + 11), generator(case.seed + 11), {}
    for name, decl in case.declaration.inputs.items():
        tensor = case.inputs[name]
        if not (decl.is_free and tensor.is_floating_point() and tensor.ndim and tensor.numel()):
            continue
        dim, wide = pick.randrange(tensor.ndim), tensor.double()
        most = wide.abs().amax(dim, keepdim=True) + 1
        last = torch.rand(most.shape, generator=source) < _LAST
        at = (last * (tensor.shape[dim] - 1)).to(tensor.device)
        made = wide.scatter(dim, at, sign * most)
        if share < 1:
            some = torch.rand(most.shape, generator=source) < share
            made = made.where(some.to(made.device), wide)
        inputs[name] = made.to(tensor.dtype)
    return replace(case, inputs={**case.inputs, **inputs})


@dataclass(frozen=True)
class DeclaredBatch(Batch):
    """A case whose tensors are split by the sequences of one packed axis."""

    case: Declared
    axis: str

    @property
    def seed(self) -> int:
        """See `Batch`."""
        return self.case.setup.seed

    @property
    def lengths(self) -> Sequence[tuple[int, int]]:
        """See `Batch`."""
        return list(zip(*sides_of(self.case.setup.values[self.axis], self.axis), strict=True))

    @property
    def poison(self) -> float:
        """See `Batch`: the least of the dtypes of inputs."""
        dtypes = {t.dtype for t in self.case.inputs.values() if t.is_floating_point()}
        scales = (poison_scale(str(dtype).removeprefix("torch.")) for dtype in dtypes)
        return min(scales, default=1.0)

    @property
    def summed(self) -> Collection[str]:
        """See `Batch`."""
        return self.case.differentiable

    def problem(self) -> Problem:
        """See `Batch`."""
        return self.case.problem()

    def _rows(self, name: str) -> torch.Tensor | None:
        """The slots (page * page_size + row) of the rows in a pool; None for other tensors."""
        case = self.case
        sizes = case.sizes(name) or ()
        paging = paging_of(case.declaration, sizes, case.setup.values, case.setup.seed)
        packing = packing_of(sizes[0], case.setup.values) if paging is not None else None
        if paging is None or packing is None or packing.axis != self.axis:
            return None
        return paging.rows.to(case.setup.device)

    def in_rows(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with packed rows; those of a pool are gathered from their pages."""
        rows = self._rows(name)
        return tensor if rows is None else tensor.flatten(0, 1)[rows]

    def along(self, name: str) -> Along:
        """See `Batch`."""
        sizes = self.case.sizes(name) or ()
        if self._rows(name) is not None:
            sizes = (sizes[0], *sizes[2:])
        found = {}
        for dim, size in enumerate(sizes):
            packing = packing_of(size, self.case.setup.values)
            if packing is not None and packing.axis == self.axis:
                if packing.kind == "pages" and self._rows(name) is None:
                    raise NotComposableError(name)
                found[dim] = packing.sizes
        return found

    def composed(self, origins: Sequence[int], lengths: Sequence[int], factor: float = 1.0) -> Self:
        """See `Batch`; `factor` does not multiply values with a declared range."""
        mine = self.case
        value = selected_lengths(mine.setup.values[self.axis], lengths)
        setup = replace(mine.setup, values={**mine.setup.values, self.axis: value})
        if not setup.satisfies_where(setup.values):
            raise NotComposableError(self.axis)
        seed = mine.seed + 1
        fresh = generate_inputs(setup, mine.declaration, "normal", seed)
        case = replace(mine, setup=setup, inputs=fresh, seed=seed, given_cotangents=None)
        other = replace(self, case=case)
        inputs = {}
        for name, tensor in fresh.items():
            decl = mine.declaration.inputs[name]
            scale = factor if decl.between is None else 1
            inputs[name] = (
                tensor
                if decl.derived is not None
                else self._mixed(other, name, tensor, mine.inputs[name], origins, scale)
            )
        case = replace(case, inputs=inputs)
        cotangents = {
            name: self._mixed(other, name, tensor, mine.cotangents[name], origins, factor)
            for name, tensor in (case.cotangents if mine.differentiable else {}).items()
        }
        return replace(self, case=replace(case, given_cotangents=cotangents))

    def _mixed(
        self,
        other: Self,
        name: str,
        fresh: torch.Tensor,
        old: torch.Tensor,
        origins: Sequence[int],
        factor: float,
    ) -> torch.Tensor:
        """A tensor of another batch, with sequences of this one for those that are not new."""
        if not self.along(name):
            if any(size > its for size, its in zip(fresh.shape, old.shape, strict=True)):
                raise NotComposableError(name)
            return old[tuple(slice(size) for size in fresh.shape)]
        made, along = _scaled(other.in_rows(name, fresh), factor), other.along(name)
        kept = [number for number, origin in enumerate(origins) if origin != NEW]
        theirs = self.part(name, old, [origins[number] for number in kept])
        shape = select(made, along, kept).shape
        if any(size > its for size, its in zip(shape, theirs.shape, strict=True)):
            raise NotComposableError(name)
        made = made.clone()
        place(made, along, kept, theirs[tuple(slice(size) for size in shape)])
        rows = other._rows(name)
        if rows is None:
            return made
        pool = fresh.clone()
        pool.flatten(0, 1)[rows] = made
        return pool

    def relation(
        self,
        name: str,
        kind: RelationKind,
        make: Callable[[], Sequence[Batch]],
        left: Callable[[Tensors], Tensors],
        right: Right,
        because: str,
        *,
        exact: bool = False,
        rounded: Callable[[Sequence[Tensors]], Tensors] | None = None,
    ) -> Relation | None:
        """The relation for the results whose reference satisfies it; None if there are none.

        Without a reference: for all if the spec lists the relation, else for none.
        """
        try:
            others = make()
            names = self._satisfied(name, left, lambda results: right(others, results), others)
        except Exception:  # noqa: BLE001 - does not fit, or the reference raised
            return None
        if not names:
            return None

        def some(mine: Tensors) -> Tensors:
            found = left(mine)
            return {each: found[each] for each in found if each in names}

        return super().relation(
            name, kind, lambda: others, some, right, because, exact=exact, rounded=rounded
        )

    def _satisfied(
        self,
        name: str,
        left: Callable[[Tensors], Tensors],
        right: Callable[[Sequence[Tensors]], Tensors],
        others: Sequence[Batch],
    ) -> frozenset[str]:
        if self.case.reference is None:
            named = {each.name for each in self.case.setup.spec.relations}
            return frozenset(self.case.infos) if name in named else frozenset()
        exact = [other.case.exact for other in others if isinstance(other, DeclaredBatch)]
        mine, theirs = left(self.case.exact), right(exact)
        return frozenset(
            each for each, tensor in mine.items() if each in theirs and _close(tensor, theirs[each])
        )


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    if factor == 1 or not tensor.is_floating_point():
        return tensor
    return (tensor.double() * factor).to(tensor.dtype)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    size = float(torch.nan_to_num(one, posinf=0.0, neginf=0.0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_CLOSE, atol=_CLOSE * size, equal_nan=True)
