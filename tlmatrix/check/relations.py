"""Two ways to the same values: isolation, poison, relations, repeated calls and agreements.

A family says which problems must give what (`Problem.relations`); here they are run and
compared. Where a relation, or the case, does not ask for equal values, both sides may be off by
their allowance. The left side's is known; the right side's, of another problem with the same
data, is taken to be as large, which saves a float64 reference for every relation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.check.bits import alike
from tlmatrix.check.explain import explain
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.check.numeric import describe_mismatch, deviations, difference
from tlmatrix.check.tolerance import limits
from tlmatrix.problem.lazy_mapping import LazyMapping
from tlmatrix.problem.model import Dim
from tlmatrix.problem.sharding.shards import NotSharedError
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.check.numeric import Deviation
    from tlmatrix.check.tolerance import Yardstick
    from tlmatrix.problem.model import Pair, Problem, Relation, Tensors

__all__ = ["check_relation", "raised"]


def check_relation(
    relation: Relation,
    mine: Tensors,
    yardstick: Yardstick,
    execute: Callable[[Problem], Tensors],
    make_yardstick: Callable[[Problem, Tensors], Yardstick],
    *,
    deterministic: bool,
    in_a_row: Callable[[Sequence[Problem]], list[Tensors]] | None = None,
) -> list[Finding]:
    """Run a relation's problems and compare; `mine` are the results of the problem itself.

    Repeated calls are made by `in_a_row`, where there is one (`SeveralRanks.in_a_row`).

    An exception of the entry is a finding that names the relation, for the problem itself ran.
    """
    check = relation.kind
    results: list[Tensors] = []
    pair = None
    try:
        if relation.sides is not None:
            pair = relation.sides(mine, execute)
            if pair is None:
                return []
        if relation.kind == "repeat" and in_a_row is not None:
            # On one context, where buffers that take turns come round with the third call.
            results.extend(in_a_row([yardstick.problem, *relation.problems])[1:])
        elif relation.kind == "repeat":
            results.extend(map(execute, _in_one_memory(relation.problems)))
        else:
            results.extend(execute(problem) for problem in relation.problems)
    except NotSharedError:
        return []  # Ranks cannot share what the relation asks for.
    except Exception as error:
        if relation.refused is not None:
            return _refused(relation, error)
        if isinstance(error, SpecError) and relation.sides is not None:
            raise  # What the spec names is wrong, and not the entry.
        return [_named(raised(check, error), relation, relation.because)]
    if relation.refused is not None:
        return _refused(relation, None)
    exact = relation.exact and deterministic
    if pair is not None:
        differing = _apart(relation, pair, mine, yardstick, exact=exact)
    else:
        differing = _differences(relation, mine, results, yardstick, exact=exact)
    found = [_named(finding, relation, relation.because) for finding in differing]
    for number in relation.judge:
        theirs = make_yardstick(relation.problems[number], results[number])
        wrong = _judged(check, theirs, results[number])
        because = relation.because
        if wrong and relation.kind == "repeat":
            names = [finding.tensor for finding in wrong if finding.tensor in mine]
            stale = [
                name for name in names if name and _same(mine[name], results[number].get(name))
            ]
            because = _data_or_state(stale, steady=not differing)
            if relation.name != "repeat":
                because = f"{relation.because}\n{because}"
        found += [_named(finding, relation, because) for finding in wrong]
    return found


def _refused(relation: Relation, error: Exception | None) -> list[Finding]:
    """What is wrong with how an entry refuses to be captured to a CUDA graph."""
    assert relation.refused is not None
    name, words = relation.refused
    wanted = f"{name} with {words!r} in its message"
    check = relation.kind
    if error is None:
        title = f"the call is captured, where the spec says that it is refused: no {wanted}"
        hint = "what the host decides in a call is the same in every replay: refuse, or say `when`"
        return [_named(Finding(check, title, pattern="accepted", hint=hint), relation, "")]
    inner = getattr(error, "error", error)
    kinds = [each.__name__ for each in type(inner).__mro__]
    if name.rpartition(":")[2] in kinds and words in str(inner):
        return []
    found = raised(check, error, f"{wanted} was due when the call was captured: ")
    return [_named(found, relation, "")]


def raised(check: str, error: Exception, words: str = "") -> Finding:
    """The finding of a run that raised where an earlier one did not; `words` say which run."""
    if isinstance(error, FindingsError):
        first = error.findings[0]
        title = f"{words.strip()}: {first.title}" if words else first.title
        return replace(first, check=check, title=title)
    title = f"{words}raised {type(error).__name__}: {error}"
    trace: str = getattr(error, "trace", "")
    return Finding(check, title, pattern="raised", detail=trace or None)


def _in_one_memory(problems: tuple[Problem, ...]) -> Iterator[Problem]:
    """The problems one after the other, in the tensors of the first: the caller's own, refilled.

    An entry that keeps by a tensor what it found in it (lengths fetched to the host, say) then
    finds the tensor again, with something else in it.
    """
    held: dict[str, torch.Tensor] = {}
    for problem in problems:
        places = {}
        for name, tensor in problem.inputs.items():
            kept = held.get(name)
            if kept is not None and _like(kept, tensor):
                kept.copy_(tensor)
                places[id(tensor)] = kept
            elif tensor.is_contiguous():
                places[id(tensor)] = held[name] = _in_other_memory(tensor)

        def place(values: Mapping[str, Any], places: dict[int, torch.Tensor]) -> dict[str, Any]:
            return {name: places.get(id(value), value) for name, value in values.items()}

        yield replace(
            problem, names=place(problem.names, places), inputs=place(problem.inputs, places)
        )


def _in_other_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that begins as far into its memory: what asks for alignment gets the same answer."""
    memory = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory, *place)


def _like(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.dtype == other.dtype and one.device == other.device
    return same and one.shape == other.shape and one.stride() == other.stride()


def _data_or_state(stale: list[str], *, steady: bool) -> str:
    """Why a later call may be wrong by its own reference, where the first was right.

    `stale` are wrong tensors that hold the first call's values; `steady` says that the first
    problem, run once more afterwards, gave the first results again.
    """
    if stale:
        return f"{', '.join(stale)} of the first call came back: state is kept between calls"
    if not steady:
        return (
            "the first call's data, run once more, gives other results too: state is kept "
            "between calls"
        )
    return (
        "the first call was right: either the entry is wrong for these values, or it keeps "
        "something of the first call (the first call's data, run once more, gives its results "
        "again, so nothing is kept of later calls); --seed, which makes the first call with other "
        "values, tells which"
    )


def _same(mine: torch.Tensor, theirs: torch.Tensor | None) -> bool:
    """Whether a result is the first call's, and no constant that any data would give."""
    return theirs is not None and alike(mine, theirs) and bool((mine != mine.flatten()[:1]).any())


def _differences(
    relation: Relation,
    mine: Tensors,
    results: list[Tensors],
    yardstick: Yardstick,
    *,
    exact: bool,
) -> list[Finding]:
    left, right = relation.left(mine), relation.right(results)
    found = []
    for name, tensor in left.items():
        other = right[name]
        if tensor.shape != other.shape:
            title = f"{name} has shape {list(other.shape)}, expected {list(tensor.shape)}"
            found.append(Finding(relation.kind, title, tensor=name))
            continue
        if alike(tensor, other):
            continue
        if exact:
            nothing = torch.zeros_like(tensor, dtype=torch.float64)
            deviation = difference(other, tensor, nothing)
        else:
            deviation = _beyond(name, (tensor, other), relation, mine, yardstick)
        if deviation is not None:
            found.append(
                explain(
                    relation.kind,
                    name,
                    _in_whole(name, deviation, relation, mine),
                    yardstick.problem,
                    yardstick.reference,
                    words=relation.words,
                    exact=exact,
                )
            )
    return found


def _in_whole(name: str, deviation: Deviation, relation: Relation, mine: Tensors) -> Deviation:
    """A deviation of a part that `left` picks, at its places in the tensor, whose dims have names.

    Elsewhere nothing is wrong. Where `left` does not pick elements, the deviation as it is.
    """
    whole = mine.get(name)
    if whole is None or whole.shape == deviation.wrong.shape:
        return deviation

    def numbered(each: str) -> torch.Tensor:
        count = mine[each].numel()
        return torch.arange(count, dtype=torch.float64, device=whole.device).view(mine[each].shape)

    # It picks the elements' numbers as it picks the elements.
    places = relation.left(LazyMapping(mine, numbered))[name].flatten().long()
    values = whole.flatten()
    if len(places) != deviation.wrong.numel() or not 0 <= places.min() <= places.max() < len(
        values
    ):
        return deviation
    picked = values[places].double()
    if not torch.allclose(picked, deviation.expected.flatten(), rtol=0, atol=0, equal_nan=True):
        return deviation

    def placed(target: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return target.index_put((places,), part.flatten()).view(whole.shape)

    return replace(
        deviation,
        expected=whole.double(),
        got=placed(values.to(deviation.got.dtype), deviation.got),
        wrong=placed(torch.zeros_like(values, dtype=torch.bool), deviation.wrong),
        worst=int(places[deviation.worst]),
    )


def _beyond(
    name: str,
    tensors: tuple[torch.Tensor, torch.Tensor],
    relation: Relation,
    mine: Tensors,
    yardstick: Yardstick,
) -> Deviation | None:
    """Where `left` and `right` are too far apart: `left` picks limits as it picks the values."""
    known = [each for each in mine if each in yardstick.reference]
    tensor, other = tensors
    deviation = None
    # Limits take longer to make than a lower bound of them, which is mostly enough.
    for make in (
        lambda each: yardstick.least_by_element(each, 2),
        lambda each: 2 * yardstick.limits(each).element,
    ):
        deviation = difference(other, tensor, relation.left(LazyMapping(known, make))[name])
        if deviation is None:
            break
    return deviation


def _apart(
    relation: Relation, pair: Pair, mine: Tensors, yardstick: Yardstick, *, exact: bool
) -> list[Finding]:
    """Where the two sides of a pair are too far apart."""
    check, problem = relation.kind, yardstick.problem
    found = []
    for name, expected in pair.expected.items():
        if name not in pair.got:
            continue
        got = pair.got[name]
        if got.shape != expected.shape or got.dtype != expected.dtype:
            told = " and ".join(f"{_words(each)}" for each in (got, expected))
            found.append(Finding(check, f"{name}: {told} cannot be compared", tensor=name))
            continue
        if alike(expected, got):
            continue
        deviation = None
        for limit in _allowed(name, expected, mine, yardstick, exact=exact):
            deviation = difference(got, expected, limit)
            if deviation is None:
                break
        if deviation is not None:
            finding = explain(
                check,
                name,
                deviation,
                problem,
                yardstick.reference,
                words=relation.words,
                exact=exact,
            )
            if relation.kind == "agreement" and problem.has_reference:
                finding = _with_truth(finding, deviation, name, relation, yardstick)
            found.append(finding)
    return found


def _allowed(
    name: str, expected: torch.Tensor, mine: Tensors, yardstick: Yardstick, *, exact: bool
) -> Iterator[torch.Tensor]:
    """How far apart two sides may be by element: lower bounds of it, if sooner made, come first."""
    if exact:
        yield torch.zeros_like(expected, dtype=torch.float64)
    elif expected is mine.get(name):
        yield yardstick.least_by_element(name, 2)
        yield 2 * yardstick.limits(name).element
    else:
        info = yardstick.problem.outputs[name]
        if info.shape != tuple(expected.shape):
            dims = tuple(Dim(f"axis{n}", size) for n, size in enumerate(expected.shape))
            info = replace(info, dims=dims)
        # What magnitude and spread say is of other values.
        info = replace(info, magnitude=None, spread=None, exponent=None)
        yield 2 * limits(info, expected.double(), None, yardstick.allowance(name)).element


def _with_truth(
    finding: Finding, deviation: Deviation, name: str, relation: Relation, yardstick: Yardstick
) -> Finding:
    """The finding with what the reference says of the two sides: mostly one of them is wrong."""
    truth = yardstick.reference[name].flatten()[deviation.worst]
    limit = yardstick.limits(name).element.flatten()[deviation.worst]
    sides = {relation.words: deviation.expected, relation.name: deviation.got}
    far = {
        words: float((tensor.flatten()[deviation.worst].double() - truth).abs() / limit)
        for words, tensor in sides.items()
    }
    told = ", ".join(f"{words} {ratio:.3g}" for words, ratio in far.items())
    note = f"the reference has {float(truth):.6g} there; off by, in allowances: {told}"
    return replace(finding, detail=f"{finding.detail}\n{note}" if finding.detail else note)


def _words(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _judged(check: str, yardstick: Yardstick, results: Tensors) -> list[Finding]:
    """What is wrong with a relation's own results, against their own reference."""
    outputs = yardstick.problem.outputs
    mismatches = {
        name: mismatch
        for name, info in outputs.items()
        if (mismatch := describe_mismatch(name, info, results.get(name)))
    }
    wrong = deviations({n: results[n] for n in outputs if n not in mismatches}, yardstick)
    problem, reference, words = yardstick.problem, yardstick.reference, "its own reference"
    return [
        Finding(check, mismatches[name], tensor=name)
        if name in mismatches
        else explain(check, name, wrong[name], problem, reference, words=words)
        for name in outputs
        if name in mismatches or name in wrong
    ]


def _named(finding: Finding, relation: Relation, because: str) -> Finding:
    """The finding with the relation's name, where the check's does not say it, and a reason."""
    title = finding.title
    if relation.name != finding.check:
        title = f"{relation.name}: {title}"
    detail = "\n".join(part for part in (because, finding.detail) if part)
    return replace(finding, title=title, detail=detail or None)
