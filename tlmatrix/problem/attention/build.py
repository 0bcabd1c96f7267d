"""From a setting and its tensors to the `Problem` that checks judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.attention.form import Form
from tlmatrix.problem.attention.inputs import draw_operands
from tlmatrix.problem.attention.padded import packed
from tlmatrix.problem.attention.reference import Operands, Precision, Solution, attend
from tlmatrix.problem.attention.stored import Store
from tlmatrix.problem.attention.values import STORED_TENSORS
from tlmatrix.problem.deferred import Deferred
from tlmatrix.problem.distributions import choose
from tlmatrix.problem.model import Cost, Problem, TensorInfo
from tlmatrix.problem.storage import flattened, laid_out
from tlmatrix.spec.dtypes import dtype_named, torch_dtype
from tlmatrix.spec.model.calling import names_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.frame import Frame
    from tlmatrix.problem.model import Tensors
    from tlmatrix.spec.values import Value

__all__ = ["Attention", "attention_case"]


@dataclass(frozen=True)
class Attention:
    """An attention case with its tensors; a relation changes some and makes the problem anew."""

    form: Form
    operands: Operands
    distribution: str = "normal"
    placement: int = 0
    """Which of the ways to place keys in a store is taken."""

    @property
    def frame(self) -> Frame:
        """The case around it."""
        return self.form.frame

    @property
    def setting(self) -> Setting:
        """The case in plain numbers."""
        return self.form.setting

    def changed(self, **tensors: torch.Tensor) -> Attention:
        """The same form with some tensors replaced."""
        return replace(self, operands=replace(self.operands, **tensors))

    def reformed(
        self, setting: Setting, values: Mapping[str, Value], operands: Operands
    ) -> Attention:
        """Another setting, that `values` make, with tensors that fit it."""
        form = Form(replace(self.frame, values=values), setting)
        return replace(self, form=form, operands=operands)

    @cached_property
    def store(self) -> Store:
        """Where keys and values stand, in a layout that stores them."""
        frame = self.frame
        return Store(self.setting, frame.seed + self.placement, frame.device)

    @cached_property
    def exact(self) -> Solution:
        """The reference, in float64, without the sizes of its terms: few judge by them."""
        return self._solved(Precision())

    @cached_property
    def sized(self) -> Solution:
        """The reference once more, with the sizes of the terms summed into each element."""
        return self._solved(Precision(), sizes=True)

    @cached_property
    def low(self) -> Solution:
        """The same at a kernel's precision: sums in float32, P and dS rounded to the dtype."""
        store = torch_dtype(self.setting.dtype)
        wide = store in (torch.float32, torch.float64)
        return self._solved(Precision(store if wide else torch.float32, store))

    def _solved(self, precision: Precision, *, sizes: bool = False) -> Solution:
        """The reference in the shapes of the layout; a stored one has lse [batch, heads]."""
        solution = attend(self.setting, self._wanted, precision, sizes=sizes)
        if self.setting.stored:
            for tensors in (solution.values, solution.magnitudes):
                if "lse" in tensors:
                    tensors["lse"] = tensors["lse"].T.contiguous()
        return solution

    @property
    def _wanted(self) -> Operands:
        return self.operands if self.form.differentiable else replace(self.operands, do=None)

    def problem(self) -> Problem:
        """The problem; references are computed when they are first asked for."""
        form, operands = self.form, self.operands
        if form.setting.stored:
            inputs = self.store.inputs(operands)
        else:
            inputs = {name: getattr(operands, name) for name in ("q", "k", "v", "do")}
        if form.setting.padded:
            inputs = form.padding.operands(inputs) | form.padding.masks
        if operands.sink is not None:
            inputs["sink"] = operands.sink
        inputs |= form.starts
        inputs = self._laid_out(inputs)
        names = {**form.names, **inputs, **self._saved(), "values": self.distribution}
        names |= self._of_both_sides(inputs)
        gradients = {"dq": "q", "dk": "k", "dv": "v"} if form.differentiable else {}
        if gradients and operands.sink is not None:
            gradients["dsink"] = "sink"
        by_autograd = bool(gradients) and form.frame.spec.factory is None
        return Problem(
            values=form.frame.values,
            names=names,
            inputs=inputs,
            outputs=Deferred(("out", "lse", *gradients), self._info),
            returns=("out", "lse"),
            dims=form.dims,
            cotangents={"out": inputs["do"]} if by_autograd else {},
            gradient_of=gradients if by_autograd else {},
            reference=lambda: self._results(self.exact.values),
            lowp=lambda: self._results(self.low.values),
            cost=lambda: cost(form.setting, backward=bool(gradients)),
            with_inputs=self._with_inputs,
        )

    def _of_both_sides(self, inputs: Tensors) -> Tensors:
        """Tensors that are the same for q and k, by the names without a side."""
        names = []
        if self.setting.layout == "thd" and self.setting.lengths_q == self.setting.lengths_k:
            names.append("cu_seqlens")
        if self.setting.shared_mask:
            names.append("mask")
        return {name: inputs[f"{name}_q"] for name in names}

    def _laid_out(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The inputs as the axis `storage` has them; what stores keys is contiguous everywhere."""
        storage = self.frame.values.get("storage")
        if storage is None:
            return inputs
        free = {name: inputs[name] for name in inputs.keys() - STORED_TENSORS}
        return inputs | laid_out(storage, free, cotangents=("do",))

    def _results(self, tensors: Tensors) -> Tensors:
        """Results of the packed sequences as the entry gives them."""
        return self.form.padding.results(tensors) if self.setting.padded else tensors

    def _sizes(self, name: str, sizes: torch.Tensor) -> torch.Tensor:
        """What is said of each element of a result: nothing where no token is."""
        return self.form.padding.padded(name, sizes) if self.setting.padded else sizes

    def _with_inputs(self, changed: Tensors) -> Problem:
        tensors = self.store.packed(changed) if self.setting.stored else changed
        if self.setting.padded:
            tensors = packed(changed, self.form.padding.masks)
        return self.changed(**tensors).problem()

    def _saved(self) -> dict[str, torch.Tensor]:
        """What a backward factory is called with: forward results as a kernel would store them."""
        spec, operands = self.frame.spec, self.operands
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

    def _info(self, name: str) -> TensorInfo:
        dtype = self.setting.dtype
        single = name in ("lse", "dsink")
        stored = {"lse": "float32", "dsink": self.setting.sink_dtype}.get(name, dtype)
        return TensorInfo(
            name,
            self.form.dims[name],
            torch_dtype(stored),
            # Where lse and delta carry the rounding of dtype, and where only float32's.
            dtype_named("float32" if name == "lse" else dtype).roundoff,
            magnitude=lambda: self._sizes(name, self.sized.magnitudes[name]),
            spread=None if single else lambda: self._sizes(name, self.sized.spreads[name]),
            exponent=lambda: self._exponent(name),
        )

    def _exponent(self, name: str) -> torch.Tensor:
        """Size of scores and lse: of the row, or where rows are summed the largest of the head.

        For lse itself there is nothing to add: its magnitude is that size already.
        """
        setting, size = self.setting, self.sized.magnitudes["lse"]
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


def cost(setting: Setting, *, backward: bool) -> Cost:
    """Work of the visible (query, key) pairs: two matrix products forward, five backward.

    A pair costs 2 head_dim for its score and 2 head_dim_v for its value; the backward makes the
    score again, then dP, dv, dq and dk. Every tensor is read or written once a pass.
    """
    pairs = setting.visible_pairs * setting.heads
    dim, dim_v = setting.head_dim, setting.head_dim_v
    element = dtype_named(setting.dtype).bytes
    total_q, total_k = setting.starts_q[-1], setting.starts_k[-1]
    if setting.stored:
        total_k = setting.visible_pairs  # what the one query sees: no other key need be read
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


def attention_case(frame: Frame, setting: Setting) -> Attention:
    """The case with tensors drawn from its seed."""
    distribution = choose(frame.values.get("values"), frame.seed)
    operands = draw_operands(setting, distribution, frame.seed, frame.device)
    if operands.do is not None:
        operands = replace(operands, do=flattened(frame.values.get("storage"), operands.do))
    return Attention(Form(frame, setting), operands, distribution)
