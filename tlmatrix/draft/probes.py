"""What further calls of an operator show: its gradients and dtypes, and what it reads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.draft.calls import flattened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.draft.calls import Call
    from tlmatrix.draft.targets import Target

_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Live:
    """A call with its values.

    Attributes:
        before: the arguments, tensors as they were before the call.
        results: the returned value.
        instance: the object whose method was called.
    """

    call: Call
    before: Mapping[str, Any]
    results: Any
    instance: Any = None


def probed(target: Target, live: Live) -> Call:
    """The call, with what further calls with its values show."""
    call = replace(live.call, grads=_differentiable(target, live))
    read = _read_when_changed(target, live)
    uses = replace(call.uses, updated=call.uses.updated | read)
    return replace(call, uses=uses)


def _again(target: Target, live: Live, changed: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Call the operator on copies with changed arguments; the results by path."""
    given = {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in live.before.items()
    }
    given |= changed
    if isinstance(live.instance, torch.nn.Module):
        own = {name.replace(".", "_"): name for name, _ in live.instance.named_parameters()}
        state = {path: given.pop(name) for name, path in own.items()}
        return flattened(torch.func.functional_call(live.instance, state, kwargs=given))
    if live.instance is not None:
        return flattened(live.instance(*given.values()))
    made = target.found(*given.values()) if target.positional else target.found(**given)
    found = flattened(made)
    return found | {f"${name}": given[name] for name in live.call.changed}


def _differentiable(target: Target, live: Live) -> frozenset[str]:
    """The inputs that get gradients; empty if no result is differentiable."""
    leaves = {
        name: value.clone().requires_grad_()
        for name, value in live.before.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    try:
        with torch.enable_grad():
            results = _again(target, live, leaves)
        made = [each for path, each in results.items() if path[0] != "$"]
        # A changed argument that is returned has its own gradient, not one of the change.
        changed = {_memory(leaves[name]) for name in live.call.changed if name in leaves}
        outputs = [each for each in made if each.requires_grad and _memory(each) not in changed]
        if not outputs or not leaves:
            return frozenset()
        ones = [torch.ones_like(each) for each in outputs]
        grads = torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)
    except Exception:  # noqa: BLE001 - an operator without a backward may raise anything
        return frozenset()
    return frozenset(name for name, grad in zip(leaves, grads, strict=True) if grad is not None)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _read_when_changed(target: Target, live: Live) -> frozenset[str]:
    """The changed arguments whose values before the call matter."""
    found = set()
    for name in live.call.changed - live.call.uses.updated:
        value = live.before[name]
        other = torch.full_like(value, 3) if value.is_floating_point() else None
        if other is None:
            continue
        try:
            before, after = (_again(target, live, {name: each}) for each in (value.clone(), other))
        except Exception:  # noqa: BLE001, S112 - it may refuse the values
            continue
        if any(not torch.equal(before[path], after[path]) for path in before):
            found.add(name)
    return frozenset(found)


def call_in_other_precision(target: Target, live: Live) -> None:
    """Call the operator again in the other half precision, if it supports it."""
    tensors = {n: v for n, v in live.before.items() if isinstance(v, torch.Tensor)}
    floats = {n: v.dtype for n, v in tensors.items() if v.dtype in (*_HALVES, torch.float32)}
    following = [dtype for dtype in floats.values() if dtype in _HALVES] or list(floats.values())
    if not following:
        return
    own = following[0]
    other = torch.bfloat16 if own == torch.float16 else torch.float16
    changed: dict[str, Any] = {
        n: tensors[n].to(other) for n, dtype in floats.items() if dtype == own
    }
    for argument, value in live.before.items():
        if isinstance(value, str) and value == str(own)[6:]:
            changed[argument] = str(other)[6:]
        elif value is own:
            changed[argument] = other
    with suppress(Exception):  # it may support one dtype only
        _again(target, live, changed)
