"""Online softmax of a tile of queries, shared by all forward kernels.

Milakov and Gimelshein, 2018 (https://arxiv.org/abs/1805.02867), as in FlashAttention-2. Fragments
[queries], in float32:

==========  ====================================================================================
m           running row maximum of the unscaled scores
l           running row sum of the weights exp(scale * s - scale * m)
m_before    m before the current tile of keys
shift       scale * m in base 2, or 0 in a row with no visible key so far
decay       factor exp2(scale * m_before - shift) that rescales l and acc when m grows
added       row sum of the weights of the current tile
==========  ====================================================================================

Exponentials are in base 2, with log2(e) folded into the scale, as the hardware computes exp2. A row
with no visible key has m = -inf, and -inf - -inf is NaN; its exponent is shifted by 0 instead: all
weights are exp2(-inf) = 0, l stays 0, and the row stores out = 0 and lse = -inf.

A *sink* is a key of its head with a logit of its own and the value 0, which takes weight from all
other keys (as in gpt-oss; Xiao et al., 2023, https://arxiv.org/abs/2309.17453, use a token). It
only changes the initial state, to m = logit / scale and l = 1: a row with no visible key then
stores out = 0 and the logit as lse.

A row can also continue from the out and lse of another kernel over other keys. Together they act as
one key whose logit is lse and whose value is out, so attention to several ranges of keys needs no
merge pass.
"""

from dataclasses import dataclass
from functools import partial

import tilelang.language as T

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class InitialState:
    """The initial m and l of the rows of a head, and the lse of a row with no visible key.

    ``before``, if not None, is (out, lse) of other keys in float32, from which the rows continue.
    """

    m: object
    l: object
    lse: object
    before: tuple | None = None


def no_sink(_head, _scale):
    """The initial state without a sink."""
    nothing = -T.infinity("float32")
    return InitialState(m=nothing, l=0, lse=nothing)


def with_sink(logits, head, scale):
    """The initial state with the sink of the head, from `logits` [heads].

    A logit is finite, or -inf for no sink: with m = -inf, decay is 0 in the first tile and removes
    the initial l. A logit so low that logit / scale overflows behaves the same, and is still the
    lse of a row with no visible key.
    """
    logit = T.cast(logits[head], "float32")
    return InitialState(m=logit / scale, l=1, lse=logit)


def initial_state_of(sink):
    """`with_sink` of the logits, or `no_sink` for None."""
    return no_sink if sink is None else partial(with_sink, sink)


@dataclass(frozen=True)
class State:
    """The fragments of a block: s and p [queries, keys], acc [queries, width], others [queries].

    p is s in 16 bits, the operand of the second product.
    """

    s: object
    p: object
    acc: object
    m: object
    m_before: object
    shift: object
    decay: object
    added: object
    l: object


@T.macro
def alloc_state(rows, columns, width, dtype):
    """Allocate the fragments of `rows` queries and `columns` keys."""
    s = T.alloc_fragment([rows, columns], "float32")
    p = T.alloc_fragment([rows, columns], dtype)
    acc = T.alloc_fragment([rows, width], "float32")
    m = T.alloc_fragment([rows], "float32")
    m_before = T.alloc_fragment([rows], "float32")
    shift = T.alloc_fragment([rows], "float32")
    decay = T.alloc_fragment([rows], "float32")
    added = T.alloc_fragment([rows], "float32")
    l = T.alloc_fragment([rows], "float32")
    return State(s, p, acc, m, m_before, shift, decay, added, l)


@T.macro
def init_state(m, l, initial):
    """Set m and l to the initial state."""
    T.fill(l, initial.l)
    T.fill(m, initial.m)


@T.macro
def load_state(acc, m, l, before, queries, query, head, scale, head_dim_v):
    """Continue from (out, lse) of other keys; lse is -inf in a row that had no visible key."""
    rows, width = acc.shape
    for i in T.Parallel(rows):
        m[i] = T.if_then_else(
            queries.contains(query + i),
            before[1][queries.statistic(head, query + i)] / scale,
            -T.infinity("float32"),
        )
    for i in T.Parallel(rows):
        l[i] = T.if_then_else(m[i] == -T.infinity("float32"), 0.0, 1.0)
    for i, d in T.Parallel(rows, width):
        acc[i, d] = T.if_then_else(
            T.And(queries.contains(query + i), d < head_dim_v),
            before[0][queries.index(head, query + i, d)],
            0.0,
        )


@T.macro
def apply_mask(s, mask, query, key):
    """Set the scores [queries, keys] of masked pairs to -inf; skipped if the tile has none."""
    rows, columns = s.shape
    if mask.needs_mask(query, rows, key, columns):
        # Bound to registers: else each condition has the expressions of both in it, and TileLang's
        # passes need twice the time.
        first_query = T.alloc_var("int32", init=query)
        first_key = T.alloc_var("int32", init=key)
        for i, j in T.Parallel(rows, columns):
            visible = mask.attends(first_query + i, first_key + j)
            s[i, j] = T.Select(visible, s[i, j], -T.infinity("float32"))


@T.macro
def online_softmax(state, scale_log2):
    """Replace a tile of scores by weights, and update m and l; `decay` is the factor of acc."""
    s, m, l, added = state.s, state.m, state.l, state.added
    m_before, shift, decay = state.m_before, state.shift, state.decay
    rows, columns = s.shape
    T.copy(m, m_before)
    T.reduce_max(s, m, dim=1, clear=False)
    for i in T.Parallel(rows):
        shift[i] = T.if_then_else(m[i] == -T.infinity("float32"), 0.0, m[i] * scale_log2)
    for i in T.Parallel(rows):
        decay[i] = T.exp2(m_before[i] * scale_log2 - shift[i])
    for i, j in T.Parallel(rows, columns):
        s[i, j] = T.exp2(s[i, j] * scale_log2 - shift[i])
    T.reduce_sum(s, added, dim=1)
    for i in T.Parallel(rows):
        l[i] = l[i] * decay[i] + added[i]


@T.macro
def normalize(acc, l):
    """Divide acc [queries, head_dim_v] by l; 0 in rows with l = 0."""
    rows, width = acc.shape
    for i, d in T.Parallel(rows, width):
        acc[i, d] = T.if_then_else(l[i] == 0.0, 0.0, acc[i, d] / l[i])


@T.macro
def store_lse(lse, m, l, initial, queries, query, head, scale):
    """Write lse = scale * m + ln(l) of the rows in the sequence."""
    rows = T.alloc_var("int32", init=queries.length - query)  # see `apply_mask`
    for i in T.Parallel(m.shape[0]):
        if i < rows:
            lse[queries.statistic(head, query + i)] = T.if_then_else(
                l[i] == 0.0, initial.lse, m[i] * scale + T.log(l[i])
            )
