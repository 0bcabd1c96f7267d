"""Metamorphic relations of matrix products."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.distributions import draw, generator
from tlmatrix.problem.gemm.build import Gemm, generate_gemm, random_integers
from tlmatrix.problem.model import Relation
from tlmatrix.problem.poison import poison_scale
from tlmatrix.problem.relations.forms import repeated, untouched
from tlmatrix.problem.seeded import permutation, seeded_random

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.model import RelationKind, Tensors
    from tlmatrix.spec.values import Value


def gemm_relations(case: Gemm, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind for a gemm case."""
    match kind:
        case "isolation":
            yield from _disturbed(case, kind, 1.0, "other values in")
        case "poison":
            yield from _disturbed(case, kind, None, "huge values in")
        case "relations":
            yield from _rows_permuted(case)
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
        matrix = "a" if of_a else "b"
        yield untouched(
            f"{kind}_{name}",
            kind,
            other.problem(),
            partial(_without, dim=dim, index=index),
            f"{what} {name} {index} of {matrix} must change no other {name} of c",
        )


def _rows_permuted(case: Gemm) -> Iterator[Relation]:
    setting = case.setting
    if setting.m < 2:
        return
    order = torch.tensor(permutation(seeded_random(case.setup.seed), setting.m))
    order = order.to(case.setup.device)
    c = None if case.c is None else case.c[order]
    other = replace(case, a=case.a.index_select(int(setting.transpose_a), order), c=c)
    inverse = order.argsort()
    yield Relation(
        "rows_permuted",
        "relations",
        (other.problem(),),
        right=lambda results: {"c": results[0]["c"][inverse]},
        because="permuting the rows of a permutes the rows of c",
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


def _without(tensors: Tensors, dim: int, index: int) -> Tensors:
    """C without one row (dim 0) or column (dim 1)."""
    c = tensors["c"]
    kept = [each for each in range(c.shape[dim]) if each != index]
    return {"c": c.index_select(dim, torch.tensor(kept, device=c.device))}
