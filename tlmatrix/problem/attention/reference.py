r"""Attention and its gradients in closed form, in float64 or at a kernel's precision.

One sweep serves as the reference (float64) and as the low-precision companion that scales the
tolerance: same mathematics, another `Precision`. With s = scale q k^T + mask,

    m = max(s), p = exp(s - m), l = sum(p),  out = p v / l,  lse = m + log(l)
    dv = P^T do,  dP = do v^T,  delta = sum(out * do),  dS = P * (dP - delta)
    dq = scale dS k,  dk = scale dS^T q

where P = p / l (Dao, FlashAttention-2, arXiv:2307.08691, section 3). A sink is one more key
with logit sink[head] and value 0: it joins m and l, and dsink = -sum_i P_sink[i] delta[i].
A row that sees nothing has p = 0 and l = 0: out 0, lse -inf, and no gradient.

Work goes by chunks of sequences, kv heads and query rows, so that score matrices stay small;
short sequences of a packed batch are padded into one chunk, which is far cheaper than a loop.
The tests hold this against SDPA, autograd through an independent formula, and gradcheck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.attention.axes import Setting

__all__ = ["Operands", "Precision", "Solution", "attend"]

_CHUNK = {"cpu": 2**21, "cuda": 2**26}
"""Elements of a score matrix a chunk: 16 MiB of float64 on a CPU, where caches are small."""


@dataclass(frozen=True)
class Operands:
    """The tensors of a problem, in its layout; `do` None asks for no gradient."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor | None = None
    sink: torch.Tensor | None = None


@dataclass(frozen=True)
class Precision:
    """`compute` is the dtype of sums; what a kernel would store is rounded to `store`."""

    compute: torch.dtype = torch.float64
    store: torch.dtype | None = None

    def round(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it reads after being stored, in the dtype of sums."""
        if self.store is None or self.store == self.compute:
            return tensor
        return tensor.to(self.store).to(self.compute)


@dataclass
class Solution:
    """Outputs and gradients by name, with the size of the terms summed into each element.

    `magnitudes` sums the terms' absolute values, `spreads` is the root of the sum of their
    squares; see `TensorInfo`.
    """

    values: dict[str, torch.Tensor]
    magnitudes: dict[str, torch.Tensor]
    spreads: dict[str, torch.Tensor]


def attend(
    setting: Setting, operands: Operands, precision: Precision, *, sizes: bool = False
) -> Solution:
    """Out, lse and, with `do`, dq, dk, dv (and dsink), in the shapes of the setting's layout.

    `sizes` asks for magnitudes and spreads too: of P v for out, and of the same products for the
    gradients with |dS| = P (|dP| + |delta|), as it is before its two parts cancel.
    """
    sweep = _Sweep(setting, operands, precision, sizes=sizes)
    budget = _CHUNK.get(operands.q.device.type, _CHUNK["cpu"])
    for chunk in _chunks(setting, budget):
        sweep.add(chunk)
    return sweep.solution()


@dataclass(frozen=True)
class _Chunk:
    """Sequences [first, last), kv heads [head, head_end), query rows [row, row_end)."""

    first: int
    last: int
    head: int
    head_end: int
    row: int
    row_end: int
    keys: int

    @property
    def count(self) -> int:
        return self.last - self.first

    @property
    def rows(self) -> int:
        return self.row_end - self.row


def _chunks(setting: Setting, budget: int) -> Iterator[_Chunk]:
    """Consecutive sequences padded together while they fit; one too large is cut further."""
    lengths = list(zip(setting.lengths_q, setting.lengths_k, strict=True))
    first = 0
    while first < len(lengths):
        (rows, keys), last, real = lengths[first], first + 1, 0
        real = rows * keys
        while last < len(lengths):
            more_rows, more_keys = max(rows, lengths[last][0]), max(keys, lengths[last][1])
            padded = (last + 1 - first) * more_rows * more_keys
            more_real = real + lengths[last][0] * lengths[last][1]
            # Measured: more padding costs more than a chunk of its own.
            if padded * setting.heads > budget or padded > 1.25 * more_real + 2**11:
                break
            rows, keys, real, last = more_rows, more_keys, more_real, last + 1
        if rows and keys:
            count = last - first
            heads = max(1, budget // (count * rows * keys * setting.groups))
            step = rows if heads > 1 else max(1, budget // (count * keys * setting.groups))
            for head in range(0, setting.kv_heads, heads):
                for row in range(0, rows, step):
                    yield _Chunk(
                        first, last, head, min(head + heads, setting.kv_heads),
                        row, min(row + step, rows), keys,
                    )  # fmt: skip
        first = last


class _Rows:
    """How the rows of some sequences move between a tensor's layout and [count, head, row, dim].

    `start` and `stop` are the rows of each sequence that are meant, `width` the padded number.
    Padding rows repeat a real row, so that they are finite; the mask hides them.
    """

    def __init__(
        self, setting: Setting, starts: tuple[int, ...], lengths: tuple[int, ...],
        chunk: _Chunk, span: tuple[int, int], device: torch.device,
    ) -> None:  # fmt: skip
        self.layout = setting.layout
        self.first, self.last = chunk.first, chunk.last
        self.low, self.high = span
        self.width = self.high - self.low
        self.gather: torch.Tensor | None = None
        if setting.packed:
            self.begin = starts[chunk.first] + self.low
            mine = lengths[chunk.first : chunk.last]
            counts = [min(max(length - self.low, 0), self.width) for length in mine]
            if chunk.count == 1:
                self.end = self.begin + counts[0]
            else:
                # Only whole sequences share a chunk, so low is 0 here.
                self.end = starts[chunk.last]
                if any(count != self.width for count in counts):
                    self._index(starts, counts, device)

    def _index(self, starts: tuple[int, ...], counts: list[int], device: torch.device) -> None:
        column = torch.arange(self.width)
        first = torch.tensor(starts[self.first : self.last])[:, None]
        self.gather = (first + column).clamp_(max=starts[-1] - 1).to(device)
        real = (column < torch.tensor(counts)[:, None]).to(device)
        self.real = real.flatten().nonzero().flatten()
        self.padding = ~real

    def read(self, tensor: torch.Tensor, heads: slice, dtype: torch.dtype) -> torch.Tensor:
        """[count, head, row, dim] in `dtype`, contiguous."""
        rows = slice(self.low, self.high)
        if self.layout == "bshd":
            block = tensor[self.first : self.last, rows, heads].transpose(1, 2)
        elif self.layout == "bhsd":
            block = tensor[self.first : self.last, heads, rows]
        elif self.gather is not None:
            block = tensor[:, heads][self.gather].transpose(1, 2)
        else:
            flat = tensor[self.begin : self.end, heads]
            block = flat.reshape(-1, self.width, *flat.shape[1:]).transpose(1, 2)
        return block.to(dtype).contiguous()

    def write(self, target: torch.Tensor, heads: slice, block: torch.Tensor) -> None:
        """Add [count, head, row, dim] to the rows of `target`."""
        rows = slice(self.low, self.high)
        if self.layout == "bshd":
            target[self.first : self.last, rows, heads] += block.transpose(1, 2)
        elif self.layout == "bhsd":
            target[self.first : self.last, heads, rows] += block
        else:
            flat = block.transpose(1, 2).flatten(0, 1)
            if self.gather is not None:
                flat = flat[self.real]
            target[self.begin : self.end, heads] += flat

    def write_statistic(self, target: torch.Tensor, heads: slice, block: torch.Tensor) -> None:
        """Store [count, head, row] to `target`, [batch, head, row] or packed [head, row]."""
        if self.layout == "thd":
            flat = block.transpose(0, 1).flatten(1)
            if self.gather is not None:
                flat = flat[:, self.real]
            target[heads, self.begin : self.end] = flat
        else:
            target[self.first : self.last, heads, self.low : self.high] = block


class _Sweep:
    """Sums the chunks' contributions into whole tensors."""

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
        # What a row has that no chunk reaches, for there is no key: only its sink.
        lse = torch.full((setting.heads,), -torch.inf, dtype=compute, device=device)
        lse = lse if self.sink is None else self.sink
        self.values["lse"] = lse[:, None].expand(statistic).clone()
        self.magnitudes: dict[str, torch.Tensor] = {}
        self.squares: dict[str, torch.Tensor] = {}
        if sizes:
            self.magnitudes = {name: torch.zeros_like(self.values[name]) for name in like}
            self.magnitudes["lse"] = _size_of_lse(self.values["lse"])
            self.squares = {
                name: torch.zeros_like(self.values[name]) for name in like if name != "dsink"
            }

    def solution(self) -> Solution:
        store = self.precision.store
        if store is not None:
            exact = ("lse", "dsink")  # float32 in every kernel
            self.values = {
                name: tensor if name in exact else tensor.to(store)
                for name, tensor in self.values.items()
            }
        spreads = {name: square.sqrt_() for name, square in self.squares.items()}
        return Solution(self.values, self.magnitudes, spreads)

    def add(self, chunk: _Chunk) -> None:
        """Forward and backward of one chunk; shapes [count * kv_head, group * row, ...]."""
        setting, operands, rounded = self.setting, self.operands, self.precision.round
        compute, device = self.precision.compute, operands.q.device
        query_rows = _Rows(
            setting, setting.starts_q, setting.lengths_q, chunk, (chunk.row, chunk.row_end), device
        )
        key_rows = _Rows(
            setting, setting.starts_k, setting.lengths_k, chunk, (0, chunk.keys), device
        )
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
        scores.view(*five, -1).add_(_mask(setting, chunk, compute, device)[:, None, None])
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
        inverse = torch.where(total > 0, total.reciprocal(), 0.0)
        out = rounded(torch.bmm(rounded(p), v).mul_(inverse))
        lse = m + total.log()
        query_rows.write(self.values["out"], heads, out.view(*four, -1))
        query_rows.write_statistic(self.values["lse"], heads, lse.view(four))
        p *= inverse
        if self.magnitudes:
            bounds = _Bounds(self, query_rows, key_rows, heads, kv, (*four, -1))
            bounds.forward(p, v)
            longest = k.norm(dim=-1).view(chunk.count, kv_heads, -1)
            if key_rows.gather is not None:
                longest.masked_fill_(key_rows.padding[:, None], 0.0)
            longest = longest.amax(-1).view(-1, 1)
            # |s| <= scale |q| |k| bounds how far the rounding of a score can move lse.
            reach = q.norm(dim=-1).mul_(longest).mul_(setting.softmax_scale)
            size = reach.view(four) + _size_of_lse(lse.view(four))
            query_rows.write_statistic(self.magnitudes["lse"], heads, size)
        if operands.do is None:
            return

        do = query_rows.read(operands.do, heads, compute).view(*folded, -1)
        key_rows.write(
            self.values["dv"], kv,
            torch.bmm(rounded(p).transpose(1, 2), do).view(keyed),
        )  # fmt: skip
        delta = (out * do).sum(-1, keepdim=True)
        dp = torch.bmm(do, v.transpose(1, 2))
        if self.sink is not None:
            term = (sink_p * inverse * delta).view(five)
            self.values["dsink"][heads] -= term.sum((0, 3)).flatten()
        if self.magnitudes:
            bounds.backward((q, k, do), (p, dp, delta), setting.softmax_scale)
            if self.sink is not None:
                # delta carries the rounding of every element of out it sums.
                term = (sink_p * inverse * (out * do).abs().sum(-1, keepdim=True)).view(five)
                self.magnitudes["dsink"][heads] += term.sum((0, 3)).flatten()
        ds = rounded(dp.sub_(delta).mul_(p))
        scale = setting.softmax_scale
        query_rows.write(self.values["dq"], heads, torch.bmm(ds, k).mul_(scale).view(*four, -1))
        key_rows.write(
            self.values["dk"], kv,
            torch.bmm(ds.transpose(1, 2), q).mul_(scale).view(keyed),
        )  # fmt: skip


@dataclass(frozen=True)
class _Bounds:
    """Adds a chunk's magnitudes and squared spreads; float32, for nobody needs more of a bound."""

    sweep: _Sweep
    query_rows: _Rows
    key_rows: _Rows
    heads: slice
    kv: slice
    query_shape: tuple[int, ...]

    def forward(self, p: torch.Tensor, v: torch.Tensor) -> None:
        self._queries("out", p.float(), v.float().abs_(), 1.0)

    def backward(
        self, tensors: tuple[torch.Tensor, ...], weights: tuple[torch.Tensor, ...], scale: float
    ) -> None:
        q, k, do = (tensor.float().abs_() for tensor in tensors)
        p, dp, delta = (weight.float() for weight in weights)
        self._keys("dv", p, do, 1.0)
        ds = dp.abs_().add_(delta.abs_()).mul_(p)
        self._queries("dq", ds, k, scale)
        self._keys("dk", ds, q, scale)

    def _queries(self, name: str, weight: torch.Tensor, row: torch.Tensor, scale: float) -> None:
        for power, target in enumerate((self.sweep.magnitudes, self.sweep.squares), 1):
            total = torch.bmm(weight**power, row**power).mul_(scale**power)
            self.query_rows.write(target[name], self.heads, total.view(self.query_shape))

    def _keys(self, name: str, weight: torch.Tensor, row: torch.Tensor, scale: float) -> None:
        count, kv_heads = self.query_shape[0], self.kv.stop - self.kv.start
        weight = weight.transpose(1, 2)
        for power, target in enumerate((self.sweep.magnitudes, self.sweep.squares), 1):
            total = torch.bmm(weight**power, row**power).mul_(scale**power)
            shape = (count, kv_heads, *total.shape[1:])
            self.key_rows.write(target[name], self.kv, total.view(shape))


def _size_of_lse(lse: torch.Tensor) -> torch.Tensor:
    """|m| + |log l| before they cancel, about, and one for the exponentials in l."""
    return torch.where(lse.isinf(), 0.0, lse.abs()) + 1


def _mask(
    setting: Setting, chunk: _Chunk, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[count, row, key]: 0 where the query sees the key, else -inf.

    Added to scores, for a masked fill is ten times slower on a CPU.
    """
    lengths_q = torch.tensor(setting.lengths_q[chunk.first : chunk.last])[:, None, None]
    lengths_k = torch.tensor(setting.lengths_k[chunk.first : chunk.last])[:, None, None]
    query = torch.arange(chunk.row, chunk.row_end)[:, None]
    key = torch.arange(chunk.keys)
    seen = (query < lengths_q) & (key < lengths_k)
    if setting.causal:
        behind = query + (lengths_k - lengths_q) - key
        seen &= behind >= 0
        if setting.window is not None:
            seen &= behind < setting.window
    return torch.where(seen.to(device), 0.0, -torch.inf).to(dtype)
