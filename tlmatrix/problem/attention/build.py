"""Builds the `Problem` of an attention case: its names and dimensions, then its tensors.

Most relations only replace tensors, so their problems share the `Structure` of the original.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, repeat
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.dtypes import dtype_named, torch_dtype
from tlmatrix.problem.attention.axes import CACHE_TENSORS
from tlmatrix.problem.attention.inputs import cotangent_size, generate_operands
from tlmatrix.problem.attention.placement import KVCache, Padding, kv_cache_dims, packed
from tlmatrix.problem.attention.reference import (
    Operands,
    Precision,
    Solution,
    attend,
    magnitudes_of_lse,
)
from tlmatrix.problem.distributions import SPECIAL, choose_distribution, draw, generator
from tlmatrix.problem.family import tile_sizes
from tlmatrix.problem.model import Cost, Dim, Problem, TensorInfo
from tlmatrix.problem.storage import expandable, with_storage
from tlmatrix.problem.tensors import LazyMapping
from tlmatrix.spec.model.calling import names_of

if TYPE_CHECKING:
    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.family import CaseSetup
    from tlmatrix.problem.model import Tensors, UnusedRows
    from tlmatrix.spec.values import Value

_TENSORS = (
    "q", "k", "v", "do", "sink", "out", "lse", "delta", "dq", "dk", "dv", "dsink",
)  # fmt: skip
_CACHE_NAMES = ("q", "k_cache", "v_cache", "k_pages", "v_pages", "sink", "out", "lse")


@dataclass(frozen=True)
class Structure:
    """A case and the attention setting that its axis values describe."""

    setup: CaseSetup
    setting: Setting

    @cached_property
    def differentiable(self) -> bool:
        """Whether gradients are checked: by autograd of an entry, or as results of a factory."""
        spec = self.setup.spec
        if self.setting.has_cache:
            return False
        if spec.factory is not None:
            return any(name in spec.results for name in ("dq", "dk", "dv", "dsink"))
        return "gradients" in spec.checks

    @cached_property
    def starts(self) -> dict[str, torch.Tensor]:
        """`cu_seqlens_q` and `cu_seqlens_k`, [batch + 1] int32; empty unless the layout is thd."""
        setting = self.setting
        if setting.layout != "thd":
            return {}
        return {
            f"cu_seqlens_{side}": torch.tensor(starts, dtype=torch.int32, device=self.setup.device)
            for side, starts in (("q", setting.starts_q), ("k", setting.starts_k))
        }

    @cached_property
    def padding(self) -> Padding:
        """The positions of tokens in the layout `padded`."""
        pattern = str(self.setup.values.get("padding", "right"))
        return Padding(self.setting, pattern, self.setup.seed, self.setup.device)

    @cached_property
    def names(self) -> dict[str, Any]:
        """All names that entries may use, except the tensors with values (q, k, …)."""
        setup, setting = self.setup, self.setting
        names = {**setup.values, **setting.names(), "sink": None, "device": setup.entry_device}
        names["dtype"] = setup.dtype(setting.dtype)
        if setup.spec.entry and "scale" in setup.values and setting.scale is None:
            names["scale"] = None  # `scale: none` tests the default of the entry
        if setting.padded:
            masks = self.padding.masks
            names |= {f"seqlen_{side}": masks[f"mask_{side}"].shape[1] for side in "qk"}
            if setting.shared_mask:
                names["seqlen"] = names["seqlen_q"]
        return names | self.starts

    @cached_property
    def _tiles(self) -> dict[str, int]:
        return tile_sizes(self.setup.spec, self.names)

    @cached_property
    def _queries(self) -> tuple[Dim, Dim]:
        return self._side(keys=False)

    @cached_property
    def _keys(self) -> tuple[Dim, Dim]:
        return self._side(keys=True)

    def _side(self, *, keys: bool) -> tuple[Dim, Dim]:
        """The dimensions of rows and heads, of queries or keys."""
        setting, tile = self.setting, self._tiles.get("k" if keys else "q")
        count = setting.kv_heads if keys else setting.heads
        heads = Dim("kv_head" if keys else "head", count, region=range(count))
        lengths = setting.lengths_k if keys else setting.lengths_q
        if not setting.packed:
            return Dim("position", lengths[0], tile=tile), heads
        starts = setting.starts_k if keys else setting.starts_q
        region = tuple(chain.from_iterable(map(repeat, range(setting.batch), lengths)))
        return Dim("position", starts[-1], region, starts, "sequence", tile), heads

    @cached_property
    def dims(self) -> Mapping[str, tuple[Dim, ...]]:
        """The dimensions of every tensor of a forward or backward, by name; computed on access."""
        if self.setting.padded:
            return LazyMapping(_TENSORS, lambda name: self.padding.dims(name, self._dims_of(name)))
        if not self.setting.has_cache:
            return LazyMapping(_TENSORS, self._dims_of)
        names = [name for name in _CACHE_NAMES if not name.endswith(self._absent_suffix)]
        return LazyMapping(tuple(names), self._cache_dims_of)

    @property
    def _absent_suffix(self) -> str:
        return "cache" if self.setting.layout == "paged" else "pages"

    def _cache_dims_of(self, name: str) -> tuple[Dim, ...]:
        heads = (self._queries if name in ("q", "out", "lse", "sink") else self._keys)[1]
        if name == "sink":
            return (replace(heads, region=None),)
        return kv_cache_dims(self.setting, name, heads, self._tiles)

    def _dims_of(self, name: str) -> tuple[Dim, ...]:
        setting = self.setting
        rows, heads = self._keys if name in ("k", "v", "dk", "dv") else self._queries
        if name in ("sink", "dsink"):
            return (replace(heads, region=None),)
        last = setting.head_dim_v if name in ("out", "do", "v", "dv") else setting.head_dim
        dim = Dim("dim", last, tile=self._tiles.get("dim"))
        if name in ("lse", "delta"):
            dims: tuple[Dim, ...] = (heads, rows)
        else:
            dims = (heads, rows, dim) if setting.layout == "bhsd" else (rows, heads, dim)
        if setting.packed:
            return dims
        return (Dim("batch", setting.batch, region=range(setting.batch)), *dims)


# Tensors and problems -----------------------------------------------------------------------------


_ON_ACCELERATOR = 2**22
"""Multiplications of a forward pass from which an accelerator computes the reference of tensors on
the CPU: below, launches and copies take longer than a core does."""
_SHIFTED, _HALVES, _EXTREME = 0.05, 0.15, 0.12
"""Shares of the cases with these distributions; extreme values are of float16 alone."""
_STEEP = 16
"""How much larger v is than k where gradients are extreme: else do would be the largest."""
_POWERS = 12
"""Most powers of two by which rounded dS may exceed the gradients."""
_SEVERAL = 16
"""Keys of which weighted extreme values add up to more than float16 holds."""
_MANY = 96
"""With fewer keys, parts of sums that are kept in 16 bits are within the error bound."""


@dataclass(frozen=True)
class Attention:
    """An attention case with its tensors; relations replace some and build another problem."""

    structure: Structure
    operands: Operands
    distribution: str = "normal"
    placement: int = 0
    """Seeds the placement of keys in a KV cache; relations change it to move pages."""

    @cached_property
    def _sized_parts(self) -> dict[frozenset[int], Solution]:
        return {}

    @property
    def setup(self) -> CaseSetup:
        """The spec, axis values, seed and device."""
        return self.structure.setup

    @property
    def setting(self) -> Setting:
        """The axis values as plain numbers."""
        return self.structure.setting

    def with_tensors(self, **tensors: torch.Tensor) -> Attention:
        """The case with some tensors replaced."""
        return replace(self, operands=replace(self.operands, **tensors))

    def changed(
        self,
        values: Mapping[str, Value],
        operands: Operands | None = None,
        **setting: Any,  # noqa: ANN401 - fields of `Setting`
    ) -> Attention:
        """The case with other axis values, what follows for its setting, and tensors that fit."""
        setup = replace(self.setup, values={**self.setup.values, **values})
        structure = Structure(setup, replace(self.setting, **setting))
        return replace(self, structure=structure, operands=operands or self.operands)

    def with_extreme_gradients(self) -> Attention:
        """The case with gradients up to a quarter of the largest number of their dtype, or half.

        All queries have one direction, and cotangents one sign, so that the terms of a row of dk
        add up: before they are multiplied by a small softmax scale, sums are larger than the dtype
        holds. A kernel may round P and dS, but not these.
        """
        operands = self.operands
        assert operands.do is not None
        dtype, source = operands.do.dtype, generator(self.setup.seed + 1)
        q, k, v = (
            draw("normal", source, each.shape, torch.float32).to(each.device) / 2
            for each in (operands.q, operands.k, operands.v)
        )
        q, k, v = (each.to(dtype) for each in (q.abs(), k, v * _STEEP))
        do = operands.do.abs() / cotangent_size(self.distribution, dtype)
        largest = torch.finfo(dtype).max / 2
        case = replace(self, operands=replace(operands, q=q, k=k, v=v, do=do))
        stored = ("dq", "dk", "dv", *["dsink"] * (self.setting.sink_dtype == self.setting.dtype))
        names = [name for name in stored if name in case.exact.values]
        sizes = [case.exact.values[name] for name in names]
        most = max((float(each.abs().max()) for each in (do, *sizes) if each.numel()), default=0.0)
        power = math.floor(math.log2(largest / most)) if 0 < most < math.inf else 0
        for _ in range(_POWERS):
            scaled = replace(case, operands=replace(case.operands, do=do * 2.0**power))
            if all(bool(scaled.low.values[name].isfinite().all()) for name in names):
                break
            power -= 1
        # Half of it: dS may be larger in another kernel, which does not round P before.
        return replace(case, operands=replace(case.operands, do=do * 2.0 ** (power - 1)))

    @cached_property
    def kv_cache(self) -> KVCache:
        """The KV cache, in the layouts `cache` and `paged`."""
        setup = self.setup
        return KVCache(self.setting, setup.seed + self.placement, setup.device)

    @cached_property
    def exact(self) -> Solution:
        """The float64 reference, without the sizes of its terms, which few checks need."""
        return self._solved(Precision())

    @cached_property
    def sized(self) -> Solution:
        """The float64 reference with the sizes of the terms summed into each element."""
        return self._solved(Precision(), sizes=True)

    def _sized_of(self, sequences: frozenset[int]) -> Solution:
        """The same of some sequences, and maybe others; elsewhere sizes are 0."""
        if sequences not in self._sized_parts:
            part = self._solved(Precision(), sizes=True, sequences=sequences)
            self._sized_parts[sequences] = part
        return self._sized_parts[sequences]

    @cached_property
    def low(self) -> Solution:
        """Attention at a kernel's precision: sums in float32, P and dS rounded to the dtype."""
        store = torch_dtype(self.setting.dtype)
        wide = store in (torch.float32, torch.float64)
        return self._solved(Precision(store if wide else torch.float32, store))

    def _solved(
        self,
        precision: Precision,
        *,
        sizes: bool = False,
        sequences: frozenset[int] | None = None,
    ) -> Solution:
        """The reference in the shapes of the layout; with a KV cache, lse is [batch, heads]."""
        accelerated = self.structure.setup.accelerator is not None
        solve = partial(attend, self.setting, sizes=sizes, sequences=sequences)
        if accelerated and multiplications(self.setting) >= _ON_ACCELERATOR:
            solution = solve(self._accelerated, precision).on_cpu()
        else:
            solution = solve(self._wanted, precision)
        if self.setting.has_cache:
            solution.values["lse"] = solution.values["lse"].T.contiguous()
        return solution

    @cached_property
    def _magnitudes_of_lse(self) -> torch.Tensor:
        lse, has_cache = self.exact.values["lse"], self.setting.has_cache
        found = magnitudes_of_lse(self.setting, self.operands, lse.T if has_cache else lse)
        return found.T.contiguous() if has_cache else found

    def _magnitude(self, name: str) -> torch.Tensor:
        found = self._magnitudes_of_lse if name == "lse" else self.sized.magnitudes[name]
        return self._sizes(name, found)

    @property
    def _wanted(self) -> Operands:
        return self.operands if self.structure.differentiable else replace(self.operands, do=None)

    @cached_property
    def _accelerated(self) -> Operands:
        return self._wanted.to(self.structure.setup.entry_device)

    def problem(self) -> Problem:
        """The problem, without relations; references are computed on first use."""
        structure, operands = self.structure, self.operands
        if structure.setting.has_cache:
            inputs = self.kv_cache.inputs(operands)
        else:
            inputs = {name: getattr(operands, name) for name in ("q", "k", "v", "do")}
        if structure.setting.padded:
            inputs = structure.padding.operands(inputs) | structure.padding.masks
        if operands.sink is not None:
            inputs["sink"] = operands.sink
        inputs |= structure.starts
        inputs = self._in_storage(inputs)
        names = {**structure.names, **inputs, **self._saved(), "values": self.distribution}
        names |= self._shared_by_sides(inputs)
        gradients = {"dq": "q", "dk": "k", "dv": "v"} if structure.differentiable else {}
        if gradients and operands.sink is not None:
            gradients["dsink"] = "sink"
        by_autograd = bool(gradients) and structure.setup.spec.factory is None
        return Problem(
            values=structure.setup.values,
            names=names,
            inputs=inputs,
            outputs=LazyMapping(("out", "lse", *gradients), self._info),
            returns=("out", "lse"),
            distribution=self.distribution,
            dims=structure.dims,
            cotangents={"out": inputs["do"]} if by_autograd else {},
            gradient_of=gradients if by_autograd else {},
            reference=lambda: self._results(self.exact.values),
            lowp=lambda: self._results(self.low.values),
            cost=lambda: cost(structure.setting, backward=bool(gradients)),
            with_inputs=self._with_inputs,
            unused=self._unused,
        )

    def _unused(self) -> Mapping[str, UnusedRows]:
        if self.setting.has_cache:
            return self.kv_cache.unused()
        return self.structure.padding.unused() if self.setting.padded else {}

    def _shared_by_sides(self, inputs: Tensors) -> Tensors:
        """Tensors that q and k share, by names without a side (`cu_seqlens`, `mask`)."""
        names = []
        if self.setting.layout == "thd" and self.setting.lengths_q == self.setting.lengths_k:
            names.append("cu_seqlens")
        if self.setting.shared_mask:
            names.append("mask")
        return {name: inputs[f"{name}_q"] for name in names}

    def _in_storage(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The inputs laid out as the axis `storage` says; a KV cache stays contiguous."""
        storage = self.setup.values.get("storage")
        if storage is None:
            return inputs
        movable = {name: inputs[name] for name in inputs.keys() - CACHE_TENSORS}
        return inputs | with_storage(storage, movable, cotangents=("do",))

    def _results(self, tensors: Tensors) -> Tensors:
        """Results of packed sequences in the layout of the entry."""
        return self.structure.padding.results(tensors) if self.setting.padded else tensors

    def _sizes(self, name: str, sizes: torch.Tensor) -> torch.Tensor:
        """Sizes per element of a result; 0 in the padding."""
        return self.structure.padding.padded(name, sizes) if self.setting.padded else sizes

    def _with_inputs(self, changed: Tensors) -> Problem:
        tensors = self.kv_cache.packed(changed) if self.setting.has_cache else changed
        if self.setting.padded:
            tensors = packed(changed, self.structure.padding.masks)
        return self.with_tensors(**tensors).problem()

    def _saved(self) -> dict[str, torch.Tensor]:
        """Forward results that a backward factory takes, as a kernel would store them."""
        spec, operands = self.setup.spec, self.operands
        read = names_of(spec.call).difference(spec.results)
        saved = [name for name in ("out", "lse", "delta") if name in read]
        if not saved or operands.do is None:
            return {}
        low = self.low.values
        delta = (low["out"].float() * operands.do.float()).sum(-1)
        if self.setting.layout != "bhsd":
            delta = delta.movedim(-1, -2)
        found = {"out": low["out"], "lse": low["lse"], "delta": delta.contiguous()}
        return dict(self._results({name: found[name] for name in saved}))

    def _info_of_regions(self, info: TensorInfo, mask: np.ndarray) -> TensorInfo:
        """See `TensorInfo.of_regions`."""
        of_sequences = _sequences_of(info.dims)
        assert of_sequences is not None  # else there is no `of_regions`
        axis = info.dims.index(of_sequences)
        others = tuple(each for each in range(mask.ndim) if each != axis)
        sequences = frozenset(np.flatnonzero(mask.any(others)).tolist())
        size = self.exact.values[info.name].abs()
        if info.name == "lse" or not sequences:
            own = torch.where(size.isinf(), 0.0, size), torch.zeros_like(size)
        else:
            part = self._sized_of(sequences)
            own = torch.maximum(part.magnitudes[info.name], size), part.spreads[info.name]
        magnitude, spread = (self._sizes(info.name, each) for each in own)
        zero = magnitude.new_zeros(())
        return replace(
            info, magnitude=lambda: magnitude, spread=lambda: spread, exponent=lambda: zero,
            amplification=None, of_regions=None,
        )  # fmt: skip

    def _info(self, name: str) -> TensorInfo:
        dtype = self.setting.dtype
        single = name in ("lse", "dsink")
        stored = {"lse": "float32", "dsink": self.setting.sink_dtype}.get(name, dtype)
        info = TensorInfo(
            name,
            self.structure.dims[name],
            torch_dtype(stored),
            # dsink is float32, but sums delta, which has the rounding of dtype.
            dtype_named("float32" if name == "lse" else dtype).roundoff,
            magnitude=lambda: self._magnitude(name),
            spread=None if name == "lse" else lambda: self._sizes(name, self.sized.spreads[name]),
            exponent=lambda: self._exponent(name),
            amplification=lambda: self._amplification(name),
            independent=self._deltas_of_keys if name == "dk" else None,
            independent_errors=None if single else "rows",
        )
        if _sequences_of(info.dims) is None:
            return info
        return replace(info, of_regions=partial(self._info_of_regions, info))

    def _deltas_of_keys(self) -> torch.Tensor:
        """The number of deltas that the rows of dk share in each sequence and kv head."""
        setting = self.setting
        device = self.setup.device
        counts = torch.tensor(setting.lengths_q, dtype=torch.float64, device=device)
        counts *= setting.groups
        if len(set(setting.lengths_q)) <= 1:
            return counts[:1].sum()
        lengths = torch.tensor(setting.lengths_k, device=device)
        rows = counts.repeat_interleave(lengths)[:, None, None]
        return self._sizes("dk", rows.expand(-1, setting.kv_heads, setting.head_dim))

    def _amplification(self, name: str) -> float:
        """How far a change of every P of 1 may move an element: the sum of |d element / d P|.

        At most |v| for each key of out and |do| for each query of dv; times |dP - delta| <= 2 |do|
        |v| (and the scale) for dq, dk and dsink, where a change of dS counts as well.
        """
        setting, operands = self.setting, self.operands

        def largest(tensor: torch.Tensor | None, *, rows: bool = False) -> float:
            if tensor is None or not tensor.numel():
                return 0.0
            size = tensor.float().norm(dim=-1) if rows else tensor.float().abs()
            return float(size.amax().nan_to_num(posinf=0.0))

        keys = max(setting.lengths_k, default=0)
        queries = setting.groups * max(setting.lengths_q, default=0)
        if name in ("out", "dv"):
            of_out = name == "out"
            return keys * largest(operands.v) if of_out else queries * largest(operands.do)
        gradient = 2 * largest(operands.do, rows=True) * largest(operands.v, rows=True)
        if name == "dsink":
            return sum(setting.lengths_q) * gradient
        if name not in ("dq", "dk"):
            return 0.0
        count, row = (keys, operands.k) if name == "dq" else (queries, operands.q)
        return abs(setting.softmax_scale) * count * largest(row) * max(gradient, 1.0)

    def _exponent(self, name: str) -> torch.Tensor:
        """The size of the scores and lse of each row; for sums over rows, the largest of a head.

        0 for lse itself, whose magnitude already is that size.
        """
        setting, size = self.setting, self._magnitudes_of_lse
        if name == "lse":
            return size.new_zeros(())
        if name in ("out", "dq"):
            of_rows = (size if setting.lse_as_out else size.transpose(-1, -2))[..., None]
            return self._sizes(name, of_rows)
        per_head = size.transpose(0, -2).flatten(1)
        if not per_head.numel():
            return size.new_zeros(())
        largest = per_head.amax(1)
        if name == "dsink":
            return largest
        largest = largest.view(setting.kv_heads, setting.groups).amax(1)
        return largest[:, None, None] if setting.layout == "bhsd" else largest[:, None]


def _sequences_of(dims: Sequence[Dim]) -> Dim | None:
    """The dimension with a region for each sequence, if there is one."""
    own = (each for each in dims if "sequence" in (each.name, each.region_name))
    return next(own, next((each for each in dims if each.name == "batch"), None))


def cost(setting: Setting, *, backward: bool) -> Cost:
    """Work of the unmasked (query, key) pairs: two matrix products forward, five backward.

    A pair costs 2 head_dim for its score and 2 head_dim_v for its value; the backward recomputes
    the score, then dP, dv, dq and dk. Every tensor is read or written once per pass.
    """
    pairs = setting.visible_pairs * setting.heads
    dim, dim_v = setting.head_dim, setting.head_dim_v
    element = dtype_named(setting.dtype).bytes
    total_q, total_k = setting.starts_q[-1], setting.starts_k[-1]
    if setting.has_cache:
        total_k = setting.visible_pairs  # the keys in the window of the one query
    queries, outs = total_q * setting.heads * dim, total_q * setting.heads * dim_v
    keys, values = total_k * setting.kv_heads * dim, total_k * setting.kv_heads * dim_v
    lse = 4 * total_q * setting.heads
    gradients = Cost(
        2 * pairs * (3 * dim + 2 * dim_v),
        element * (2 * queries + 2 * keys + 2 * values + 2 * outs) + lse,
    )
    return Cost(
        2 * pairs * (dim + dim_v),
        element * (queries + keys + values + outs) + lse,
        gradients if backward else None,
    )


def multiplications(setting: Setting) -> int:
    """Multiplications of the two matrix products of a forward pass, masked scores included."""
    pairs: int = sum(map(mul, setting.lengths_q, setting.lengths_k))
    return pairs * setting.heads * (setting.head_dim + setting.head_dim_v)


def elements(setting: Setting) -> int:
    """Elements of q, k, v and out."""
    dims = setting.head_dim + setting.head_dim_v
    rows = setting.starts_q[-1] * setting.heads + setting.starts_k[-1] * setting.kv_heads
    return rows * dims


def attention_case(setup: CaseSetup, setting: Setting) -> Attention:
    """The case with tensors generated from its seed."""
    own = {"shifted": _SHIFTED}
    if setting.most_visible >= _MANY:
        own["halves"] = _HALVES
    if setting.dtype == "float16" and setting.most_visible >= _SEVERAL:
        own["extreme"] = _EXTREME
    distribution = choose_distribution(setup.values.get("values"), setup.seed, SPECIAL, own)
    zigzag = any(shard.order_of(setup.values) == "zigzag" for shard in setup.spec.shards.values())
    operands = generate_operands(setting, distribution, setup.seed, setup.device, zigzag=zigzag)
    if operands.do is not None:
        number = cotangent_size(distribution, operands.do.dtype)
        do = expandable(setup.values.get("storage"), operands.do, number)
        operands = replace(operands, do=do)
    case = Attention(Structure(setup, setting), operands, distribution)
    return case.with_extreme_gradients() if _has_extreme_gradients(case) else case


def _has_extreme_gradients(case: Attention) -> bool:
    """Whether gradients are near the largest number of the dtype: in half of `extreme` cases."""
    return (
        case.distribution == "extreme"
        and case.setting.dtype == "float16"
        and case.structure.differentiable
        and bool(case.setup.seed % 2)
    )
