"""From a setting and its tensors to the `Problem` that checks judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.attention.inputs import draw_operands
from tlmatrix.problem.attention.reference import Operands, Precision, Solution, attend
from tlmatrix.problem.deferred import Deferred
from tlmatrix.problem.distributions import choose
from tlmatrix.problem.frame import tile_edges
from tlmatrix.problem.model import Cost, Dim, Problem, TensorInfo
from tlmatrix.spec.dtypes import dtype_named, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.frame import Frame
    from tlmatrix.problem.model import Relation, RelationKind

__all__ = ["Attention", "attention_case"]

_TENSORS = (
    "q", "k", "v", "do", "sink", "out", "lse", "delta", "dq", "dk", "dv", "dsink",
)  # fmt: skip


@dataclass(frozen=True)
class Attention:
    """An attention case with its tensors; a relation changes some and makes the problem anew."""

    frame: Frame
    setting: Setting
    operands: Operands
    distribution: str = "normal"

    def changed(self, **tensors: torch.Tensor) -> Attention:
        """The same setting with some tensors replaced."""
        return replace(self, operands=replace(self.operands, **tensors))

    @property
    def differentiable(self) -> bool:
        """Whether gradients are judged: autograd reaches an entry, a factory must return them."""
        spec = self.frame.spec
        if spec.factory is not None:
            return any(name in spec.returns for name in ("dq", "dk", "dv", "dsink"))
        return "gradients" in spec.checks

    @cached_property
    def exact(self) -> Solution:
        """The reference, in float64."""
        return attend(self.setting, self._wanted, Precision(), sizes=True)

    @cached_property
    def low(self) -> Solution:
        """The same at a kernel's precision: sums in float32, P and dS rounded to the dtype."""
        store = torch_dtype(self.setting.dtype)
        wide = store in (torch.float32, torch.float64)
        return attend(
            self.setting, self._wanted, Precision(store if wide else torch.float32, store)
        )

    @property
    def _wanted(self) -> Operands:
        return self.operands if self.differentiable else replace(self.operands, do=None)

    def problem(self) -> Problem:
        """The problem; references are computed when they are first asked for."""
        from tlmatrix.problem.attention.relations import relations

        def related(kind: RelationKind) -> Iterable[Relation]:
            return relations(self, kind)

        names, inputs = self._names()
        layouts = self._layouts(names)
        setting, operands = self.setting, self.operands
        assert operands.do is not None
        gradients = {"dq": "q", "dk": "k", "dv": "v"} if self.differentiable else {}
        if gradients and operands.sink is not None:
            gradients["dsink"] = "sink"
        by_autograd = bool(gradients) and self.frame.spec.factory is None
        return Problem(
            values=self.frame.values,
            names=names,
            inputs=inputs,
            outputs=self._infos(("out", "lse", *gradients), layouts),
            returns=("out", "lse"),
            dims=layouts,
            cotangents={"out": operands.do} if by_autograd else {},
            gradient_of=gradients if by_autograd else {},
            reference=lambda: self.exact.values,
            lowp=lambda: self.low.values,
            relations=related,
            cost=lambda: cost(setting, backward=bool(gradients)),
        )

    def _names(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        frame, setting, operands = self.frame, self.setting, self.operands
        assert operands.do is not None
        inputs = {"q": operands.q, "k": operands.k, "v": operands.v, "do": operands.do}
        if operands.sink is not None:
            inputs["sink"] = operands.sink
        if setting.packed:
            for side, starts in (("q", setting.starts_q), ("k", setting.starts_k)):
                inputs[f"cu_seqlens_{side}"] = torch.tensor(
                    starts, dtype=torch.int32, device=frame.device
                )
        names = {**frame.values, **setting.names(), "sink": None, "device": frame.device}
        names["dtype"] = frame.dtype(setting.dtype)
        names["values"] = self.distribution
        if frame.spec.entry and "scale" in frame.values and setting.scale is None:
            names["scale"] = None  # the axis says none: the entry's own default is under test
        names |= inputs
        return names | self._saved(), inputs

    def _saved(self) -> dict[str, torch.Tensor]:
        """What a backward factory is called with: forward results as a kernel would store them."""
        spec, operands = self.frame.spec, self.operands
        saved = [n for n in ("out", "lse", "delta") if n in spec.call and n not in spec.returns]
        if not saved or operands.do is None:
            return {}
        low = self.low.values
        delta = (low["out"].float() * operands.do.float()).sum(-1)
        if self.setting.layout != "bhsd":
            delta = delta.movedim(-1, -2)
        found = {"out": low["out"], "lse": low["lse"], "delta": delta.contiguous()}
        return {name: found[name] for name in saved}

    def _layouts(self, names: Mapping[str, Any]) -> Mapping[str, tuple[Dim, ...]]:
        """The dims of every tensor that a forward or a backward may have, by name."""
        setting = self.setting
        tiles = tile_edges(self.frame.spec, names)

        def sides(side: str) -> tuple[Dim, Dim]:
            keys = side == "k"
            count = setting.kv_heads if keys else setting.heads
            heads = Dim("kv_head" if keys else "head", count, region=range(count))
            return _rows(setting, keys=keys, tile=tiles.get(side)), heads

        both = Deferred(("q", "k"), sides)

        def layout(name: str) -> tuple[Dim, ...]:
            rows, heads = both["k" if name in ("k", "v", "dk", "dv") else "q"]
            if name in ("sink", "dsink"):
                return (replace(heads, region=None),)
            last = setting.head_dim_v if name in ("out", "do", "v", "dv") else setting.head_dim
            dim = Dim("dim", last, tile=tiles.get("dim"))
            if name in ("lse", "delta"):
                dims: tuple[Dim, ...] = (heads, rows)
            else:
                dims = (heads, rows, dim) if setting.layout == "bhsd" else (rows, heads, dim)
            if setting.packed:
                return dims
            return (Dim("batch", setting.batch, region=range(setting.batch)), *dims)

        return Deferred(_TENSORS, layout)

    def _infos(
        self, results: Iterable[str], layouts: Mapping[str, tuple[Dim, ...]]
    ) -> Mapping[str, TensorInfo]:
        return Deferred(results, lambda name: self._info(name, layouts[name]))

    def _info(self, name: str, dims: tuple[Dim, ...]) -> TensorInfo:
        setting = self.setting
        single = name in ("lse", "dsink")
        # Where lse and delta carry the rounding of dtype, and where only float32's.
        stored = dtype_named("float32" if name == "lse" else setting.dtype)
        return TensorInfo(
            name,
            dims,
            torch.float32 if single else torch_dtype(setting.dtype),
            stored.roundoff,
            magnitude=lambda: self.exact.magnitudes[name],
            spread=None if single else lambda: self.exact.spreads[name],
            exponent=lambda: self._exponent(name),
        )

    def _exponent(self, name: str) -> torch.Tensor:
        """Size of scores and lse: of the row, or where rows are summed the largest of the head.

        For lse itself there is nothing to add: its magnitude is that size already.
        """
        setting, size = self.setting, self.exact.magnitudes["lse"]
        if name == "lse":
            return size.new_zeros(())
        if name in ("out", "dq"):
            return (size if setting.layout == "bhsd" else size.transpose(-1, -2))[..., None]
        per_head = size.transpose(0, -2).flatten(1)
        if not per_head.numel():
            return size.new_zeros(())
        largest = per_head.amax(1)
        if name == "dsink":
            return largest
        largest = largest.view(setting.kv_heads, setting.groups).amax(1)
        return largest[:, None, None] if setting.layout == "bhsd" else largest[:, None]


def _rows(setting: Setting, *, keys: bool, tile: int | None) -> Dim:
    lengths = setting.lengths_k if keys else setting.lengths_q
    if not setting.packed:
        return Dim("position", lengths[0], tile=tile)
    starts = setting.starts_k if keys else setting.starts_q
    region = tuple(chain.from_iterable(map(repeat, range(setting.batch), lengths)))
    return Dim("position", starts[-1], region, starts, "sequence", tile)


def cost(setting: Setting, *, backward: bool) -> Cost:
    """Work of the visible (query, key) pairs: two matrix products forward, five backward.

    A pair costs 2 head_dim for its score and 2 head_dim_v for its value; the backward makes the
    score again, then dP, dv, dq and dk. Every tensor is read or written once a pass.
    """
    pairs = setting.visible_pairs * setting.heads
    dim, dim_v = setting.head_dim, setting.head_dim_v
    element = dtype_named(setting.dtype).bytes
    total_q, total_k = setting.starts_q[-1], setting.starts_k[-1]
    queries, outs = total_q * setting.heads * dim, total_q * setting.heads * dim_v
    keys, values = total_k * setting.kv_heads * dim, total_k * setting.kv_heads * dim_v
    lse = 4 * total_q * setting.heads
    flops = 2 * pairs * (dim + dim_v)
    moved = element * (queries + keys + values + outs) + lse
    if backward:
        flops += 2 * pairs * (3 * dim + 2 * dim_v)
        moved += element * (2 * queries + 2 * keys + 2 * values + 2 * outs) + lse
    return Cost(flops, moved)


def attention_case(frame: Frame, setting: Setting) -> Attention:
    """The case with tensors drawn from its seed."""
    distribution = choose(frame.values.get("values"), frame.seed)
    operands = draw_operands(setting, distribution, frame.seed, frame.device)
    return Attention(frame, setting, operands, distribution)
