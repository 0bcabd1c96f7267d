"""Metamorphic relations of attention: isolation, poison, repeated calls, and identities.

An identity changes the order, the memory layout, the number of heads or the mask, but not the
mathematics. It applies only if the spec covers the other problem: its axis lists the needed value,
and the constraints allow it.

The seed of a case selects the sequence, head or permutation of a relation: a case costs few runs,
and a matrix tries many. Problems are built lazily, as relations are iterated over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from tlmatrix.dtypes import torch_dtype
from tlmatrix.problem.attention.axes import CACHE_LAYOUTS, sink_kind
from tlmatrix.problem.attention.inputs import generate_replacements, low_scores, shape_of
from tlmatrix.problem.attention.placement import packed
from tlmatrix.problem.distributions import permutation, poison_scale, seeded_random
from tlmatrix.problem.model import Relation, judged_alone
from tlmatrix.problem.relations import balanced_lengths, repeated, untouched
from tlmatrix.problem.relations.batch import NEW, Batch, NotComposableError, place, select

if TYPE_CHECKING:
    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.attention.build import Attention
    from tlmatrix.problem.model import Problem, RelationKind, Tensors
    from tlmatrix.problem.relations.batch import Along
    from tlmatrix.spec.values import Value

_OF_MASKS = 3
"""Of this many padded cases, one is called without the mask of each side."""
_OF_LOW_SCORES = 2
"""Of this many cases, one is called with scores far below 0."""
_OPERANDS = ("q", "k", "v", "do")
_OF_KEYS = frozenset({"k", "v", "dk", "dv"})


def attention_relations(case: Attention, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind for an attention case, in the shapes of its layout."""
    for relation in _packed_relations(case, kind):
        padded = case.setting.padded
        yield _between_padded(relation, case.structure.padding.masks) if padded else relation


def _packed_relations(case: Attention, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind, between packed results."""
    yield from AttentionBatch(case).relations(kind)
    match kind:
        case "isolation":
            yield from _isolated_heads(case)
        case "repeat":
            yield _repeat(case)
        case "relations":
            for identity in _IDENTITIES:
                found = identity(case)
                if found is not None:
                    yield found


def _between_padded(relation: Relation, masks: Mapping[str, torch.Tensor]) -> Relation:
    """A relation between padded results; `masks` are those of the original problem."""

    def results_packed(results: Sequence[Tensors]) -> list[Tensors]:
        problems = zip(results, relation.problems, strict=True)
        return [packed(each, problem.names) for each, problem in problems]

    rounded = relation.rounded
    return replace(
        relation,
        left=lambda mine: relation.left(packed(mine, masks)),
        right=lambda results: relation.right(results_packed(results)),
        rounded=rounded and (lambda results: rounded(results_packed(results))),
    )


# Sequences and heads ------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionBatch(Batch):
    """The sequences of an attention case; dense ones are the elements of its batch dimension."""

    case: Attention

    @property
    def seed(self) -> int:
        """See `Batch`."""
        return self.case.setup.seed

    @property
    def lengths(self) -> Sequence[tuple[int, int]]:
        """See `Batch`."""
        return list(zip(self.case.setting.lengths_q, self.case.setting.lengths_k, strict=True))

    @property
    def poison(self) -> float:
        """See `Batch`; of v and do: huge q and k give probabilities of 0 or 1, which hide leaks."""
        return poison_scale(self.case.setting.dtype)

    @property
    def summed(self) -> tuple[str, ...]:
        """See `Batch`."""
        return ("dsink",)

    def along(self, name: str) -> Along:
        """See `Batch`."""
        return _along(self.case.setting, name)

    def composed(self, origins: Sequence[int], lengths: Sequence[int], factor: float = 1.0) -> Self:
        """See `Batch`."""
        case, setup, setting = self.case, self.case.setup, self.case.setting
        new = [number for number, origin in enumerate(origins) if origin == NEW]
        kept = [number for number, origin in enumerate(origins) if origin != NEW]
        other = _selected(setting, lengths)
        fresh = None
        if new:
            replaced = _selected(setting, [lengths[number] for number in new])
            fresh = generate_replacements(replaced, setup.seed + 1, setup.device)
        tensors = {}
        for name in _OPERANDS:
            old = getattr(case.operands, name)
            part = select(old, _along(setting, name), [origins[number] for number in kept])
            tensors[name] = made = old.new_empty(shape_of(other, name))
            place(made, _along(other, name), kept, part)
            if fresh is not None:
                values = getattr(fresh, name) * (factor if name in ("v", "do") else 1)
                place(made, _along(other, name), new, values)
        if other == setting:
            return replace(self, case=case.with_tensors(**tensors))
        made_values: dict[str, Value] = {
            "seqlens": {"q": list(other.lengths_q), "k": list(other.lengths_k)},
            "batch": other.batch,
        }
        values = {axis: value for axis, value in made_values.items() if axis in setup.values}
        if not setup.satisfies_where({**setup.values, **values}):
            raise NotComposableError
        operands = replace(case.operands, **tensors)
        changed = {"lengths_q": other.lengths_q, "lengths_k": other.lengths_k}
        return replace(self, case=case.changed(values, operands, **changed))

    def problem(self) -> Problem:
        """See `Batch`."""
        return self.case.problem()


def _along(setting: Setting, name: str) -> Along:
    """The number of elements of each sequence of a tensor, by the dimension they lie along."""
    if name in ("sink", "dsink"):
        return {}
    if not setting.packed:
        return {0: (1,) * setting.batch}
    lengths = setting.lengths_k if name in _OF_KEYS else setting.lengths_q
    return {1 if setting.rows_last and name == "lse" else 0: lengths}


def _selected(setting: Setting, order: Sequence[int]) -> Setting:
    """The setting of the sequences `order`, in that order."""
    return replace(
        setting,
        lengths_q=tuple(setting.lengths_q[number] for number in order),
        lengths_k=tuple(setting.lengths_k[number] for number in order),
    )


def _head_dim(setting: Setting, name: str) -> int:
    """The head dimension of an operand, output or gradient."""
    if name == "dsink":
        return 0
    if name == "lse":
        return 0 if setting.rows_last else 1
    return 2 if setting.layout == "bshd" else 1


def _isolated_heads(case: Attention) -> Iterator[Relation]:
    """New values in a kv head and its query heads must not change the other heads."""
    setting, pick = case.setting, seeded_random(case.setup.seed)
    if setting.kv_heads < 2:
        return
    if setting.batch > 1:
        pick.random()  # selects the sequence of another relation
    group = pick.randrange(setting.kv_heads)
    other = generate_replacements(
        replace(setting, kv_heads=1), case.setup.seed + 2, case.setup.device
    )

    def heads(name: str) -> tuple[int, dict[int, tuple[int, ...]]]:
        """The heads of a group, and the head dimension as that of groups."""
        count = 1 if name in _OF_KEYS else setting.groups
        return count, {_head_dim(setting, name): (count,) * setting.kv_heads}

    tensors = {}
    for name in _OPERANDS:
        tensors[name] = getattr(case.operands, name).clone()
        place(tensors[name], heads(name)[1], [group], getattr(other, name))
    others = [each for each in range(setting.kv_heads) if each != group]
    yield untouched(
        "isolation_head",
        "isolation",
        case.with_tensors(**tensors).problem(),
        lambda results: {
            name: select(tensor, heads(name)[1], others) for name, tensor in results.items()
        },
        f"other values in kv head {group} and its query heads must change no bit of another",
    )


# Repeated calls -----------------------------------------------------------------------------------


def _repeat(case: Attention) -> Relation:
    setup, setting = case.setup, case.setting
    operands = generate_replacements(setting, setup.seed + 3, setup.device)
    other = replace(case, operands=operands, distribution="normal")
    if setting.has_cache:  # other pages, too
        other = replace(other, placement=case.placement + 2)
    because = "a second call with other data must not remember the first, nor the third the second"
    values: dict[str, Value] = {}
    changed: dict[str, Any] = {}
    scale = _other_scale(case)
    if scale is not None:
        values["scale"] = changed["scale"] = scale
        because = because.replace("other data", "other data and another scale")
    lengths = _other_lengths(setting)
    seqlens = {"seqlens": {side: list(each) for side, each in lengths.items()}}
    if lengths and setup.satisfies_where({**setup.values, **values, **seqlens}):
        changed |= {f"lengths_{side}": each for side, each in lengths.items()}
        values |= seqlens
    if replace(setting, **changed) != setting:
        other = other.changed(values, **changed)
    return repeated(other.problem(), case.problem(), because)


def _other_lengths(setting: Setting) -> dict[str, tuple[int, ...]]:
    """Lengths of another batch whose tensors have the same sizes, by side; empty if there is none.

    Those of packed sequences have another longest sequence.
    """
    sides = {"q": setting.lengths_q, "k": setting.lengths_k}
    if setting.layout == "thd":
        return {side: balanced_lengths(lengths) for side, lengths in sides.items()}
    if setting.has_cache or setting.padded:
        return {side: lengths[::-1] for side, lengths in sides.items()}
    return {}


def _other_scale(case: Attention) -> float | None:
    """Another value of the axis `scale`; None if the spec allows no other."""
    for value in _covered(case, "scale"):
        if isinstance(value, int | float):
            return float(value)
    if case.setup.values.get("scale") is not None and case.setup.covers({"scale": None}):
        return float(case.setting.head_dim**-0.5)
    return None


def _covered(case: Attention, axis: str) -> list[Value]:
    """The other values that the spec lists for an axis and allows in the case."""
    mine, setup = case.setup.values.get(axis), case.setup
    return [
        value
        for value in setup.spec.axes.get(axis, ())
        if value != mine and setup.covers({axis: value})
    ]


# Identities ---------------------------------------------------------------------------------------


def _heads_repeated(case: Attention) -> Relation | None:
    setting, setup = case.setting, case.setup
    if setting.groups == 1:
        return None
    unshared: dict[str, Value] = {"heads": setting.heads, "kv_heads": setting.heads, "groups": 1}
    values = {axis: value for axis, value in unshared.items() if axis in setup.values}
    axis = "groups" if "groups" in setup.values else "kv_heads"
    listed = setup.spec.axes.get(axis, ())
    if unshared[axis] not in listed or not setup.satisfies_where({**setup.values, **values}):
        return None
    dim = _head_dim(setting, "k")
    copies = {
        name: getattr(case.operands, name).repeat_interleave(setting.groups, dim) for name in "kv"
    }
    operands = replace(case.operands, **copies)
    copied = case.changed(values, operands, kv_heads=setting.heads, groups=1)

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

    return Relation(
        "groups_as_repeated_heads",
        "relations",
        (copied.problem(),),
        right=summed,
        because=f"{setting.groups} query heads that share a kv head must give the same as with a "
        "copy of it each; dk and dv are sums over the copies",
        rounded=rounded,
    )


def _window_as_long(case: Attention) -> Relation | None:
    setting, setup = case.setting, case.setup
    # With top-left alignment, the distance of a key is at most the number of queries.
    ends = setting.lengths_k if setting.alignment == "bottom_right" else setting.lengths_q
    longest = max(1, *setting.lengths_k, *ends)
    listed = setup.spec.axes.get("window", ())
    if not setting.causal or all(value is None for value in listed):
        return None
    window: int | None = None
    if setting.window is None:
        fuzz = setup.spec.fuzz
        # A kernel may take the listed windows alone, such as multiples of its tile.
        free = fuzz is not None and "window" in fuzz.axes
        long = [value for value in listed if isinstance(value, int) and value >= longest]
        if not free and not long:
            return None
        window = longest if free else min(long)
    elif setting.window < longest or None not in listed:
        return None
    if not setup.satisfies_where({**setup.values, "window": window}):
        return None
    return Relation(
        "window_as_long_as_keys",
        "relations",
        (case.changed({"window": window}, window=window).problem(),),
        because=f"a window of at least {longest}, the longest sequence, must give the same as none",
    )


def _sink_of_minus_infinity(case: Attention) -> Relation | None:
    setting = case.setting
    sinks = [value for value in _covered(case, "sink") if sink_kind(value)]
    if setting.sink is not None or not sinks:
        return None
    dtype = torch_dtype(setting.sink_dtype)
    absent = torch.full((setting.heads,), -torch.inf, dtype=dtype, device=case.setup.device)
    operands = replace(case.operands, sink=absent)
    other = case.changed({"sink": sinks[0]}, operands, sink=sink_kind(sinks[0]))
    return Relation(
        "sink_of_minus_infinity",
        "relations",
        (other.problem(),),
        right=lambda results: {name: each for name, each in results[0].items() if name != "dsink"},
        because="a sink of -inf must give the same as no sink",
    )


def _low_scores(case: Attention) -> Relation | None:
    """A forward pass in which all scores are far below 0, and equal: keys weigh the same.

    Where a maximum begins at a finite number, or masked scores have one, as -1e4, it is wrong.
    """
    if case.setup.seed // 5 % _OF_LOW_SCORES or case.operands.sink is not None:
        return None
    changed = low_scores(case.setting, case.operands)
    if changed is None or "out" not in case.problem().outputs:
        return None
    low = case.with_tensors(**changed).problem()

    def lowp() -> Tensors:
        # Float32 rounds the maximum.
        rounded = {n: each * (1 + 2.0**-21) for n, each in low.reference().items() if n == "lse"}
        return {**low.lowp(), **rounded}

    outputs = {name: info for name, info in low.outputs.items() if name in ("out", "lse")}
    return judged_alone(
        "low_scores",
        replace(low, cotangents={}, gradient_of={}, outputs=outputs, lowp=lowp),
        because="all scores are equal and about -2**18: is there a finite number below which a "
        "kernel takes scores for masked ones?",
    )


def _sink_merged(case: Attention) -> Relation | None:
    """With lse of the row without a sink: out * sigmoid(lse - sink), and logaddexp(lse, sink)."""
    setting, sink = case.setting, case.operands.sink
    if sink is None or not case.setup.covers({"sink": None}):
        return None
    other = case.changed({"sink": None}, replace(case.operands, sink=None), sink=None)

    def both(mine: Tensors) -> Tensors:  # An entry may return only out.
        return {name: mine[name] for name in ("out", "lse") if "lse" in mine}

    def merged(results: Sequence[Tensors]) -> Tensors:
        if "lse" not in results[0]:
            return {}
        lse = results[0]["lse"].double()
        ends = [1] * (lse.dim() - 1 - _head_dim(setting, "lse"))
        logit = sink.double().view(-1, *ends).expand_as(lse)
        has_keys = lse > -torch.inf
        kept = torch.sigmoid(torch.where(has_keys, lse - logit, -torch.inf))
        kept = kept if setting.lse_as_out else kept.transpose(-1, -2)
        return {"out": results[0]["out"] * kept[..., None], "lse": torch.logaddexp(lse, logit)}

    return Relation(
        "sink_merged_afterwards",
        "relations",
        (other.problem(),),
        both,
        merged,
        because="a sink must scale each row by the softmax weight it leaves, and add exp(sink) to "
        "exp(lse)",
    )


def _keys_permuted(case: Attention) -> Relation | None:
    setting = case.setting
    candidates = [number for number, length in enumerate(setting.lengths_k) if length > 1]
    if setting.causal or not candidates:
        return None
    pick = seeded_random(case.setup.seed)
    number = pick.choice(candidates)
    order = torch.tensor(permutation(pick, setting.lengths_k[number])).to(case.setup.device)
    rows = 2 if setting.layout == "bhsd" else int(not setting.packed)

    def reordered(name: str, tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        made, along = tensor.clone(), _along(setting, name)
        place(made, along, [number], select(tensor, along, [number]).index_select(rows, index))
        return made

    moved = {name: reordered(name, getattr(case.operands, name), order) for name in "kv"}
    inverse = order.argsort()

    def back(results: Sequence[Tensors]) -> Tensors:
        return {
            name: reordered(name, tensor, inverse) if name in ("dk", "dv") else tensor
            for name, tensor in results[0].items()
        }

    return Relation(
        "keys_permuted",
        "relations",
        (case.with_tensors(**moved).problem(),),
        right=back,
        because=f"permuting the keys of sequence {number}, without a causal mask, must change "
        "nothing",
    )


def _other_layout(case: Attention) -> Relation | None:
    setting, setup = case.setting, case.setup
    others = [str(layout) for layout in _covered(case, "layout")]
    if "layout" not in setup.values or "seqlens" in setup.values or not others:
        return None
    layout = seeded_random(setup.seed).choice(others)
    tensors = {
        name: _converted(setting, setting.layout, layout, name, getattr(case.operands, name))
        for name in _OPERANDS
    }
    other = case.changed({"layout": layout}, replace(case.operands, **tensors), layout=layout)
    back = partial(_converted, setting, layout, setting.layout)
    return Relation(
        "other_layout",
        "relations",
        (other.problem(),),
        right=lambda results: {name: back(name, tensor) for name, tensor in results[0].items()},
        because=f"the same tensors in the layout {layout} must give the same results",
    )


def _converted(
    setting: Setting, source: str, target: str, name: str, tensor: torch.Tensor
) -> torch.Tensor:
    """A tensor of sequences of equal lengths, converted from layout `source` to `target`."""
    if source == target or name == "dsink":
        return tensor
    batch = setting.batch
    if name == "lse":  # packed [heads, batch * row], else [batch, heads, row]
        if source == "thd":
            return tensor.reshape(tensor.shape[0], batch, -1).transpose(0, 1).contiguous()
        return tensor.transpose(0, 1).flatten(1) if target == "thd" else tensor
    rows_first = tensor
    if source == "thd":
        rows_first = tensor.reshape(batch, -1, *tensor.shape[1:])
    elif source == "bhsd":
        rows_first = tensor.transpose(1, 2)
    if target == "thd":
        return rows_first.flatten(0, 1)
    return rows_first.contiguous() if target == "bshd" else rows_first.transpose(1, 2).contiguous()


def _other_padding(case: Attention) -> Relation | None:
    others = [str(padding) for padding in _covered(case, "padding")]
    if not case.setting.padded or not others:
        return None
    padding = seeded_random(case.setup.seed).choice(others)
    return Relation(
        "other_padding",
        "relations",
        (case.changed({"padding": padding}).problem(),),
        because=f"the same tokens with padding {padding} must give the same results",
    )


def _without_mask(side: str, case: Attention) -> Relation | None:
    """A call without the mask of a side, all of whose positions are tokens, beside padding."""
    setting, setup = case.setting, case.setup
    if not setting.padded or setting.shared_mask or setup.seed // 5 % _OF_MASKS:
        return None
    other = "k" if side == "q" else "q"
    # As many positions as the other side has: its mask could be taken for the missing one.
    size = case.structure.padding.masks[f"mask_{other}"].shape[1]
    most = setting.max_seqlen_q if side == "q" else setting.max_seqlen_k
    lengths = {"q": setting.lengths_q, "k": setting.lengths_k} | {side: (size,) * setting.batch}
    values: dict[str, Value] = {"seqlens": {name: list(each) for name, each in lengths.items()}}
    if not size or (most is not None and most < size):
        return None
    if not setup.satisfies_where({**setup.values, **values}):
        return None
    changed: dict[str, Any] = {f"lengths_{side}": lengths[side], "unmasked": side}
    operands = generate_replacements(replace(setting, **changed), setup.seed + 4, setup.device)
    without = case.changed(values, operands, **changed).problem()
    return judged_alone(
        "without_mask",
        replace(without, left_out=(f"mask_{side}",)),
        because=f"called without mask_{side}, so that all positions of that side are tokens",
    )


def _pages_moved(case: Attention) -> Relation | None:
    if case.setting.page_size is None:
        return None
    moved = replace(case, placement=case.placement + 1)
    return Relation(
        "pages_moved",
        "relations",
        (moved.problem(),),
        exact=True,
        because="the same keys in other pages, with their block table, must change no bit",
    )


def _other_page_size(case: Attention) -> Relation | None:
    own, listed = case.setting.page_size, case.setup.spec.axes.get("page_size", ())
    others = [size for size in listed if isinstance(size, int) and size != own]
    if own is None or not others:
        return None
    size = others[case.setup.seed % len(others)]
    if not case.setup.covers({"page_size": size}):
        return None
    return Relation(
        "other_page_size",
        "relations",
        (case.changed({"page_size": size}, page_size=size).problem(),),
        because=f"the same keys in pages of {size} must give the same results",
    )


def _other_cache_layout(case: Attention) -> Relation | None:
    if not case.setting.has_cache:
        return None
    (layout,) = (each for each in CACHE_LAYOUTS if each != case.setting.layout)
    size = case.setup.values.get("page_size")
    if not case.setup.covers({"layout": layout}) or not isinstance(size, int):
        return None
    page_size = size if layout == "paged" else None
    return Relation(
        "other_cache_layout",
        "relations",
        (case.changed({"layout": layout}, layout=layout, page_size=page_size).problem(),),
        because=f"the same keys in the layout {layout} must give the same results",
    )


_IDENTITIES = (
    _heads_repeated,
    _window_as_long,
    _sink_of_minus_infinity,
    _low_scores,
    _sink_merged,
    _keys_permuted,
    _other_layout,
    _other_padding,
    partial(_without_mask, "q"),
    partial(_without_mask, "k"),
    _pages_moved,
    _other_page_size,
    _other_cache_layout,
)
