"""The problem of a matrix product: tensors, references, error bounds and relations.

If k is sharded over ranks, each rank may round its partial sum to the dtype of the result, as in a
16-bit reduce-scatter, unless the tolerance of c says that parts are float32. An element is then a
sum of one rounded term per rank; the terms may cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.dtypes import dtype_named, torch_dtype
from tlmatrix.problem.distributions import (
    SPECIAL,
    choose_distribution,
    draw,
    extreme_size,
    generator,
    permutation,
    poison_scale,
    seeded_random,
)
from tlmatrix.problem.family import tile_sizes
from tlmatrix.problem.model import Cost, Dim, Problem, Relation, TensorInfo, judged_alone
from tlmatrix.problem.relations import repeated, untouched
from tlmatrix.problem.relations.batch import inverse, select, singles, without
from tlmatrix.problem.sharding import rank_indices
from tlmatrix.problem.storage import with_storage
from tlmatrix.problem.tensors import FLOAT8_UNIT, SYSTEMATIC, truncation
from tlmatrix.spec.model.spec import has_ranks

if TYPE_CHECKING:
    from tlmatrix.problem.family import CaseSetup
    from tlmatrix.problem.gemm.axes import GemmSetting
    from tlmatrix.problem.model import RelationKind, Tensors
    from tlmatrix.spec.values import Value

_CANCELLING = 0.1
"""The share of the cases whose halves of k cancel."""
_TERMS = 16
"""The fewest terms of such sums."""


@dataclass(frozen=True)
class Gemm:
    """A gemm case with its tensors as stored.

    a: [m, k], or [k, m] with `transpose_a`; b: [k, n], or [n, k] with `transpose_b`; c: [m, n],
    None unless it is accumulated into; scale: [n] float32, None unless the case is scaled.
    """

    setup: CaseSetup
    setting: GemmSetting
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None
    scale: torch.Tensor | None
    distribution: str

    def problem(self) -> Problem:
        """The problem, without relations; references are computed on first use."""
        setup, setting = self.setup, self.setting
        inputs = {"a": self.a, "b": self.b}
        inputs |= {
            name: tensor
            for name, tensor in (("c", self.c), ("scale", self.scale))
            if tensor is not None
        }
        inputs = with_storage(setup.values.get("storage"), inputs)
        names = {**setup.values, **setting.names(), "device": setup.device, **inputs}
        names["values"] = self.distribution
        for name in ("dtype", "a_dtype", "b_dtype", "out_dtype"):
            names[name] = setup.dtype(names[name])
        tiles = tile_sizes(setup.spec, names)
        out = dtype_named(setting.out_dtype)
        info = TensorInfo(
            "c",
            (Dim("m", setting.m, tile=tiles.get("m")), Dim("n", setting.n, tile=tiles.get("n"))),
            torch_dtype(setting.out_dtype),
            out.roundoff,
            magnitude=lambda: self._sum(lambda x: x.abs()),
            # Only the result and the partial sums of ranks are rounded; nothing is exponentiated.
            spread=lambda: self._spread,
            exponent=lambda: self._exact.new_zeros(()),
            arithmetic=FLOAT8_UNIT if _both_float8(setting) else None,
            independent_errors="elements",
            carried=lambda: self._truncation,
            carried_spread=lambda: self._truncation * SYSTEMATIC,
        )
        m, n, k = setting.m, setting.n, setting.k
        moved = sum(tensor.numel() * tensor.element_size() for tensor in inputs.values())
        return Problem(
            values=setup.values,
            names=names,
            inputs=inputs,
            outputs={"c": info},
            returns=("c",),
            distribution=self.distribution,
            dims={name: self._dims(name) for name in inputs},
            reference=lambda: {"c": self._exact},
            lowp=lambda: {"c": self._low},
            cost=lambda: Cost(2 * m * n * k, moved + m * n * out.bytes),
            with_inputs=lambda changed: replace(
                self,
                a=changed.get("a", self.a),
                b=changed.get("b", self.b),
                c=changed.get("c", self.c),
                scale=changed.get("scale", self.scale),
            ).problem(),
        )

    def within_range(self) -> Gemm:
        """The case with a times a power of two: sums of the terms' sizes are finite."""
        if not (self.a.is_floating_point() and self.a.numel() and self.b.numel()):
            return self
        total = self._product(lambda x: x.abs(), torch.float64).amax()
        most = extreme_size(torch_dtype(self.setting.out_dtype)) / 4
        factor = 2.0 ** min(0.0, float((most / total).log2().floor()))
        return replace(self, a=(self.a.double() * factor).to(self.a.dtype))

    def _dims(self, name: str) -> tuple[Dim, ...]:
        """The dimensions of an input, as stored."""
        setting = self.setting
        m, n, k = (Dim(each, getattr(setting, each)) for each in "mnk")
        match name:
            case "a":
                return (k, m) if setting.transpose_a else (m, k)
            case "b":
                return (n, k) if setting.transpose_b else (k, n)
            case "scale":
                return (n,)
        return (m, n)

    @property
    def operand_dtypes(self) -> tuple[str, str]:
        """The dtypes of a and b."""
        return self.setting.a_dtype, self.setting.b_dtype

    @property
    def _rows(self) -> torch.Tensor:
        """op(a), [m, k]."""
        return self.a.T if self.setting.transpose_a else self.a

    @property
    def _columns(self) -> torch.Tensor:
        """op(b), [k, n]."""
        return self.b.T if self.setting.transpose_b else self.b

    def _sum(
        self, term: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float64
    ) -> torch.Tensor:
        """term(a) @ term(b) * term(scale) + term(c), in `dtype`."""
        total = self._product(term, dtype)
        return total if self.c is None else total + term(self.c.to(dtype))

    def _product(
        self,
        term: Callable[[torch.Tensor], torch.Tensor],
        dtype: torch.dtype,
        indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """term(a) @ term(b) * term(scale) in `dtype`, summed over all of k or `indices` of it.

        The scale multiplies the sums, which avoids another rounding of the factors.
        """
        rows, columns = self._rows, self._columns
        if indices is not None:
            indices = indices.to(rows.device)
            rows, columns = rows[:, indices], columns[indices]
        total = term(rows.to(dtype)) @ term(columns.to(dtype))
        return total if self.scale is None else total * term(self.scale.to(dtype))

    @cached_property
    def _shares(self) -> tuple[torch.Tensor, ...]:
        """The indices of k whose sum each rank may round; empty unless k is sharded."""
        spec = self.setup.spec
        if not has_ranks(spec) or spec.tolerance.for_tensor("c", "").parts == "float32":
            return ()
        problem = self.problem()
        shares = (rank_indices(spec, problem, name, "k") for name in ("a", "b"))
        return next(filter(None, shares), ())

    @cached_property
    def _spread(self) -> torch.Tensor:
        """The root of the sum of squares of the partial sums of ranks; 0 unless k is sharded."""
        parts = [self._product(lambda x: x, torch.float64, share) for share in self._shares]
        return sum((part**2 for part in parts), torch.zeros_like(self._exact)).sqrt()

    @cached_property
    def _truncation(self) -> torch.Tensor:
        """The error of sums in tensor cores, which take floating-point operands of 16 bits."""
        narrow = all(
            dtype_named(each).floating and dtype_named(each).bits <= 16
            for each in self.operand_dtypes
        )
        share = truncation(self.setting.k) if narrow else 0.0
        return self._exact_product.abs() * share

    @cached_property
    def _exact_product(self) -> torch.Tensor:
        """The product in float64, before `c` is added."""
        return self._product(lambda x: x, torch.float64)

    @cached_property
    def _exact(self) -> torch.Tensor:
        product = self._exact_product
        return product if self.c is None else product + self.c.to(torch.float64)

    @cached_property
    def _low(self) -> torch.Tensor:
        narrow = all(dtype_named(name).floating for name in self.operand_dtypes) and (
            "float64" not in self.operand_dtypes
        )
        wide = torch.float32 if narrow else torch.float64  # sums of integers are exact
        stored = torch_dtype(self.setting.out_dtype)
        if not self._shares:
            return self._sum(lambda x: x, wide).to(stored)
        parts = (self._product(lambda x: x, wide, share).to(stored) for share in self._shares)
        total = sum((part.to(wide) for part in parts), torch.zeros_like(self._exact, dtype=wide))
        return (total if self.c is None else total + self.c.to(wide)).to(stored)


def _both_float8(setting: GemmSetting) -> bool:
    return all(name.startswith("float8") for name in (setting.a_dtype, setting.b_dtype))


def random_integers(
    source: torch.Generator, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Integers of 8 bits, whatever the dtype, so that sums stay exact in float64."""
    low, high = (0, 256) if not dtype.is_signed else (-128, 128)
    return torch.randint(low, high, tuple(shape), generator=source).to(dtype)


def _equal_signs(
    source: torch.Generator, setting: GemmSetting, tensors: dict[str, torch.Tensor]
) -> None:
    """Make all products positive, so that sums exceed the integers exact in float32."""
    signs = torch.randint(0, 2, (setting.k,), generator=source) * 2 - 1
    for name, last in (("a", not setting.transpose_a), ("b", setting.transpose_b)):
        mine = tensors[name]
        along = signs.to(mine.device) if last else signs.to(mine.device)[:, None]
        tensors[name] = (mine.int().abs().clamp(max=127) * along).to(mine.dtype)


def gemm_case(setup: CaseSetup, setting: GemmSetting) -> Gemm:
    """The case with tensors generated from its seed."""
    own = {"cancelling": _CANCELLING} if setting.k >= _TERMS else {}
    distribution = choose_distribution(setup.values.get("values"), setup.seed, SPECIAL, own)
    return generate_gemm(setup, setting, distribution, setup.seed)


def generate_gemm(setup: CaseSetup, setting: GemmSetting, distribution: str, seed: int) -> Gemm:
    """The case with tensors generated from a distribution and a seed."""
    source = generator(seed)
    # The halves of k cancel, which are rows of a stored transposed.
    transposed = distribution == "cancelling" and setting.transpose_a
    along_k = "halves" if transposed else distribution
    shapes = {"a": setting.shape_a, "b": setting.shape_b}
    dtypes = {"a": torch_dtype(setting.a_dtype), "b": torch_dtype(setting.b_dtype)}
    if setting.accumulate:
        shapes["c"], dtypes["c"] = (setting.m, setting.n), torch_dtype(setting.out_dtype)
    tensors = {
        name: (
            draw(along_k if name == "a" else distribution, source, shape, dtypes[name], index=index)
            if dtypes[name].is_floating_point
            else random_integers(source, shape, dtypes[name])
        ).to(setup.device)
        for index, (name, shape) in enumerate(shapes.items())
    }
    if dtypes["a"] == dtypes["b"] == torch.int8:
        _equal_signs(source, setting, tensors)
    scale = None
    if setting.scaled:
        # Like the scale of weights quantized per column: products stay in range.
        scale = ((torch.rand(setting.n, generator=source) + 0.5) / 64).to(setup.device)
    case = Gemm(setup, setting, tensors["a"], tensors["b"], tensors.get("c"), scale, distribution)
    return case.within_range() if distribution == "extreme" else case


# Relations ----------------------------------------------------------------------------------------


def gemm_relations(case: Gemm, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind for a gemm case."""
    match kind:
        case "isolation":
            yield from _disturbed(case, kind, 1.0, "other values in")
        case "poison":
            yield from _disturbed(case, kind, None, "huge values in")
        case "relations":
            yield from _rows_permuted(case)
            yield from _addend_opposed(case)
            if case.scale is not None:
                yield _scale_doubled(case, case.scale)
            else:  # The transposed product of a scaled one would have scaled rows.
                yield from _transposed(case)
        case "repeat":
            other = generate_gemm(case.setup, case.setting, "normal", case.setup.seed + 1)
            yield repeated(
                other.problem(), case.problem(), "a second call must not remember the first"
            )


def _disturbed(case: Gemm, kind: RelationKind, size: float | None, what: str) -> Iterator[Relation]:
    """New values in one row of op(a), then in one column of op(b); the rest of c must stay.

    New values are N(0, 1) times `size`; if `size` is None, times the largest safe size of the
    dtype.
    """
    setting, pick = case.setting, seeded_random(case.setup.seed)
    source = generator(case.setup.seed + 1)
    for name, dim, count in (("row", 0, setting.m), ("column", 1, setting.n)):
        if count < 2:
            continue
        index = pick.randrange(count)
        of_a = dim == 0
        mine = case.a if of_a else case.b
        stored = dim ^ int(setting.transpose_a if of_a else setting.transpose_b)
        changed = mine.clone()
        line = changed.select(stored, index)
        line.copy_(_new_values(source, line, case.operand_dtypes[dim], size))
        other = replace(case, a=changed) if of_a else replace(case, b=changed)

        def rest(results: Tensors, dim: int = dim, index: int = index) -> Tensors:
            return {"c": without(results["c"], dim, index)}

        matrix = "a" if of_a else "b"
        because = f"{what} {name} {index} of {matrix} must change no other {name} of c"
        yield untouched(f"{kind}_{name}", kind, other.problem(), rest, because)


def _rows_permuted(case: Gemm) -> Iterator[Relation]:
    setting = case.setting
    if setting.m < 2:
        return
    order = permutation(seeded_random(case.setup.seed), setting.m)

    def rows(tensor: torch.Tensor, order: list[int], dim: int = 0) -> torch.Tensor:
        return select(tensor, singles(tensor, dim), order)

    a = rows(case.a, order, int(setting.transpose_a))
    other = replace(case, a=a, c=None if case.c is None else rows(case.c, order))
    yield Relation(
        "rows_permuted",
        "relations",
        (other.problem(),),
        right=lambda results: {"c": rows(results[0]["c"], inverse(order))},
        because="permuting the rows of a permutes the rows of c",
    )


def _addend_opposed(case: Gemm) -> Iterator[Relation]:
    """An addend of minus the product, rounded: the result is what its rounding left.

    A kernel that rounds the product before it adds, and not once after, gives 0.
    """
    if case.c is None or not case.c.is_floating_point() or case._shares:  # noqa: SLF001
        return
    c = -case._exact_product.to(case.c.dtype)  # noqa: SLF001
    if not c.numel() or not bool(c.isfinite().all()):
        return
    yield judged_alone(
        "addend_opposed",
        replace(case, c=c).problem(),
        because="c is minus the product, rounded to its dtype: the sum is what that left, unless "
        "the product is rounded, too, before c is added",
    )


def _transposed(case: Gemm) -> Iterator[Relation]:
    """(A B)^T = B^T A^T, if the spec allows the sizes, flags and dtypes that this needs."""
    setting, setup = case.setting, case.setup
    swapped = replace(
        setting,
        a_dtype=setting.b_dtype,
        b_dtype=setting.a_dtype,
        m=setting.n,
        n=setting.m,
        transpose_a=not setting.transpose_b,
        transpose_b=not setting.transpose_a,
    )
    flags = {"transpose_a": swapped.transpose_a, "transpose_b": swapped.transpose_b}
    needed: dict[str, Value] = {
        name: flag for name, flag in flags.items() if flag != getattr(setting, name)
    }
    if swapped.a_dtype != swapped.b_dtype:
        needed |= {"a_dtype": swapped.a_dtype, "b_dtype": swapped.b_dtype}
    sizes = {"m": swapped.m, "n": swapped.n}
    if not (setup.covers(needed) and setup.satisfies_where({**setup.values, **sizes, **flags})):
        return
    other = Gemm(
        replace(setup, values={**setup.values, **sizes, **needed}),
        swapped,
        case.b,
        case.a,
        None if case.c is None else case.c.T.contiguous(),
        None,
        case.distribution,
    )
    yield Relation(
        "transposed",
        "relations",
        (other.problem(),),
        right=lambda results: {"c": results[0]["c"].T},
        because="the transposed product of b and a is the transpose of c",
    )


def _scale_doubled(case: Gemm, scale: torch.Tensor) -> Relation:
    c = None if case.c is None else case.c + case.c
    return Relation(
        "scale_doubled",
        "relations",
        (replace(case, scale=scale + scale, c=c).problem(),),
        right=lambda results: {"c": results[0]["c"] / 2},
        because="doubling scale, and c if it is accumulated into, doubles the result",
    )


def _new_values(
    source: torch.Generator, line: torch.Tensor, dtype: str, size: float | None
) -> torch.Tensor:
    """Other values in the shape of `line`."""
    if not line.is_floating_point():
        return random_integers(source, line.shape, line.dtype)
    size = poison_scale(dtype) if size is None else size
    return draw("normal", source, line.shape, torch.float32) * size
