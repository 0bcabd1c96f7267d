"""Mathematical identities of attention: other problems with equivalent results.

Each changes the order, the memory layout, the number of heads or the mask, but not the mathematics.
An identity applies only if the spec covers the other problem: its axis lists the needed value, and
the constraints allow it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from tlmatrix.dtypes import torch_dtype
from tlmatrix.problem.attention.layouts import convert
from tlmatrix.problem.attention.reference import Operands
from tlmatrix.problem.attention.sinks import sink_kind
from tlmatrix.problem.model import Relation
from tlmatrix.problem.relations.attention_kv_cache import kv_cache_identities
from tlmatrix.problem.relations.attention_sequences import (
    head_dim,
    join_sequences,
    other_operands,
    prepend_sequence,
    select_results,
    select_sequences,
    some_sequence,
    split_sequences,
)
from tlmatrix.problem.seeded import permutation, seeded_random

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.problem.attention.build import Attention
    from tlmatrix.problem.model import Problem, Tensors
    from tlmatrix.spec.values import Value


def identities(case: Attention) -> Iterator[Relation]:
    """The identities that apply to the case, built lazily.

    Of the three that rearrange the batch, the seed of the case selects one.
    """
    of_batch = (_batch_permuted, _split, _extended) if case.setting.batch > 1 else (_extended,)
    for make in (
        of_batch[case.setup.seed % len(of_batch)],
        _heads_repeated,
        _window_as_long,
        _sink_of_minus_infinity,
        _sink_merged,
        _keys_permuted,
        _other_layout,
        _other_padding,
    ):
        yield from make(case)
    yield from kv_cache_identities(case)


def _identity(
    name: str,
    problems: tuple[Problem, ...],
    right: Callable[[Sequence[Tensors]], Tensors],
    because: str,
    left: Callable[[Tensors], Tensors] = lambda mine: mine,
    rounded: Callable[[Sequence[Tensors]], Tensors] | None = None,
) -> Iterator[Relation]:
    yield Relation(name, "relations", problems, left, right, because=because, rounded=rounded)


def _batch_permuted(case: Attention) -> Iterator[Relation]:
    setting = case.setting
    order = permutation(seeded_random(case.setup.seed), setting.batch)
    moved = select_sequences(case, order)
    if not case.setup.satisfies_where(moved.setup.values):
        return

    def back(results: Sequence[Tensors]) -> Tensors:
        found = {}
        for name, tensor in results[0].items():
            found[name] = tensor
            if name != "dsink":
                pieces = split_sequences(moved.setting, name, tensor)
                found[name] = join_sequences(
                    setting, name, [pieces[order.index(n)] for n in range(len(order))]
                )
        return found

    yield from _identity(
        "batch_permuted",
        (moved.problem(),),
        back,
        f"permuting the sequences to {order} must permute the results",
    )


def _split(case: Attention) -> Iterator[Relation]:
    setting = case.setting
    cut = seeded_random(case.setup.seed).randrange(1, setting.batch)
    halves = [select_sequences(case, range(cut)), select_sequences(case, range(cut, setting.batch))]
    if not all(case.setup.satisfies_where(half.setup.values) for half in halves):
        return

    def together(results: Sequence[Tensors]) -> Tensors:
        first, second = results
        return {
            name: tensor + second[name]
            if name == "dsink"
            else join_sequences(setting, name, [tensor, second[name]])
            for name, tensor in first.items()
        }

    yield from _identity(
        "batch_split",
        tuple(half.problem() for half in halves),
        together,
        f"the batch split before sequence {cut}, in two calls, must give the same results",
    )


def _extended(case: Attention) -> Iterator[Relation]:
    """One more sequence in front, which moves the others in memory."""
    setting = case.setting
    model = some_sequence(case, seeded_random(case.setup.seed).random())
    longer = prepend_sequence(case, model, other_operands(case, [model]))
    if not case.setup.satisfies_where(longer.setup.values):
        return
    keep = range(1, setting.batch + 1)
    yield from _identity(
        "batch_extended",
        (longer.problem(),),
        lambda results: select_results(longer.setting, results[0], keep=keep),
        f"a sequence as long as {model}, in front of the batch, must not change the others",
        left=lambda mine: {name: tensor for name, tensor in mine.items() if name != "dsink"},
    )


def _heads_repeated(case: Attention) -> Iterator[Relation]:
    setting, setup = case.setting, case.setup
    if setting.groups == 1:
        return
    unshared: dict[str, Value] = {"heads": setting.heads, "kv_heads": setting.heads, "groups": 1}
    values = {**setup.values, **{axis: unshared[axis] for axis in unshared if axis in setup.values}}
    axis = "groups" if "groups" in setup.values else "kv_heads"
    if unshared[axis] not in setup.spec.axes.get(axis, ()) or not setup.satisfies_where(values):
        return
    dim = head_dim(case.setting, "k")
    copied = case.with_setting(
        replace(setting, kv_heads=setting.heads, groups=1),
        values,
        replace(
            case.operands,
            k=case.operands.k.repeat_interleave(setting.groups, dim),
            v=case.operands.v.repeat_interleave(setting.groups, dim),
        ),
    )

    def over_copies(gradient: torch.Tensor) -> torch.Tensor:
        shape = list(gradient.shape)
        shape[dim : dim + 1] = [setting.kv_heads, setting.groups]
        return gradient.reshape(shape).sum(dim + 1, dtype=torch.float64)

    def summed(results: Sequence[Tensors]) -> Tensors:
        found = dict(results[0])
        return found | {name: over_copies(found[name]) for name in ("dk", "dv") if name in found}

    def rounded(results: Sequence[Tensors]) -> Tensors:
        found = results[0]
        return {name: over_copies(found[name].abs()) for name in ("dk", "dv") if name in found}

    yield from _identity(
        "groups_as_repeated_heads",
        (copied.problem(),),
        summed,
        f"{setting.groups} query heads that share a kv head must give the same as with a copy of "
        "it each; dk and dv are sums over the copies",
        rounded=rounded,
    )


def _window_as_long(case: Attention) -> Iterator[Relation]:
    setting, setup = case.setting, case.setup
    # With top-left alignment, the distance of a key is at most the number of queries.
    ends = setting.lengths_k if setting.alignment == "bottom_right" else setting.lengths_q
    longest = max(1, *setting.lengths_k, *ends)
    listed = setup.spec.axes.get("window", ())
    if not setting.causal or all(value is None for value in listed):
        return
    if setting.window is None:
        fuzz = setup.spec.fuzz
        # A kernel may take the listed windows alone, such as multiples of its tile.
        free = fuzz is not None and "window" in fuzz.axes
        long = [value for value in listed if isinstance(value, int) and value >= longest]
        if not free and not long:
            return
        window: int | None = longest if free else min(long)
    elif setting.window >= longest and None in listed:
        window = None
    else:
        return
    values = {**setup.values, "window": window}
    if not setup.satisfies_where(values):
        return
    other = case.with_setting(replace(setting, window=window), values, case.operands)
    yield from _identity(
        "window_as_long_as_keys",
        (other.problem(),),
        lambda results: results[0],
        f"a window of at least {longest}, the longest sequence, must give the same as none",
    )


def _sink_of_minus_infinity(case: Attention) -> Iterator[Relation]:
    setting, setup = case.setting, case.setup
    listed = setup.spec.axes.get("sink", ())
    sinks = [value for value in listed if sink_kind(value) and setup.covers({"sink": value})]
    if setting.sink is not None or not sinks:
        return
    dtype = torch_dtype(setting.sink_dtype)
    absent = torch.full((setting.heads,), -torch.inf, dtype=dtype, device=setup.device)
    other = case.with_setting(
        replace(setting, sink=sink_kind(sinks[0])),
        {**setup.values, "sink": sinks[0]},
        replace(case.operands, sink=absent),
    )
    yield from _identity(
        "sink_of_minus_infinity",
        (other.problem(),),
        lambda results: {name: each for name, each in results[0].items() if name != "dsink"},
        "a sink of -inf must give the same as no sink",
    )


def _sink_merged(case: Attention) -> Iterator[Relation]:
    """With lse of the row without a sink: out * sigmoid(lse - sink), and logaddexp(lse, sink)."""
    setting, setup, sink = case.setting, case.setup, case.operands.sink
    if sink is None or not setup.covers({"sink": None}):
        return
    other = case.with_setting(
        replace(setting, sink=None),
        {**setup.values, "sink": None},
        replace(case.operands, sink=None),
    )

    def both(mine: Tensors) -> Tensors:  # An entry may return only out.
        return {name: mine[name] for name in ("out", "lse") if "lse" in mine}

    def merged(results: Sequence[Tensors]) -> Tensors:
        if "lse" not in results[0]:
            return {}
        lse = results[0]["lse"].double()
        ends = [1] * (lse.dim() - 1 - head_dim(setting, "lse"))
        logit = sink.double().view(-1, *ends).expand_as(lse)
        has_keys = lse > -torch.inf
        kept = torch.sigmoid(torch.where(has_keys, lse - logit, -torch.inf))
        kept = kept if setting.lse_as_out else kept.transpose(-1, -2)
        return {"out": results[0]["out"] * kept[..., None], "lse": torch.logaddexp(lse, logit)}

    yield from _identity(
        "sink_merged_afterwards",
        (other.problem(),),
        merged,
        "a sink must scale each row by the softmax weight it leaves, and add exp(sink) to exp(lse)",
        left=both,
    )


def _keys_permuted(case: Attention) -> Iterator[Relation]:
    setting = case.setting
    candidates = [number for number, length in enumerate(setting.lengths_k) if length > 1]
    if setting.causal or not candidates:
        return
    pick = seeded_random(case.setup.seed)
    number = pick.choice(candidates)
    order = torch.tensor(permutation(pick, setting.lengths_k[number])).to(case.setup.device)
    rows = 2 if setting.layout == "bhsd" else int(not setting.packed)

    def reordered(name: str, tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        pieces = list(split_sequences(setting, name, tensor))
        pieces[number] = pieces[number].index_select(rows, index)
        return join_sequences(setting, name, pieces)

    moved = case.with_tensors(
        k=reordered("k", case.operands.k, order), v=reordered("v", case.operands.v, order)
    )
    inverse = order.argsort()

    def back(results: Sequence[Tensors]) -> Tensors:
        return {
            name: reordered(name, tensor, inverse) if name in ("dk", "dv") else tensor
            for name, tensor in results[0].items()
        }

    yield from _identity(
        "keys_permuted",
        (moved.problem(),),
        back,
        f"permuting the keys of sequence {number}, without a causal mask, must change nothing",
    )


def _other_layout(case: Attention) -> Iterator[Relation]:
    setting, setup = case.setting, case.setup
    listed = setup.spec.axes.get("layout", ())
    others = [str(each) for each in listed if each != setting.layout]
    others = [each for each in others if setup.covers({"layout": each})]
    if "layout" not in setup.values or "seqlens" in setup.values or not others:
        return
    layout = seeded_random(setup.seed).choice(others)
    to_other = partial(convert, setting, setting.layout, layout)
    operands = case.operands
    assert operands.do is not None
    other = case.with_setting(
        replace(setting, layout=layout),
        {**setup.values, "layout": layout},
        Operands(
            to_other("q", operands.q), to_other("k", operands.k), to_other("v", operands.v),
            to_other("do", operands.do), operands.sink,
        ),
    )  # fmt: skip
    yield from _identity(
        "other_layout",
        (other.problem(),),
        lambda results: {
            name: convert(setting, layout, setting.layout, name, tensor)
            for name, tensor in results[0].items()
        },
        f"the same tensors in the layout {layout} must give the same results",
    )


def _other_padding(case: Attention) -> Iterator[Relation]:
    setup = case.setup
    listed = [str(each) for each in setup.spec.axes.get("padding", ())]
    others = [each for each in listed if each != setup.values.get("padding")]
    others = [each for each in others if setup.covers({"padding": each})]
    if not case.setting.padded or not others:
        return
    padding = seeded_random(setup.seed).choice(others)
    other = case.with_setting(case.setting, {**setup.values, "padding": padding}, case.operands)
    yield from _identity(
        "other_padding",
        (other.problem(),),
        lambda results: results[0],
        f"the same tokens with padding {padding} must give the same results",
    )
