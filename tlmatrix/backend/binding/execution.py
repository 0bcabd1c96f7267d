"""Calls the code under test on a problem and returns its outputs and gradients.

Streams: calls on other streams than the default one, and two calls on streams that nothing orders.
Under the interpreter's simulation of streams the inputs of each of two calls are written on its
stream, and its results are read there. So the kernels of a call race with something if they use
memory that both calls share, such as a workspace that is kept, or if they run on a stream that does
not wait for that of the caller, or the reverse. On a GPU one call runs on a side stream.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tlmatrix.backend.binding.calls import binding_error
from tlmatrix.backend.binding.second_derivative import check_second_derivative
from tlmatrix.backend.errors import EntryError, wrapping_entry_errors
from tlmatrix.backend.thresholds import lower_thresholds
from tlmatrix.check.finding import FindingsError
from tlmatrix.check.guards import lead_of
from tlmatrix.check.memory import SameMemory, as_row, extent_of, fill_poison
from tlmatrix.check.running import Results, history_result
from tlmatrix.check.sanitizers import finding_of
from tlmatrix.problem.model import InapplicableError
from tlmatrix.spec.model.spec import has_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from tlmatrix.backend.binding.binding import Binding
    from tlmatrix.problem.model import AutogradVariant, Problem, Tensors
    from tlmatrix.spec.model.spec import Spec


def execute(
    binding: Binding, problem: Problem, *, run_index: int = 0, wait: bool = True
) -> Results:
    """Run the code under test on a problem and return its outputs and gradients.

    Gradients are those of the outputs in `problem.cotangents`, if the spec checks gradients and
    the code is differentiable. Inputs are not copied.

    Args:
        binding: the code.
        problem: its inputs.
        run_index: the number of this run of the case, see `Backend.active`.
        wait: wait until the GPU has finished.

    Raises:
        EntryError: the code under test raised.
        BindingError: arguments or results do not match the spec.
    """
    if problem.thresholds is not None:
        entry = str(binding.spec.entry or binding.spec.factory)
        with lower_thresholds(entry, problem.thresholds):
            return execute(binding, replace(problem, thresholds=None), run_index=run_index)
    if problem.side_stream:
        with on_side_stream(problem, binding.backend.device) as there:
            return execute(binding, there, run_index=run_index)
    if problem.two_streams:
        once = replace(problem, two_streams=False)
        with binding.backend.active(run_index):
            check_two_streams(partial(_call, binding), once, run_index)
        return Results({})
    with binding.backend.active(run_index):
        results = _call(binding, problem) if problem.history is None else _calls(binding, problem)
        if wait:
            with wrapping_entry_errors():
                binding.backend.synchronize()
    return results


def _call(binding: Binding, problem: Problem) -> Results:
    """Run the code under test on the active backend; see `execute`."""
    passes = _Passes(binding, problem)
    if passes.backward:
        for other in problem.between:
            try:
                _call(binding, other)
            except EntryError as error:
                raise InapplicableError(()) from error  # a finding of its own cases
    return passes.end()


def _calls(binding: Binding, problem: Problem) -> Results:
    """The results of all calls of a history, named `history_result`.

    A caller with one set of tensors for the inputs: a call gets these, refilled, while no earlier
    call that has them waits for its backward pass.
    """
    history = problem.history
    assert history is not None
    problems = {"a": replace(problem, history=None), "b": history.other}
    memory, owner = SameMemory(), None
    open_calls: dict[int, _Passes] = {}
    found: dict[str, torch.Tensor] = {}
    for step, number in history.steps:
        if step == "forward":
            called = problems[history.calls[number]]
            if owner is None:
                called, owner = memory.place(called), number
            open_calls[number] = _Passes(binding, called)
            del called
        if step == "backward" or (step == "forward" and not open_calls[number].backward):
            results = open_calls[number].end()
            found |= {history_result(number, name): each for name, each in results.items()}
        if step != "forward" or not open_calls[number].backward:
            del open_calls[number]
            owner = None if owner == number else owner
    return Results(found)


class _Passes:
    """A call whose forward pass has been made; `backward` is whether it has a backward pass."""

    def __init__(self, binding: Binding, problem: Problem) -> None:
        self._passes = _forward_and_backward(binding, problem)
        self.backward = next(self._passes)

    def end(self) -> Results:
        """Make the backward pass, and return the results of both."""
        try:
            next(self._passes)
        except StopIteration as ended:
            results: Results = ended.value
            return results
        raise AssertionError("a call has two passes")


def _forward_and_backward(binding: Binding, problem: Problem) -> Generator[bool, None, Results]:
    """Make the forward pass, yield whether a backward pass follows, make it, return all results."""
    wanted: Mapping[str, str] = {}
    if binding.differentiable and problem.cotangents and "gradients" in binding.spec.checks:
        wanted = problem.gradient_of
    variant = problem.autograd if wanted else None
    if variant is not None and variant.requires:
        wanted = {name: of for name, of in wanted.items() if of in variant.requires}
    elif variant is not None and variant.kind == "plain":
        wanted = {}
    leaves = {name: _leaf(problem.inputs[name]) for name in set(wanted.values())}
    names = {**problem.names, **problem.inputs, **leaves}
    absent: dict[str, str] = {}
    without_grad = problem.given_output is not None or (
        variant is not None and variant.kind == "no_grad"
    )
    call = binding.callee.prepare(names, problem)
    with wrapping_entry_errors(), torch.no_grad() if without_grad else nullcontext():
        results = call()
    outputs = call.named(results)
    yield bool(wanted) and not without_grad
    if variant is not None and variant.kind == "second":
        on_ranks = has_ranks(binding.spec)
        check_second_derivative(problem, outputs, wanted, leaves, on_ranks=on_ranks)
        return Results({})
    if wanted and not without_grad:
        changed = variant.names if variant is not None and variant.kind == "changed" else ()
        with _changed_in_place([names[name] for name in changed]):
            gradients, absent = _gradients(binding.spec, problem, outputs, wanted, leaves)
        outputs |= gradients
    return Results({name: tensor.detach() for name, tensor in outputs.items()}, absent)


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that requires grad in the calls with an input, the same one in all of them.

    To an entry, a weight that an optimizer changes in place stays the same object.
    """
    leaf: torch.Tensor | None = _LEAVES.get(tensor)
    if leaf is None:
        leaf = _LEAVES[tensor] = tensor.detach().requires_grad_()
    return leaf


_LEAVES: Any = WeakIdKeyDictionary()
"""From inputs to the tensors in their memory that require grad."""


_REFUSES_CHANGED = ("modified by an inplace operation", "has been modified inplace")
"""Words of autograd about a saved tensor, and about a saved view that was made without grad."""


@contextmanager
def _changed_in_place(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Change tensors in a way that autograd notices where they are saved for the backward pass.

    Integers become 0, which is an index of anything that has elements.

    Raises:
        InapplicableError: autograd refused to compute gradients with them, or the entry with zeros.
    """
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad():
            for tensor in tensors:
                tensor.mul_(-0.5) if tensor.is_floating_point() else tensor.zero_()
        yield
    except EntryError as error:
        refused = any(words in str(error.error) for words in _REFUSES_CHANGED)
        if tensors and (refused or not all(each.is_floating_point() for each in tensors)):
            raise InapplicableError(()) from error
        raise
    finally:
        for tensor, values in zip(tensors, before, strict=True):
            tensor.detach().copy_(values)


def _gradients(
    spec: Spec,
    problem: Problem,
    outputs: Tensors,
    wanted: Mapping[str, str],
    leaves: Tensors,
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The gradients, and for each missing one the reason."""
    for name in problem.cotangents:
        if name not in outputs:
            raise binding_error(spec, f"returns no {name!r}, whose gradients are checked")
    detached = [name for name in problem.cotangents if not outputs[name].requires_grad]
    attached = [name for name in problem.cotangents if name not in detached]
    grads: tuple[torch.Tensor | None, ...] = (None,) * len(wanted)
    variant = problem.autograd
    kind = variant.kind if variant is not None else None
    given = {name: _cotangent(name, problem.cotangents[name], variant) for name in attached}
    if variant is not None and kind == "absent":
        given = {name: each for name, each in given.items() if name not in variant.names}
    uses = 2 if kind == "shared" else 1
    inputs = [leaves[name] for name in wanted.values()]
    ignored = []
    if given:
        with wrapping_entry_errors():
            if kind == "claimed":
                ignored = _ignored(problem, outputs, inputs)
            for last in (False, True) if kind == "twice" else (True,):
                grads = torch.autograd.grad(
                    [outputs[name] for name in given] * uses,
                    inputs,
                    [each / uses if uses > 1 else each for each in given.values()] * uses,
                    allow_unused=True,
                    retain_graph=not last,
                )
    found: dict[str, torch.Tensor] = {}
    absent = dict.fromkeys(ignored, "it requires grad, but its gradient is 0 for every input")
    for (gradient, name), grad in zip(wanted.items(), grads, strict=True):
        if grad is not None:
            found[gradient] = grad
        elif attached and _no_effect(problem, gradient):
            found[gradient] = torch.zeros_like(leaves[name])
        elif detached:
            absent[gradient] = f"the output {detached[0]} does not require grad"
        else:
            absent[gradient] = f"the backward pass gives None for the input {name}"
    return found, absent


def _ignored(problem: Problem, outputs: Tensors, inputs: list[torch.Tensor]) -> list[str]:
    """Outputs without a cotangent that require grad, though their gradients are 0 or None."""
    found = []
    for name, output in outputs.items():
        if name in problem.cotangents or not output.requires_grad or not output.numel():
            continue
        ones = torch.ones_like(output)
        grads = torch.autograd.grad(output, inputs, ones, allow_unused=True, retain_graph=True)
        if not any(grad is not None and bool(grad.any()) for grad in grads):
            found.append(name)
    return found


def _cotangent(name: str, cotangent: torch.Tensor, variant: AutogradVariant | None) -> torch.Tensor:
    """The output gradient of an autograd variant; gaps in its memory hold NaN."""
    kind = None if variant is None else variant.kind
    if variant is not None and kind == "zeros" and name in variant.names:
        return torch.zeros_like(cotangent)
    if kind in ("expanded", "rows") and cotangent.dim() > 0:
        rows = cotangent[:1].expand_as(cotangent)
        return rows if kind == "expanded" else rows.contiguous()
    if kind == "transposed" and cotangent.dim() > 1:
        return cotangent.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == "strided" and cotangent.dim() > 0:
        pairs = torch.stack([cotangent, torch.full_like(cotangent, torch.nan)], dim=-1)
        return pairs[..., 0]
    return cotangent


def _no_effect(problem: Problem, gradient: str) -> bool:
    """Whether the gradient of the reference is zero; None from the entry then means zero."""
    if not problem.has_reference:
        return False
    expected = problem.reference().get(gradient)
    return expected is not None and not bool(expected.any())


_CALLS = 2


def check_two_streams(call: Callable[[Problem], Tensors], problem: Problem, seed: int) -> None:
    """Make two calls of the problem, each on a stream of its own, on one simulated rank.

    Args:
        call: makes a call on the current stream.
        problem: its arguments.
        seed: selects the interleaving.

    Raises:
        FindingsError: operations of two streams access the same memory, and nothing orders them.
        InapplicableError: the results are empty.
    """
    from tlmatrix.interpreter import interpret, simulate

    def program(_rank: int) -> int:
        count = 0
        streams = [torch.cuda.Stream() for _ in range(_CALLS)]  # type: ignore[no-untyped-call]
        for stream in streams:
            with torch.cuda.stream(stream):
                results = call(problem.map_tensors(written_later))
                for tensor in results.values():
                    torch.empty_like(tensor).copy_(tensor)
                    count += tensor.numel()
        torch.cuda.synchronize()
        return count

    try:
        with interpret(sanitize={"races"}, on_report="keep"):
            found = simulate(program, 1, seed=seed)
    except Exception:  # noqa: BLE001 - what a call raises is a finding of other checks
        return
    if found.reports:
        raise FindingsError([finding_of(report) for report in found.reports])
    if not found.results[0]:
        raise InapplicableError(())


# One side stream, on which inputs are written late ---------------------------------------------


_CYCLES = 20_000_000
"""10 ms on an H200: an entry has launched its kernels by then."""


@contextmanager
def on_side_stream(problem: Problem, device: torch.device) -> Iterator[Problem]:
    """Make a side stream current and yield the problem with tensors that are written on it.

    Before, floating-point tensors hold NaN and others zeros, so that no index is out of bounds.
    Work on another stream that does not wait for this one reads these values.
    """
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def late(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cuda":
            return tensor
        if id(tensor) not in copies:
            lead = lead_of(tensor)
            memory = torch.empty(lead + extent_of(tensor), dtype=tensor.dtype, device=device)
            if memory.is_floating_point():
                fill_poison(memory)
            else:
                as_row(memory).zero_()
            copies[id(tensor)] = tensor, memory.as_strided(tensor.shape, tensor.stride(), lead)
        return copies[id(tensor)][1]

    there = replace(problem.map_tensors(late), side_stream=False)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        # Private, but what PyTorch's own tests of streams use.
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001
        for tensor, copy in copies.values():
            as_row(copy).copy_(as_row(tensor))
        yield there


def written_later(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the same strides, which the current stream writes."""
    lead = lead_of(tensor)
    memory = torch.empty(lead + extent_of(tensor), dtype=tensor.dtype, device=tensor.device)
    as_row(memory, lead).copy_(as_row(tensor, lead))
    return memory.as_strided(tensor.shape, tensor.stride(), lead)
