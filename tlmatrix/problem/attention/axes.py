"""The names of attention problems, and the axes of a case as plain numbers: lengths, heads, mask.

Lint, compile keys, cost and tensors derive from `Setting`. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tlmatrix.problem.names import (
    STORAGE,
    VALUES,
    Names,
    choice,
    dtypes,
    flag,
    number,
    whole,
)
from tlmatrix.spec.values import explain_lengths, sides_of
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value

LAYOUTS = ("bshd", "bhsd", "thd", "padded", "cache", "paged")
CACHE_LAYOUTS = ("cache", "paged")
"""Layouts of decoding: one query per sequence, keys in a contiguous or paged KV cache."""
CACHE_TENSORS = frozenset({"k_cache", "v_cache", "k_pages", "v_pages", "block_table", "seqlens_k"})
"""The inputs of layouts with a KV cache in place of k and v."""
PADDINGS = ("right", "left", "holes")
"""Positions of the padding in the layout `padded`; `holes` is anywhere."""
ALIGNMENTS = ("bottom_right", "top_left")
"""Alignment of a causal mask: the last query sees the last key, or the first query the first."""

SINKS = {
    "normal": "independent N(0, 1), like the logits",
    "strong": "uniform in [5, 16]: most of the weight; reveals a logit in too few bits",
    "absent": "-inf: no sink; gives -inf minus -inf in rows that see no key",
    "faint": "-10000: no weight, but the lse of a row that sees no key",
    "lowest": "the lowest finite number of its dtype: overflows where a scale divides it, and is "
    "still the lse of a row that sees no key",
    "dominant": "10000: all of the weight; exp overflows if the maximum leaves it out",
    "mixed": "normal or strong, absent, faint and dominant, one head after another: reveals a sink "
    "of the wrong head",
}
"""Attention sinks by name, and the bugs that they reveal.

A sink [heads] is the logit of one more key of each head, which every row sees; its value is 0.
`true` is `normal` or `strong`, by the seed."""


def explain_sink(value: Value) -> str | None:
    """Why `value` is invalid for the axis `sink`; None if it is valid."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value in SINKS):
        return None
    return f"{value!r} is not none, true or a kind of sink{nearest(value, SINKS)}"


def sink_kind(value: Value) -> str | None:
    """The kind of sink that a value of the axis selects; None for no sink."""
    if isinstance(value, str):
        return value
    return "usual" if value else None


NAMES = Names(
    "attention",
    axes={
        "dtype": dtypes(floating=True),
        "head_dim": whole(1),
        "head_dim_v": whole(1, same=True, want="same or an integer >= 1"),
        **dict.fromkeys(("kv_heads", "groups", "heads", "batch"), whole(1)),
        "layout": choice("layout", LAYOUTS),
        "seqlens": explain_lengths,
        "seqlen_q": whole(0),
        "seqlen_k": whole(0, same=True, optional=True, want="same or an integer >= 0"),
        "causal": flag,
        **dict.fromkeys(
            ("window", "page_size"),
            whole(1, optional=True, want="none or a number of keys >= 1"),
        ),
        "scale": number,
        "sink": explain_sink,
        **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), whole(0, optional=True)),
        **VALUES,
    },
    settings={
        "alignment": choice("alignment", ALIGNMENTS),
        "padding": choice("padding", PADDINGS),
        "shared_mask": flag,
        "freed_pages": flag,
        "sink_dtype": dtypes(floating=True, same=True),
        **STORAGE,
    },
    others=frozenset(
        {
            "seqlens_q", "seqlens_k", "total_q", "total_k", "seqlen", "total", "max_seqlen",
            "max_pages", "device",
        }
    ),
    inputs=CACHE_TENSORS.union(
        {"q", "k", "v", "do", "delta", "sink"},
        {"cu_seqlens_q", "cu_seqlens_k", "cu_seqlens", "mask_q", "mask_k", "mask"},
    ),
    results=frozenset({"out", "lse", "dq", "dk", "dv", "dsink"}),
    relations=(
        "batch_permuted", "batch_split", "batch_extended", "groups_as_repeated_heads",
        "window_as_long_as_keys", "sink_of_minus_infinity", "sink_merged_afterwards",
        "keys_permuted", "other_layout", "other_padding", "without_mask", "pages_moved",
        "other_page_size", "other_cache_layout",
    ),
)  # fmt: skip

# The setting ----------------------------------------------------------------------------------

_MAY_BE_EMPTY = frozenset({"heads", "kv_heads", "groups", "head_dim", "head_dim_v"})


class AxisError(ValueError):
    """A value of `axis` is invalid, alone or together with other axes."""

    def __init__(self, axis: str, message: str) -> None:
        self.axis = axis
        super().__init__(message)


@dataclass(frozen=True)
class Setting:
    """An attention problem as plain numbers.

    `lengths_q[i]` and `lengths_k[i]` are the lengths of sequence (or batch entry) i; query head
    h uses kv head h // groups; `window` counts the visible keys of a row, itself included; `sink`
    is a kind of sink. `alignment` is that of the causal mask. With `shared_mask`, q and k share one
    padding mask in the layout `padded`; all positions of the side `unmasked` are tokens. With
    `freed_pages`, the block table has no pages before the window.
    """

    layout: str
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    kv_heads: int
    groups: int
    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool = False
    window: int | None = None
    sink: str | None = None
    sink_dtype: str = "float32"
    scale: float | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    page_size: int | None = None
    alignment: str = "bottom_right"
    shared_mask: bool = False
    freed_pages: bool = True
    unmasked: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Setting:
        """The setting of a case.

        Sizes of 0 for heads and head dimensions (`groups: 0`) are valid, for invalid-argument
        tests.

        Raises:
            AxisError: a value is invalid, or missing, or does not fit other values.
        """
        for axis, value in values.items():
            empty = value == 0 and axis in _MAY_BE_EMPTY and not isinstance(value, bool)
            if not empty and (reason := NAMES.explain(axis, value)):
                raise AxisError(axis, f"{axis}: {reason}")
        for axis in ("dtype", "head_dim"):
            if values.get(axis) is None:
                raise AxisError(axis, f"attention needs the axis {axis}")
        layout, lengths_q, lengths_k = _layout(values)
        kv_heads, groups = _heads(values)
        head_dim = _whole(values["head_dim"])
        head_dim_v = values.get("head_dim_v")
        causal = bool(values.get("causal", False))
        window = values.get("window")
        if layout in CACHE_LAYOUTS:
            _one_query(layout, lengths_q, values)
        elif window is not None and not causal:
            raise AxisError(
                "window",
                f"window {window} without causal; a window is causal by definition: add "
                "constraints: [window is none or causal]",
            )
        for axis, longest in (
            ("max_seqlen_q", max(lengths_q, default=0)),
            ("max_seqlen_k", max(lengths_k, default=0)),
        ):
            given = values.get(axis)
            if given is not None and _whole(given) < longest:
                raise AxisError(
                    axis, f"{axis} is {given}, less than the longest sequence ({longest})"
                )
        scale = values.get("scale")
        return cls(
            layout=layout,
            lengths_q=lengths_q,
            lengths_k=lengths_k,
            kv_heads=kv_heads,
            groups=groups,
            head_dim=head_dim,
            head_dim_v=head_dim if head_dim_v in (None, "same") else _whole(head_dim_v),
            dtype=str(values["dtype"]),
            # With a KV cache, the one query is aligned with the last key and sees all keys: a
            # causal mask matters only with a window.
            causal=window is not None if layout in CACHE_LAYOUTS else causal,
            window=None if window is None else _whole(window),
            sink=sink_kind(values.get("sink")),
            sink_dtype=_sink_dtype(values),
            scale=None if scale is None else float(scale),  # type: ignore[arg-type]
            max_seqlen_q=_optional(values.get("max_seqlen_q")),
            max_seqlen_k=_optional(values.get("max_seqlen_k")),
            page_size=_optional(values.get("page_size")) if layout == "paged" else None,
            alignment=_alignment(layout, values),
            shared_mask=_shared_mask(layout, lengths_q == lengths_k, values),
            freed_pages=bool(values.get("freed_pages", True)),
        )

    @property
    def packed(self) -> bool:
        """Whether sequences have lengths of their own, and are packed in the operands."""
        return self.layout in ("thd", "padded") or self.has_cache

    @property
    def padded(self) -> bool:
        """Whether an entry gets padded tensors and masks (see `padded`)."""
        return self.layout == "padded"

    @property
    def has_cache(self) -> bool:
        """Whether an entry gets keys and values in a KV cache (see `kv_cache`)."""
        return self.layout in CACHE_LAYOUTS

    @property
    def rows_last(self) -> bool:
        """Whether lse is [heads, total_q]."""
        return self.packed and not self.has_cache

    @property
    def lse_as_out(self) -> bool:
        """Whether lse has the dimensions of out without the last, in the same order."""
        return self.layout == "bhsd" or self.has_cache

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.lengths_q)

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.kv_heads * self.groups

    @property
    def softmax_scale(self) -> float:
        """The factor of q k^T: the axis `scale`, by default head_dim**-0.5."""
        return max(self.head_dim, 1) ** -0.5 if self.scale is None else self.scale

    @cached_property
    def starts_q(self) -> tuple[int, ...]:
        """The first packed row of every sequence, and the total: `cu_seqlens_q`."""
        return tuple(accumulate(self.lengths_q, initial=0))

    @cached_property
    def starts_k(self) -> tuple[int, ...]:
        """The first packed key of every sequence, and the total: `cu_seqlens_k`."""
        return tuple(accumulate(self.lengths_k, initial=0))

    def names(self) -> dict[str, Any]:
        """The names for entries and expressions, without tensors."""
        names: dict[str, Any] = {
            "layout": self.layout,
            "dtype": self.dtype,
            "batch": self.batch,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "groups": self.groups,
            "seqlens_q": list(self.lengths_q),
            "seqlens_k": list(self.lengths_k),
            "total_q": self.starts_q[-1],
            "total_k": self.starts_k[-1],
            "max_seqlen_q": self._longest(self.max_seqlen_q, self.lengths_q),
            "max_seqlen_k": self._longest(self.max_seqlen_k, self.lengths_k),
            "head_dim": self.head_dim,
            "head_dim_v": self.head_dim_v,
            "causal": self.causal or self.has_cache,
            "window": self.window,
            "scale": self.softmax_scale,
        }
        if self.page_size is not None:
            names["page_size"] = self.page_size
            names["max_pages"] = self.max_pages
        if not self.packed:
            names["seqlen_q"] = self.lengths_q[0]
            names["seqlen_k"] = self.lengths_k[0]
        if self.lengths_q == self.lengths_k and not self.has_cache:
            names["seqlens"] = list(self.lengths_q)
            names["total"] = self.starts_q[-1]
            names["max_seqlen"] = max(names["max_seqlen_q"], names["max_seqlen_k"])
            if not self.packed:
                names["seqlen"] = self.lengths_q[0]
        return names

    def offset(self, length_q: int, length_k: int) -> int:
        """The last key that query 0 of a sequence sees under the causal mask."""
        return length_k - length_q if self.alignment == "bottom_right" else 0

    @property
    def capacity(self) -> int:
        """Rows per sequence of a contiguous cache."""
        return self._longest(self.max_seqlen_k, self.lengths_k)

    @property
    def max_pages(self) -> int:
        """Entries per sequence of a block table."""
        assert self.page_size is not None
        return -(-self.capacity // self.page_size)

    @staticmethod
    def _longest(given: int | None, lengths: Sequence[int]) -> int:
        return max(lengths, default=0) if given is None else given

    def last_visible(self, length_k: int) -> int:
        """The number of keys that the last query of a sequence sees."""
        return length_k if self.window is None else min(self.window, length_k)

    @property
    def most_visible(self) -> int:
        """The most keys that the last query of a sequence sees."""
        return max(map(self.last_visible, self.lengths_k), default=0)

    @cached_property
    def visible_pairs(self) -> int:
        """Number of unmasked (query, key) pairs of one head."""
        return sum(
            self._visible(lq, lk) for lq, lk in zip(self.lengths_q, self.lengths_k, strict=True)
        )

    def _visible(self, lq: int, lk: int) -> int:
        if not self.causal:
            return lq * lk
        # Query i sees the keys [0, i + offset], without those before the window.
        first = self.offset(lq, lk) + 1
        causal = _clamped_sum(first, lq, lk)
        return causal - (_clamped_sum(first - self.window, lq, lk) if self.window else 0)


def _clamped_sum(first: int, count: int, top: int) -> int:
    """Sum of min(max(x, 0), top) over the `count` integers x from `first`."""

    def below(x: int) -> int:  # the sum over all integers below x
        inner = min(max(x, 0), top + 1)
        return inner * (inner - 1) // 2 + max(x - top - 1, 0) * top

    return below(first + count) - below(first)


def _layout(values: Mapping[str, Value]) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    layout = values.get("layout")
    if "seqlens" in values:
        for axis in ("seqlen_q", "seqlen_k", "batch"):
            if values.get(axis) is not None:
                raise AxisError(
                    axis, f"the axes {axis} and seqlens are both given; remove one of them"
                )
        if layout not in (None, "thd", "padded", *CACHE_LAYOUTS):
            raise AxisError(
                "layout",
                f"layout {layout} is dense, and seqlens makes packed sequences (layout thd)",
            )
        return (str(layout or "thd"), *sides_of(values["seqlens"]))
    if layout in CACHE_LAYOUTS:
        raise AxisError("layout", f"layout {layout} needs the axis seqlens: {_CACHE_SEQLENS}")
    if layout == "padded":
        raise AxisError("layout", "layout padded needs the axis seqlens, for its masks")
    if "seqlen_q" not in values:
        raise AxisError("seqlen_q", "attention needs the axis seqlens (packed) or seqlen_q (dense)")
    batch = _whole(values.get("batch", 1))
    seqlen_q = _whole(values["seqlen_q"])
    seqlen_k = values.get("seqlen_k")
    seqlen_k = seqlen_q if seqlen_k in (None, "same") else _whole(seqlen_k)
    return str(layout or "bshd"), (seqlen_q,) * batch, (seqlen_k,) * batch


_CACHE_SEQLENS = "write seqlens: [{q: 1, k: [17, 64, 0]}]"


def _one_query(layout: str, lengths_q: tuple[int, ...], values: Mapping[str, Value]) -> None:
    """Raise AxisError if the values do not fit a layout with a KV cache."""
    if any(length != 1 for length in lengths_q):
        raise AxisError(
            "seqlens", f"layout {layout} has one query for each sequence; {_CACHE_SEQLENS}"
        )
    if layout == "paged" and values.get("page_size") is None:
        raise AxisError("page_size", "layout paged needs the axis page_size; add page_size: [16]")


def _heads(values: Mapping[str, Value]) -> tuple[int, int]:
    heads, kv_heads, groups = (
        _optional(values.get(axis)) for axis in ("heads", "kv_heads", "groups")
    )
    if heads is None:
        if kv_heads is None:
            raise AxisError("heads", "attention needs the axis heads or kv_heads")
        return kv_heads, 1 if groups is None else groups
    if kv_heads is None:
        by, name = 1 if groups is None else groups, "groups"
    else:
        by, name = kv_heads, "kv_heads"
    if by == 0 or heads % by:
        raise AxisError("heads", f"heads {heads} is not a multiple of {name} {by}")
    if kv_heads is None:
        return heads // by, by
    if groups is not None and groups != heads // kv_heads:
        raise AxisError("heads", f"heads {heads} is not kv_heads {kv_heads} * groups {groups}")
    return kv_heads, heads // kv_heads


def _alignment(layout: str, values: Mapping[str, Value]) -> str:
    alignment = str(values.get("alignment", "bottom_right"))
    if layout in CACHE_LAYOUTS and alignment != "bottom_right":
        raise AxisError(
            "alignment",
            f"alignment {alignment} does not fit the layout {layout}, whose one query is aligned "
            "with the last key; remove the axis alignment",
        )
    return alignment


def _shared_mask(layout: str, equal: bool, values: Mapping[str, Value]) -> bool:
    shared = bool(values.get("shared_mask", False))
    if shared and layout != "padded":
        raise AxisError("shared_mask", f"shared_mask needs the layout padded, not {layout}")
    if shared and not equal:
        raise AxisError(
            "shared_mask", "shared_mask needs q and k of equal lengths; write seqlens with k: same"
        )
    return shared


def _sink_dtype(values: Mapping[str, Value]) -> str:
    given = values.get("sink_dtype", "float32")
    return str(values["dtype"] if given == "same" else given)


def _optional(value: Value) -> int | None:
    return None if value is None else _whole(value)


def _whole(value: Value) -> int:
    """A value as an int, which `Setting.of` has checked."""
    assert isinstance(value, int)
    return value
