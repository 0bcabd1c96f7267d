r"""Attention and its gradients in closed form, in float64 or at a kernel's precision.

The same code computes the reference (float64) and the low-precision run that scales the tolerance;
only `Precision` differs. With s = scale q k^T + mask,

    m = max(s), p = exp(s - m), l = sum(p),  out = p v / l,  lse = m + log(l)
    dv = P^T do,  dP = do v^T,  delta = sum(out * do),  dS = P * (dP - delta)
    dq = scale dS k,  dk = scale dS^T q

where P = p / l (Dao, FlashAttention-2, arXiv:2307.08691, section 3). A sink is one more key
with logit sink[head] and value 0: it joins m and l, and dsink = -sum_i P_sink[i] delta[i].
A row whose keys are all masked has p = 0 and l = 0: out is 0, lse is -inf, gradients are 0.

The work is split into chunks of sequences, kv heads and query rows, which keeps score matrices
small; short sequences of a packed batch are padded into one chunk, far cheaper than a loop. Tests
compare the results with SDPA, autograd through an independent formula, and gradcheck.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.attention.chunks import Piece, Rows, pieces
from tlmatrix.problem.tensors import on_cpu

if TYPE_CHECKING:
    from tlmatrix.problem.attention.axes import Setting

_CHUNK = {"cpu": 2**21, "cuda": 2**26}
"""Largest score matrix of a chunk, in elements: 16 MiB of float64 on a CPU, for its caches."""


@dataclass(frozen=True)
class Operands:
    """The tensors of a problem, in its layout; without `do` there are no gradients."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor | None = None
    sink: torch.Tensor | None = None

    def to(self, device: torch.device) -> Operands:
        """The tensors on a device, without a wait for it: the memory is not pinned."""
        tensors = {each.name: getattr(self, each.name) for each in fields(self)}
        moved = {
            name: tensor.to(device, non_blocking=True)
            for name, tensor in tensors.items()
            if tensor is not None
        }
        return replace(self, **moved)


@dataclass(frozen=True)
class Precision:
    """The dtypes of a computation: `compute` for sums, `store` for what a kernel stores.

    Values stay in `compute` if `store` is None.
    """

    compute: torch.dtype = torch.float64
    store: torch.dtype | None = None

    def round(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor rounded to `store`, in `compute`."""
        if self.store is None or self.store == self.compute:
            return tensor
        return tensor.to(self.store).to(self.compute)


@dataclass
class Solution:
    """Outputs and gradients by name, with the sizes of the terms summed into each element.

    `magnitudes` are the sums of the terms' absolute values, `spreads` the root of the sum of their
    squares; see `TensorInfo`.
    """

    values: dict[str, torch.Tensor]
    magnitudes: dict[str, torch.Tensor]
    spreads: dict[str, torch.Tensor]

    def on_cpu(self) -> Solution:
        """The same on the CPU."""
        parts = (self.values, self.magnitudes, self.spreads)
        copies = iter(on_cpu([tensor for part in parts for tensor in part.values()]))
        return Solution(*({name: next(copies) for name in part} for part in parts))


def attend(
    setting: Setting,
    operands: Operands,
    precision: Precision,
    *,
    sizes: bool = False,
    sequences: Collection[int] | None = None,
) -> Solution:
    """Compute out, lse and, with `do`, dq, dk, dv and dsink, in the shapes of the layout.

    With `sizes`, also magnitudes and spreads of all but lse: of P v for out; for gradients of their
    products, with |dS| from the magnitudes of dP and delta, before the two cancel.

    With `sequences`, only of these sequences (entries of the batch) and a few beside them; results
    of others are those of rows without keys, and sizes 0.
    """
    total = _Accumulator(setting, operands, precision, sizes=sizes)
    budget = _CHUNK.get(operands.q.device.type, _CHUNK["cpu"])
    for piece in pieces(setting, budget, operands.q.device):
        if sequences is None or any(each in sequences for each in piece.chunk.sequences):
            total.add(piece)
    return total.solution()


def magnitudes_of_lse(setting: Setting, operands: Operands, lse: torch.Tensor) -> torch.Tensor:
    """The magnitudes of lse, of its shape [batch, head, row] or packed [head, row], in float64.

    About |m| + |log l| before the two cancel, plus 1 for the exponentials in l; and how far the
    rounding of a score can move lse, by |s| <= |scale| |q| |k|.
    """
    budget = _CHUNK.get(operands.q.device.type, _CHUNK["cpu"])
    of_q, of_k = (each.double().norm(dim=-1, keepdim=True) for each in (operands.q, operands.k))
    reach = torch.zeros_like(lse)
    for piece in pieces(setting, budget, operands.q.device):
        chunk = piece.chunk
        kv = slice(chunk.head, chunk.head_end)
        heads = slice(chunk.head * setting.groups, chunk.head_end * setting.groups)
        longest = piece.key_rows.read(of_k, kv, of_k.dtype).amax((2, 3))
        rows = piece.query_rows.read(of_q, heads, of_q.dtype).squeeze(-1)
        rows = rows * longest.repeat_interleave(setting.groups, 1)[..., None]
        piece.query_rows.write_statistic(reach, heads, rows)
    size = torch.where(lse.isinf(), 0.0, lse.abs()) + 1
    return reach.mul_(abs(setting.softmax_scale)).add_(size)


class _Accumulator:
    """Adds the contributions of chunks up to whole tensors."""

    def __init__(
        self, setting: Setting, operands: Operands, precision: Precision, *, sizes: bool
    ) -> None:
        self.setting, self.operands, self.precision = setting, operands, precision
        compute, device = precision.compute, operands.q.device
        self.sink = None if operands.sink is None else operands.sink.to(compute)
        q, v = operands.q, operands.v
        out_shape = (*q.shape[:-1], v.shape[-1])
        statistic = (
            (setting.heads, q.shape[0])
            if setting.packed
            else (setting.batch, setting.heads, setting.lengths_q[0])
        )
        like: dict[str, tuple[int, ...]] = {"out": out_shape}
        if operands.do is not None:
            like |= {"dq": tuple(q.shape), "dk": tuple(operands.k.shape), "dv": tuple(v.shape)}
            if self.sink is not None:
                like["dsink"] = (setting.heads,)
        self.values = {
            name: torch.zeros(shape, dtype=compute, device=device) for name, shape in like.items()
        }
        if self.sink is not None and bool(self.sink.isnan().any()):
            # Also in rows without keys, which no chunk contains.
            heads = self.sink[:, None] if setting.layout != "bhsd" else self.sink[:, None, None]
            self.values["out"].masked_fill_(heads.isnan(), torch.nan)
        # The lse of rows without keys, which no chunk contains: the sink alone.
        lse = torch.full((setting.heads,), -torch.inf, dtype=compute, device=device)
        lse = lse if self.sink is None else self.sink
        self.values["lse"] = lse[:, None].expand(statistic).clone()
        self.magnitudes: dict[str, torch.Tensor] = {}
        self.squares: dict[str, torch.Tensor] = {}
        if sizes:
            self.magnitudes = {name: torch.zeros_like(self.values[name]) for name in like}
            self.squares = {name: torch.zeros_like(self.values[name]) for name in like}
            self.drift = torch.zeros(setting.heads, dtype=compute, device=device)

    def solution(self) -> Solution:
        store = self.precision.store
        if store is not None:
            sink = self.operands.sink
            kept = {"lse": None, "dsink": None if sink is None else sink.dtype}
            self.values = {
                name: tensor.to(kept.get(name, store)) for name, tensor in self.values.items()
            }
        if "dsink" in self.squares:
            self.squares["dsink"] += self.drift.square()
        spreads = {name: square.sqrt_() for name, square in self.squares.items()}
        return Solution(self.values, self.magnitudes, spreads)

    def add(self, piece: Piece) -> None:
        """Add one chunk, forward and backward.

        Tensors are [sequences * kv_heads, groups * rows, ...].
        """
        setting, operands, rounded = self.setting, self.operands, self.precision.round
        compute, device = self.precision.compute, operands.q.device
        chunk, query_rows, key_rows = piece.chunk, piece.query_rows, piece.key_rows
        kv = slice(chunk.head, chunk.head_end)
        heads = slice(chunk.head * setting.groups, chunk.head_end * setting.groups)
        kv_heads = chunk.head_end - chunk.head
        folded = (chunk.count * kv_heads, setting.groups * chunk.rows)
        five = (chunk.count, kv_heads, setting.groups, chunk.rows)
        four = (chunk.count, kv_heads * setting.groups, chunk.rows)
        keyed = (chunk.count, kv_heads, chunk.keys, -1)

        q = query_rows.read(operands.q, heads, compute).view(*folded, -1)
        k = key_rows.read(operands.k, kv, compute).flatten(0, 1)
        v = key_rows.read(operands.v, kv, compute).flatten(0, 1)

        scores = torch.bmm(q, k.transpose(1, 2)).mul_(setting.softmax_scale)
        scores.view(*five, -1).add_(piece.mask(setting, compute, device))
        low = torch.finfo(compute).min
        m = scores.amax(-1, keepdim=True).clamp_(min=low)
        if self.sink is not None:
            sink = self.sink[heads].view(1, kv_heads, setting.groups, 1)
            sink = sink.expand(five).reshape(*folded, 1)
            m = torch.maximum(m, sink)
        p = scores.sub_(m).exp_()
        total = p.sum(-1, keepdim=True)
        if self.sink is not None:
            sink_p = torch.exp(sink - m)
            total += sink_p
        inverse = torch.where(total == 0, 0.0, total.reciprocal())
        out = rounded(torch.bmm(rounded(p), v).mul_(inverse))
        lse = m + total.log()
        query_rows.write(self.values["out"], heads, out.view(*four, -1))
        query_rows.write_statistic(self.values["lse"], heads, lse.view(four))
        p *= inverse
        if self.magnitudes:
            bounds = _Bounds(self, query_rows, key_rows, heads, kv, (*four, -1))
            bounds.forward(p, v)
        if operands.do is None:
            return

        do = query_rows.read(operands.do, heads, compute).view(*folded, -1)
        key_rows.write(
            self.values["dv"], kv,
            torch.bmm(rounded(p).transpose(1, 2), do).view(keyed),
        )  # fmt: skip
        terms = out * do
        delta = terms.sum(-1, keepdim=True)
        dp = torch.bmm(do, v.transpose(1, 2))
        if self.sink is not None:
            of_sink = sink_p * inverse
            self.values["dsink"][heads] -= (of_sink * delta).view(five).sum((0, 3)).flatten()
        if self.magnitudes:
            drift = _drift(out, operands.q.dtype, do)
            bounds.backward((q, k, do), (p, dp, delta, terms, drift), abs(setting.softmax_scale))
            if self.sink is not None:
                # Of delta: each element of out is rounded, and so is each P before it; both are at
                # least the smallest normal number to that end. A strong sink makes all P small.
                smallest = torch.finfo(operands.q.dtype).smallest_normal
                of_out = out.abs().clamp_min_(smallest).mul_(do.abs())
                of_p = torch.maximum(p, inverse * smallest).mul_(p > 0).mul_(dp.abs())
                squares = of_out.square().sum(-1) + of_p.square().sum(-1)
                sizes = of_out.sum(-1) + of_p.sum(-1)
                for total, size in (
                    (self.magnitudes["dsink"], of_sink * sizes[..., None]),
                    (self.squares["dsink"], of_sink.square() * squares[..., None]),
                    (self.drift, of_sink * drift),
                ):
                    total[heads] += size.view(five).sum((0, 3)).flatten()
        ds = rounded(dp.sub_(delta).mul_(p))
        scale = setting.softmax_scale
        query_rows.write(self.values["dq"], heads, torch.bmm(ds, k).mul_(scale).view(*four, -1))
        key_rows.write(
            self.values["dk"], kv,
            torch.bmm(ds.transpose(1, 2), q).mul_(scale).view(keyed),
        )  # fmt: skip


@dataclass(frozen=True)
class _Bounds:
    """Adds the magnitudes and squared spreads of a chunk, in float32: they only bound errors."""

    total: _Accumulator
    query_rows: Rows
    key_rows: Rows
    heads: slice
    kv: slice
    query_shape: tuple[int, ...]

    def forward(self, p: torch.Tensor, v: torch.Tensor) -> None:
        p = p.float()
        self._queries("out", (p, p**2), v.float().abs(), 1.0)

    def backward(
        self, tensors: tuple[torch.Tensor, ...], weights: tuple[torch.Tensor, ...], scale: float
    ) -> None:
        """Add the sizes of dq, dk and dv.

        delta sums rounded elements of out, so its magnitude in |dS| is that of its terms, not of
        their sum. If equal elements all round the same way, delta also has a systematic error,
        `drift`, which does not average out over the terms. Every dS of a row shares that error: it
        reaches dq times the sum of P k, and does not average out over equal keys.

        Args:
            tensors: q, k, do.
            weights: p, dP, delta, the terms of delta (out * do), and its drift.
            scale: the absolute factor of the scores.
        """
        shared = torch.bmm(weights[0].float(), tensors[1].float())
        q, k, do = (tensor.float().abs() for tensor in tensors)
        p, dp, delta, terms, drift = (weight.float() for weight in weights)
        self._keys("dv", (p, p**2), do, 1.0)
        of_delta = terms.square().sum(-1, keepdim=True).add_(drift.square())
        square = torch.sub(dp, delta).square_().add_(of_delta)
        square.mul_(p).mul_(p)
        shared.square_().mul_(of_delta).mul_(scale**2)
        size = dp.abs().add_(terms.abs().sum(-1, keepdim=True)).mul_(p)
        self._queries("dq", (size, square), k, scale, shared)
        self._keys("dk", (size, square), q, scale)

    def _queries(
        self,
        name: str,
        weights: tuple[torch.Tensor, ...],
        row: torch.Tensor,
        scale: float,
        shared: torch.Tensor | None = None,
    ) -> None:
        for target, total in self._totals(weights, row, scale):
            if shared is not None and target is self.total.squares:
                total.add_(shared)
            self.query_rows.write(target[name], self.heads, total.view(self.query_shape))

    def _keys(
        self, name: str, weights: tuple[torch.Tensor, ...], row: torch.Tensor, scale: float
    ) -> None:
        count, kv_heads = self.query_shape[0], self.kv.stop - self.kv.start
        transposed = tuple(weight.transpose(1, 2) for weight in weights)
        for target, total in self._totals(transposed, row, scale):
            shape = (count, kv_heads, *total.shape[1:])
            self.key_rows.write(target[name], self.kv, total.view(shape))

    def _totals(
        self, weights: tuple[torch.Tensor, ...], row: torch.Tensor, scale: float
    ) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """The products weight @ row, and of their squares, each with the tensors to add it to."""
        size, square = weights
        yield self.total.magnitudes, torch.bmm(size, row).mul_(scale)
        yield self.total.squares, torch.bmm(square, row**2).mul_(scale**2)


def _drift(out: torch.Tensor, stored: torch.dtype, do: torch.Tensor) -> torch.Tensor:
    """The error of delta = sum(out * do) from storing out, in unit roundoffs; [..., rows, 1]."""
    error = Precision(out.dtype, stored).round(out) - out
    return error.mul_(do).sum(-1, keepdim=True).div_(torch.finfo(stored).eps / 2)
