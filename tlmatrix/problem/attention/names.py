"""The names of attention problems: axes, tensors, and relations that a spec may list.

Lint, the unknown-axis check and the documentation read `ROWS`.
"""

from __future__ import annotations

from tlmatrix.problem.name_table import DEVICE, VALUES, Document, Name, storage

_DENSE = ("bshd", "bhsd")
_PACKED = ("thd", "padded")
_CACHES = ("cache", "paged")
_OPTIONAL = "none"


def _rows_of(side: str, heads: str, dim: str, *, cache: bool) -> dict[str, str]:
    """The shapes of a tensor with a row per query (q) or key (k), by layout."""
    shapes = {
        "bshd": f"[batch, seqlen_{side}, {heads}, {dim}]",
        "bhsd": f"[batch, {heads}, seqlen_{side}, {dim}]",
        "thd": f"[total_{side}, {heads}, {dim}]",
        "padded": f"[batch, seqlen_{side}, {heads}, {dim}]",
    }
    if cache:
        shapes |= dict.fromkeys(_CACHES, f"[batch, {heads}, {dim}]")
    return shapes


_LSE = {
    "bshd": "[batch, heads, seqlen_q]",
    "bhsd": "[batch, heads, seqlen_q]",
    "thd": "[heads, total_q]",
    "padded": "[batch, heads, seqlen_q]",
}
_EQUAL = "if q and k have equal lengths"
_GRADIENTS = "with the check `gradients` (an entry), or if `returns` lists it (a factory)"

ROWS = (
    Name("dtype", ("axis", "name"), "of q, k, v, out and their gradients", "floating dtypes"),
    Name("head_dim", ("axis", "name"), "elements of a query and a key", "1 or more"),
    Name("head_dim_v", ("axis", "name"), "elements of a value", "1 or more, `same`", "`head_dim`"),
    Name("kv_heads", ("axis", "name"), "heads of k and v", "1 or more", "`heads // groups`"),
    Name("groups", ("axis", "name"), "query heads that share a kv head", "1 or more", "1"),
    Name("heads", ("axis", "name"), "query heads", "1 or more", "`kv_heads * groups`"),
    Name(
        "layout",
        ("axis", "name"),
        "how tensors are laid out",
        "`bshd`, `bhsd`, `thd`, `padded`, `cache`, `paged`",
        "`thd` with `seqlens`, else `bshd`",
    ),
    Name(
        "seqlens",
        ("axis", "name"),
        "lengths of the sequences, of queries and keys; as a name a list, if both are equal",
        "`{q: [17, 64], k: same}`, `{q: 1, k: [3, 9]}`, `[17, 64]`",
        "required",
        layouts=(*_DENSE, *_PACKED, *_CACHES),
        optional=_EQUAL,
    ),
    Name("batch", ("axis", "name"), "sequences; an axis of dense layouts", "1 or more", "1"),
    Name(
        "seqlen_q",
        ("axis", "name"),
        "queries of a sequence; an axis of dense layouts, in `padded` the rows of the tensor",
        "0 or more",
        layouts=(*_DENSE, "padded"),
    ),
    Name(
        "seqlen_k",
        ("axis", "name"),
        "keys of a sequence; an axis of dense layouts, in `padded` the rows of the tensor",
        "0 or more, `same`",
        "`same`",
        layouts=(*_DENSE, "padded"),
    ),
    Name("causal", ("axis", "name"), "whether later keys are masked", "booleans", "`false`"),
    Name(
        "alignment",
        ("axis",),
        "alignment of causal mask and window: at the last query and key, or the first",
        "`bottom_right`, `top_left`",
        "`bottom_right`",
        layouts=(*_DENSE, *_PACKED),
    ),
    Name(
        "shared_mask",
        ("axis",),
        "whether q, k and v share one padding mask; needs equal lengths of q and k",
        "booleans",
        "`false`",
        layouts=("padded",),
    ),
    Name(
        "window", ("axis", "name"), "keys that a row sees, itself included", "1 or more", _OPTIONAL
    ),
    Name("scale", ("axis", "name"), "factor of q k^T", "a finite number", "`head_dim ** -0.5`"),
    Name(
        "sink",
        ("axis", "input", "name"),
        "logit of one more key of each head, whose value is 0; None without a sink",
        "`true`, `normal`, `strong`, `absent`, `faint`, `dominant`, `mixed`",
        _OPTIONAL,
        shapes={"": "[heads]"},
        dtype="sink_dtype",
        optional="if the axis `sink` is not none",
    ),
    Name("sink_dtype", ("axis",), "of the sink", "floating dtypes, `same`", "`float32`"),
    Name(
        "max_seqlen_q",
        ("axis", "name"),
        "the longest query length, or more",
        "0 or more",
        "the longest",
    ),
    Name(
        "max_seqlen_k",
        ("axis", "name"),
        "the longest key length, or more; rows of a cache",
        "0 or more",
        "the longest",
    ),
    Name("page_size", ("axis", "name"), "keys of a page", "1 or more", layouts=("paged",)),
    Name(
        "freed_pages",
        ("axis",),
        "pages before the window are not in the block table",
        "`true`, `false`",
        "`true`",
        layouts=("paged",),
    ),
    Name(
        "padding",
        ("axis",),
        "position of the padding",
        "`right`, `left`, `holes`",
        "`right`",
        layouts=("padded",),
    ),
    VALUES,
    storage("`offset`, `sliced`, `transposed`, `ones`, `expanded`"),
    Name("seqlens_q", ("name",), "query lengths, a list"),
    Name(
        "seqlens_k",
        ("name", "input"),
        "key lengths, a list; with a KV cache a tensor",
        shapes=dict.fromkeys(_CACHES, "[batch]"),
        dtype="int32",
    ),
    Name("total_q", ("name",), "queries of all sequences"),
    Name("total_k", ("name",), "keys of all sequences"),
    Name(
        "seqlen",
        ("name",),
        "rows of a sequence",
        layouts=(*_DENSE, "padded"),
        optional=_EQUAL,
    ),
    Name("total", ("name",), "rows of all sequences", layouts=(*_DENSE, *_PACKED), optional=_EQUAL),
    Name(
        "max_seqlen",
        ("name",),
        "the longest sequence, or more",
        layouts=(*_DENSE, *_PACKED),
        optional=_EQUAL,
    ),
    Name("max_pages", ("name",), "entries of a row of `block_table`", layouts=("paged",)),
    DEVICE,
    Name(
        "q",
        ("input",),
        "queries",
        shapes=_rows_of("q", "heads", "head_dim", cache=True),
        dtype="dtype",
    ),
    Name(
        "k",
        ("input",),
        "keys",
        shapes=_rows_of("k", "kv_heads", "head_dim", cache=False),
        dtype="dtype",
    ),
    Name(
        "v",
        ("input",),
        "values",
        shapes=_rows_of("k", "kv_heads", "head_dim_v", cache=False),
        dtype="dtype",
    ),
    Name(
        "do",
        ("input",),
        "gradient of out",
        shapes=_rows_of("q", "heads", "head_dim_v", cache=False),
        dtype="dtype",
        optional=_GRADIENTS,
    ),
    *(
        Name(
            f"cu_seqlens_{side}",
            ("input",),
            f"first row of each sequence and the total, of {what}",
            shapes={"thd": "[batch + 1]"},
            dtype="int32",
        )
        for side, what in (("q", "queries"), ("k", "keys"))
    ),
    *(
        Name(
            f"mask_{side}",
            ("input",),
            f"true at positions of {what} with a token",
            shapes={"padded": f"[batch, seqlen_{side}]"},
            dtype="bool",
        )
        for side, what in (("q", "q"), ("k", "k and v"))
    ),
    Name(
        "cu_seqlens",
        ("input",),
        "first row of each sequence and the total, of queries and keys",
        shapes={"thd": "[batch + 1]"},
        dtype="int32",
        optional=_EQUAL,
    ),
    Name(
        "mask",
        ("input",),
        "true at positions of q, k and v with a token",
        shapes={"padded": "[batch, seqlen]"},
        dtype="bool",
        optional="with `shared_mask`",
    ),
    *(
        Name(
            f"{name}_cache",
            ("input",),
            f"{what} by sequence and position",
            shapes={"cache": f"[batch, max_seqlen_k, kv_heads, {dim}]"},
            dtype="dtype",
        )
        for name, what, dim in (("k", "keys", "head_dim"), ("v", "values", "head_dim_v"))
    ),
    *(
        Name(
            f"{name}_pages",
            ("input",),
            f"{what} in a pool of pages",
            shapes={"paged": f"[pages, page_size, kv_heads, {dim}]"},
            dtype="dtype",
        )
        for name, what, dim in (("k", "keys", "head_dim"), ("v", "values", "head_dim_v"))
    ),
    Name(
        "block_table",
        ("input",),
        "pages of each sequence; entries past its last page, or before its window, lie outside the "
        "pool",
        shapes={"paged": "[batch, max_pages]"},
        dtype="int32",
    ),
    Name(
        "out",
        ("output",),
        "softmax(scale q k^T) v",
        shapes=_rows_of("q", "heads", "head_dim_v", cache=True),
        dtype="dtype",
    ),
    Name(
        "lse",
        ("output",),
        "log of the sum of exp(scores) of each row, natural, sink included; -inf for a row "
        "without keys",
        shapes={**_LSE, **dict.fromkeys(_CACHES, "[batch, heads]")},
        dtype="float32",
    ),
    Name(
        "delta",
        ("input",),
        "sum of out * do of each row",
        shapes=_LSE,
        dtype="float32",
        optional="for a factory whose `call` lists it; it may list `out` and `lse`, too",
    ),
    *(
        Name(
            f"d{name}",
            ("gradient",),
            f"gradient of {name}",
            shapes=_rows_of(side, heads, dim, cache=False),
            dtype="dtype",
            optional=_GRADIENTS,
        )
        for name, side, heads, dim in (
            ("q", "q", "heads", "head_dim"),
            ("k", "k", "kv_heads", "head_dim"),
            ("v", "k", "kv_heads", "head_dim_v"),
        )
    ),
    Name(
        "dsink",
        ("gradient",),
        "gradient of sink",
        shapes=dict.fromkeys((*_DENSE, *_PACKED), "[heads]"),
        dtype="sink_dtype",
        optional="with a sink",
    ),
)

RELATIONS = (
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
)

DOCUMENT = Document(
    "attention",
    "The problem `attention`",
    """\
`problem: attention` provides inputs, a float64 reference with gradients, and metamorphic relations
of scaled dot product attention. The parameters of an entry select arguments by name; `call`,
`factory_args`, `tile` and `constraints` use the same names, and all axes. An axis that neither the
problem nor the entry takes is an error. Caches and padded tensors have
[a guide](../../guides/attention-layouts.md).""",
    ROWS,
    relations=RELATIONS,
)
