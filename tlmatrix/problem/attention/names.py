"""The names of attention problems: axes with their valid values, tensors, and relations.

Lint, the unknown-axis check and the documentation read `PAGE`. Does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.problem.name_table import (
    DEVICE,
    FLAG,
    NUMBER,
    VALUES,
    Document,
    Name,
    Values,
    axis,
    choice,
    dtypes,
    setting,
    storage,
    tensor,
    whole,
)
from tlmatrix.spec.values import explain_lengths
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
    "dominant": "10000: all of the weight; exp overflows if the maximum leaves it out",
    "mixed": "normal or strong, absent, faint and dominant, one head after another: reveals a sink "
    "of the wrong head",
}
"""Attention sinks by name, and the bugs that they reveal.

A sink [heads] is the logit of one more key of each head, which every row sees; its value is 0.
`true` is `normal` or `strong`, by the seed."""

_DENSE = ("bshd", "bhsd")
_PACKED = ("thd", "padded")
_OPTIONAL = "none"
_EQUAL = "if q and k have equal lengths"
_GRADIENTS = "with the check `gradients` (an entry), or if `returns` lists it (a factory)"
_SIDES = (("q", "queries"), ("k", "keys"))
_KEYS = whole(1, optional=True, want="none or a number of keys >= 1")


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


def _rows_of(side: str, heads: str, dim: str, *, cache: bool = False) -> dict[str, str]:
    """The shapes of a tensor with a row per query (q) or key (k), by layout."""
    shapes = {
        "bshd": f"[batch, seqlen_{side}, {heads}, {dim}]",
        "bhsd": f"[batch, {heads}, seqlen_{side}, {dim}]",
        "thd": f"[total_{side}, {heads}, {dim}]",
        "padded": f"[batch, seqlen_{side}, {heads}, {dim}]",
    }
    return shapes | (dict.fromkeys(CACHE_LAYOUTS, f"[batch, {heads}, {dim}]") if cache else {})


_LSE = {
    "bshd": "[batch, heads, seqlen_q]",
    "bhsd": "[batch, heads, seqlen_q]",
    "thd": "[heads, total_q]",
    "padded": "[batch, heads, seqlen_q]",
}
_OPERANDS = {
    "q": ("queries", "q", "heads", "head_dim"),
    "k": ("keys", "k", "kv_heads", "head_dim"),
    "v": ("values", "k", "kv_heads", "head_dim_v"),
}
"""The meaning, side, heads and last dimension of each operand."""

_AXES = (
    axis("dtype", "of q, k, v, out and their gradients", dtypes(floating=True)),
    axis("head_dim", "elements of a query and a key", whole(1)),
    axis(
        "head_dim_v",
        "elements of a value",
        whole(1, same=True, want="same or an integer >= 1"),
        "`head_dim`",
    ),
    axis("kv_heads", "heads of k and v", whole(1), "`heads // groups`"),
    axis("groups", "query heads that share a kv head", whole(1), "1"),
    axis("heads", "query heads", whole(1), "`kv_heads * groups`"),
    axis(
        "layout",
        "how tensors are laid out",
        choice("layout", LAYOUTS),
        "`thd` with `seqlens`, else `bshd`",
    ),
    axis(
        "seqlens",
        "lengths of the sequences, of queries and keys; as a name a list, if both are equal",
        Values("`{q: [17, 64], k: same}`, `{q: 1, k: [3, 9]}`, `[17, 64]`", explain_lengths),
        "required",
        layouts=LAYOUTS,
        optional=_EQUAL,
    ),
    axis("batch", "sequences; an axis of dense layouts", whole(1), "1"),
    axis(
        "seqlen_q",
        "queries of a sequence; an axis of dense layouts, in `padded` the rows of the tensor",
        whole(0),
        layouts=(*_DENSE, "padded"),
    ),
    axis(
        "seqlen_k",
        "keys of a sequence; an axis of dense layouts, in `padded` the rows of the tensor",
        whole(0, same=True, optional=True, want="same or an integer >= 0"),
        "`same`",
        layouts=(*_DENSE, "padded"),
    ),
    axis("causal", "whether later keys are masked", FLAG, "`false`"),
    setting(
        "alignment",
        "alignment of causal mask and window: at the last query and key, or the first",
        choice("alignment", ALIGNMENTS),
        "`bottom_right`",
        layouts=(*_DENSE, *_PACKED),
    ),
    setting(
        "shared_mask",
        "whether q, k and v share one padding mask; needs equal lengths of q and k",
        FLAG,
        "`false`",
        layouts=("padded",),
    ),
    axis("window", "keys that a row sees, itself included", _KEYS, _OPTIONAL),
    axis("scale", "factor of q k^T", NUMBER, "`head_dim ** -0.5`"),
    Name(
        "sink",
        ("axis", "input", "name"),
        "logit of one more key of each head, whose value is 0; None without a sink",
        Values("`true`, `normal`, `strong`, `absent`, `faint`, `dominant`, `mixed`", explain_sink),
        _OPTIONAL,
        {"": "[heads]"},
        "sink_dtype",
        optional="if the axis `sink` is not none",
    ),
    setting("sink_dtype", "of the sink", dtypes(floating=True, same=True), "`float32`"),
    axis(
        "max_seqlen_q", "the longest query length, or more", whole(0, optional=True), "the longest"
    ),
    axis(
        "max_seqlen_k",
        "the longest key length, or more; rows of a cache",
        whole(0, optional=True),
        "the longest",
    ),
    axis("page_size", "keys of a page", _KEYS, layouts=("paged",)),
    setting(
        "freed_pages",
        "pages before the window are not in the block table",
        Values("`true`, `false`", FLAG.explain),
        "`true`",
        layouts=("paged",),
    ),
    setting(
        "padding",
        "position of the padding",
        choice("padding", PADDINGS),
        "`right`",
        layouts=("padded",),
    ),
    VALUES,
    storage("`offset`, `sliced`, `transposed`, `ones`, `expanded`"),
)

_NAMES = (
    Name("seqlens_q", ("name",), "query lengths, a list"),
    Name(
        "seqlens_k",
        ("name", "input"),
        "key lengths, a list; with a KV cache a tensor",
        shapes=dict.fromkeys(CACHE_LAYOUTS, "[batch]"),
        dtype="int32",
    ),
    Name("total_q", ("name",), "queries of all sequences"),
    Name("total_k", ("name",), "keys of all sequences"),
    *(
        Name(name, ("name",), means, layouts=layouts, optional=_EQUAL)
        for name, means, layouts in (
            ("seqlen", "rows of a sequence", (*_DENSE, "padded")),
            ("total", "rows of all sequences", (*_DENSE, *_PACKED)),
            ("max_seqlen", "the longest sequence, or more", (*_DENSE, *_PACKED)),
        )
    ),
    Name("max_pages", ("name",), "entries of a row of `block_table`", layouts=("paged",)),
    DEVICE,
)

_TENSORS = (
    *(
        tensor(name, means, _rows_of(*rows, cache=name == "q"), "dtype")
        for name, (means, *rows) in _OPERANDS.items()
    ),
    tensor("do", "gradient of out", _rows_of("q", "heads", "head_dim_v"), "dtype", _GRADIENTS),
    *(
        tensor(
            f"cu_seqlens_{side}",
            f"first row of each sequence and the total, of {what}",
            {"thd": "[batch + 1]"},
            "int32",
        )
        for side, what in _SIDES
    ),
    *(
        tensor(
            f"mask_{side}",
            f"true at positions of {what} with a token",
            {"padded": f"[batch, seqlen_{side}]"},
            "bool",
        )
        for side, what in (("q", "q"), ("k", "k and v"))
    ),
    tensor(
        "cu_seqlens",
        "first row of each sequence and the total, of queries and keys",
        {"thd": "[batch + 1]"},
        "int32",
        _EQUAL,
    ),
    tensor(
        "mask",
        "true at positions of q, k and v with a token",
        {"padded": "[batch, seqlen]"},
        "bool",
        "with `shared_mask`",
    ),
    *(
        tensor(f"{name}_{kind}", f"{_OPERANDS[name][0]} {where}", {layout: shape % dim}, "dtype")
        for kind, layout, where, shape in (
            (
                "cache",
                "cache",
                "by sequence and position",
                "[batch, max_seqlen_k, kv_heads, %s]",
            ),
            ("pages", "paged", "in a pool of pages", "[pages, page_size, kv_heads, %s]"),
        )
        for name, dim in (("k", "head_dim"), ("v", "head_dim_v"))
    ),
    tensor(
        "block_table",
        "pages of each sequence; entries past its last page, or before its window, lie outside the "
        "pool",
        {"paged": "[batch, max_pages]"},
        "int32",
    ),
    tensor(
        "out",
        "softmax(scale q k^T) v",
        _rows_of("q", "heads", "head_dim_v", cache=True),
        "dtype",
        roles=("output",),
    ),
    tensor(
        "lse",
        "log of the sum of exp(scores) of each row, natural, sink included; -inf for a row "
        "without keys",
        {**_LSE, **dict.fromkeys(CACHE_LAYOUTS, "[batch, heads]")},
        "float32",
        roles=("output",),
    ),
    tensor(
        "delta",
        "sum of out * do of each row",
        _LSE,
        "float32",
        "for a factory whose `call` lists it; it may list `out` and `lse`, too",
    ),
    *(
        tensor(
            f"d{name}",
            f"gradient of {name}",
            _rows_of(*rows),
            "dtype",
            _GRADIENTS,
            roles=("gradient",),
        )
        for name, (_, *rows) in _OPERANDS.items()
    ),
    tensor(
        "dsink",
        "gradient of sink",
        dict.fromkeys((*_DENSE, *_PACKED), "[heads]"),
        "sink_dtype",
        "with a sink",
        roles=("gradient",),
    ),
)

PAGE = Document(
    "attention",
    "The problem `attention`",
    """\
`problem: attention` provides inputs, a float64 reference with gradients, and metamorphic relations
of scaled dot product attention. The parameters of an entry select arguments by name; `call`,
`factory_args`, `tile` and `constraints` use the same names, and all axes. An axis that neither the
problem nor the entry takes is an error. Caches and padded tensors have
[a guide](../../guides/attention-layouts.md).""",
    (*_AXES, *_NAMES, *_TENSORS),
    relations=(
        "batch_permuted",
        "batch_split",
        "batch_extended",
        "groups_as_repeated_heads",
        "window_as_long_as_keys",
        "sink_of_minus_infinity",
        "sink_merged_afterwards",
        "keys_permuted",
        "other_layout",
        "other_padding",
        "pages_moved",
        "other_page_size",
        "other_cache_layout",
    ),
)
