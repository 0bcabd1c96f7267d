"""Matrix products with their references, bounds and relations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.distributions import choose, draw, generator
from tlmatrix.problem.frame import tile_edges
from tlmatrix.problem.model import Cost, Dim, Problem, Relation, TensorInfo
from tlmatrix.problem.poison import huge
from tlmatrix.problem.relate import chooser, permutation, repeated, untouched
from tlmatrix.spec.dtypes import dtype_named, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tlmatrix.problem.frame import Frame
    from tlmatrix.problem.gemm.axes import GemmSetting
    from tlmatrix.problem.model import RelationKind, Tensors

__all__ = ["Gemm", "gemm_case"]


@dataclass(frozen=True)
class Gemm:
    """A gemm case with its tensors as stored; `c` is None unless it is accumulated into."""

    frame: Frame
    setting: GemmSetting
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None
    distribution: str

    def problem(self) -> Problem:
        """The problem; references are computed when they are first asked for."""
        frame, setting = self.frame, self.setting
        inputs = {"a": self.a, "b": self.b} | ({} if self.c is None else {"c": self.c})
        names = {**frame.values, **setting.names(), "device": frame.device, **inputs}
        names["values"] = self.distribution
        for name in ("dtype", "out_dtype"):
            names[name] = frame.dtype(names[name])
        tiles = tile_edges(frame.spec, names)
        out = dtype_named(setting.out_dtype)
        info = TensorInfo(
            "c",
            (Dim("m", setting.m, tile=tiles.get("m")), Dim("n", setting.n, tile=tiles.get("n"))),
            torch_dtype(setting.out_dtype),
            out.roundoff,
            magnitude=lambda: self._sum(lambda x: x.abs()),
            # Only the result is rounded, never a term, and nothing is exponentiated.
            spread=lambda: torch.zeros_like(self._exact),
            exponent=lambda: self._exact.new_zeros(()),
        )
        element = dtype_named(setting.dtype).bytes
        m, n, k = setting.m, setting.n, setting.k
        written = m * n * out.bytes * (2 if setting.accumulate else 1)
        return Problem(
            values=frame.values,
            names=names,
            inputs=inputs,
            outputs={"c": info},
            returns=("c",),
            reference=lambda: {"c": self._exact},
            lowp=lambda: {"c": self._low},
            relations=self._relations,
            cost=lambda: Cost(2 * m * n * k, element * (m * k + k * n) + written),
            with_inputs=lambda changed: replace(
                self,
                a=changed.get("a", self.a),
                b=changed.get("b", self.b),
                c=changed.get("c", self.c),
            ).problem(),
        )

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
        """Sum over k of term(a) term(b), and term(c), in `dtype`."""
        total = term(self._rows.to(dtype)) @ term(self._columns.to(dtype))
        return total if self.c is None else total + term(self.c.to(dtype))

    @cached_property
    def _exact(self) -> torch.Tensor:
        return self._sum(lambda x: x)

    @cached_property
    def _low(self) -> torch.Tensor:
        wide = torch.float64 if self.setting.dtype == "float64" else torch.float32
        return self._sum(lambda x: x, wide).to(torch_dtype(self.setting.out_dtype))

    def _relations(self, kind: RelationKind) -> Iterator[Relation]:
        match kind:
            case "isolation":
                yield from self._disturbed(kind, 1.0, "other values in")
            case "poison":
                yield from self._disturbed(kind, huge(self.setting.dtype), "huge values in")
            case "property":
                yield from self._properties()
            case "repeat":
                other = _drawn(self.frame, self.setting, "normal", self.frame.seed + 1)
                yield repeated(
                    other.problem(), self.problem(), "a second call must not remember the first"
                )

    def _disturbed(self, kind: RelationKind, size: float, what: str) -> Iterator[Relation]:
        """One row of op(a), and then one column of op(b), made anew; the rest of c must stay."""
        setting, pick = self.setting, chooser(self.frame.seed)
        source = generator(self.frame.seed + 1)
        for name, dim, count in (("row", 0, setting.m), ("column", 1, setting.n)):
            if count < 2:
                continue
            place = pick.randrange(count)
            of_a = dim == 0
            mine = self.a if of_a else self.b
            stored = dim ^ int(setting.transpose_a if of_a else setting.transpose_b)
            changed = mine.clone()
            line = changed.select(stored, place)
            line.copy_(draw("normal", source, line.shape, line.dtype) * size)
            case = replace(self, a=changed) if of_a else replace(self, b=changed)
            matrix = "a" if of_a else "b"
            yield untouched(
                f"{kind}_{name}",
                kind,
                case.problem(),
                partial(_without, dim=dim, place=place),
                f"{what} {name} {place} of {matrix} must change no other {name} of c",
            )

    def _properties(self) -> Iterator[Relation]:
        setting = self.setting
        if setting.m > 1:
            order = torch.tensor(permutation(chooser(self.frame.seed), setting.m))
            order = order.to(self.frame.device)
            stored = int(setting.transpose_a)
            c = None if self.c is None else self.c[order]
            case = replace(self, a=self.a.index_select(stored, order), c=c)
            inverse = order.argsort()
            yield Relation(
                "rows_permuted",
                "property",
                (case.problem(),),
                left=lambda mine: mine,
                right=lambda results: {"c": results[0]["c"][inverse]},
                because="a permutation of the rows of a permutes the rows of c alike",
            )
        turned = replace(
            setting,
            m=setting.n,
            n=setting.m,
            transpose_a=not setting.transpose_b,
            transpose_b=not setting.transpose_a,
        )
        flags = {"transpose_a": turned.transpose_a, "transpose_b": turned.transpose_b}
        needed = {name: flag for name, flag in flags.items() if flag != getattr(setting, name)}
        swapped = {"m": turned.m, "n": turned.n}
        if self.frame.allows(needed) and self.frame.obeys(
            {**self.frame.values, **swapped, **flags}
        ):
            case = Gemm(
                replace(self.frame, values={**self.frame.values, **swapped, **needed}),
                turned,
                self.b,
                self.a,
                None if self.c is None else self.c.T.contiguous(),
                self.distribution,
            )
            yield Relation(
                "transposed",
                "property",
                (case.problem(),),
                left=lambda mine: mine,
                right=lambda results: {"c": results[0]["c"].T},
                because="the transposed product of b and a is the transpose of c",
            )


def _without(tensors: Tensors, dim: int, place: int) -> Tensors:
    c = tensors["c"]
    kept = [index for index in range(c.shape[dim]) if index != place]
    return {"c": c.index_select(dim, torch.tensor(kept, device=c.device))}


def gemm_case(frame: Frame, setting: GemmSetting) -> Gemm:
    """The case with tensors drawn from its seed."""
    return _drawn(frame, setting, choose(frame.values.get("values"), frame.seed), frame.seed)


def _drawn(frame: Frame, setting: GemmSetting, distribution: str, seed: int) -> Gemm:
    source, dtype = generator(seed), torch_dtype(setting.dtype)
    a = draw(distribution, source, setting.shape_a, dtype, index=0).to(frame.device)
    b = draw(distribution, source, setting.shape_b, dtype, index=1).to(frame.device)
    c = None
    if setting.accumulate:
        shape, out = (setting.m, setting.n), torch_dtype(setting.out_dtype)
        c = draw(distribution, source, shape, out, index=2).to(frame.device)
    return Gemm(frame, setting, a, b, c, distribution)
