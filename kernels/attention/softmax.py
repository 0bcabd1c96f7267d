"""The online softmax of a tile of queries: what every forward block does between its two products.

Milakov and Gimelshein, 2018 (https://arxiv.org/abs/1805.02867), as FlashAttention-2 arranges it. A
block holds for each of its query rows, in float32 fragments of [queries]:

==========  ====================================================================================
m           running maximum of the unscaled scores the row has seen
l           running sum of the row's weights exp(scale * s - scale * m)
m_before    m before the tile at hand
shift       scale * m in base 2, or 0 in a row that has seen no key
decay       what sums made before the tile must be multiplied by, now that m has grown
added       the tile's share of l
==========  ====================================================================================

Exponentials are taken in base 2, with log2(e) folded into the scale: that is what the hardware
has. A row that has seen no key holds m = -inf, and -inf minus -inf is NaN, so the exponent is
shifted by 0 instead: all its weights are exp2(-inf) = 0, its l stays 0, and it stores out 0 and
lse -inf.

A row may have a *sink*: a key of its head with a logit of its own and the value 0, which takes
weight from all others (as in gpt-oss; Xiao et al., 2023, https://arxiv.org/abs/2309.17453, have a
token for it). That is all in how a row starts, with m = logit / scale and l = 1: a row that then
sees no key stores out 0 and the logit as its lse.

A row may go on from where another kernel left it, with other keys: what that has stored is one key
more, whose logit is its lse and whose value is its out. So attention to keys in several parts needs
no pass of its own to merge them.
"""

from dataclasses import dataclass

import tilelang.language as T

__all__ = [
    "LOG2_E",
    "Origin",
    "absorb",
    "hide",
    "nothing_seen",
    "resume",
    "sink_seen",
    "start",
    "store_lse",
    "weigh",
]

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Origin:
    """How the rows of a head start: m and l, and the lse of a row that never sees a key.

    Where ``before`` is given, (out, lse) of other keys in float32, they start from that instead.
    """

    m: object
    l: object
    lse: object
    before: tuple | None = None


def nothing_seen(_head, _scale):
    """Rows start with nothing seen."""
    nothing = -T.infinity("float32")
    return Origin(m=nothing, l=0, lse=nothing)


def sink_seen(logits, head, scale):
    """Rows start with the sink of their head seen, of `logits` [heads].

    A logit is finite, or -inf, which is no sink: with m = -inf the first tile's decay is 0, and
    takes its l away. So it does with one so low that float32 has no unscaled score for it, which is
    still the lse of a row that sees no key.
    """
    logit = T.cast(logits[head], "float32")
    return Origin(m=logit / scale, l=1, lse=logit)


@T.macro
def start(m, l, origin):
    """No key seen yet."""
    T.fill(l, origin.l)
    T.fill(m, origin.m)


@T.macro
def resume(acc, m, l, before, queries, query, head, scale, head_dim_v):
    """Go on from out and lse of other keys; a row that saw none of them has lse -inf."""
    rows, width = acc.shape
    for i in T.Parallel(rows):
        m[i] = T.if_then_else(
            queries.holds(query + i),
            before[1][queries.statistic(head, query + i)] / scale,
            -T.infinity("float32"),
        )
    for i in T.Parallel(rows):
        l[i] = T.if_then_else(m[i] == -T.infinity("float32"), 0.0, 1.0)
    for i, d in T.Parallel(rows, width):
        acc[i, d] = T.if_then_else(
            T.And(queries.holds(query + i), d < head_dim_v),
            before[0][queries.index(head, query + i, d)],
            0.0,
        )


@T.macro
def hide(s, mask, query, key):
    """Set the scores [queries, keys] of pairs that do not see each other to -inf.

    Tiles in which every query sees every key skip the test.
    """
    rows, columns = s.shape
    if mask.cuts(query, rows, key, columns):
        for i, j in T.Parallel(rows, columns):
            s[i, j] = T.if_then_else(mask.sees(query + i, key + j), s[i, j], -T.infinity("float32"))


@T.macro
def absorb(s, m, m_before, shift, decay, added, l, scale_log2):
    """Turn a tile of scores into weights, and take it into m and l."""
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
def weigh(acc, l):
    """Divide the sums of weighted values [queries, head_dim_v] by the sums of weights."""
    rows, width = acc.shape
    for i, d in T.Parallel(rows, width):
        acc[i, d] = T.if_then_else(l[i] == 0.0, 0.0, acc[i, d] / l[i])


@T.macro
def store_lse(lse, m, l, origin, queries, query, head, scale):
    """Write scale * m + ln(l) of the rows that exist."""
    for i in T.Parallel(m.shape[0]):
        if queries.holds(query + i):
            lse[queries.statistic(head, query + i)] = T.if_then_else(
                l[i] == 0.0, origin.lse, m[i] * scale + T.log(l[i])
            )
