"""Recorded calls of a kernel or an operator: shapes and small integers, no floating-point data."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from pydantic import TypeAdapter

from tlmatrix.draft.uses import Uses
from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MOST_VALUES = 4096
"""Most elements of an integer tensor whose values are kept."""
MOST_CALLS = 64
"""Most different calls of a target that are kept."""
BY_CHANCE = 3
"""Most equal pairs that are expected of numbers which are distinct by chance."""


@dataclass(frozen=True)
class Seen:
    """A tensor in a call.

    Attributes:
        dtype: its PyTorch name.
        strides: in elements; None if it is contiguous.
        grad: whether it requires a gradient.
        values: of a small integer tensor, in order.
        limits: the least and the largest value of another integer tensor; of floating-point numbers
            of one sign that are not all equal, the powers of two (or 0) around them.
        distinct: whether no number of a row of integers occurs twice but those that mark nothing.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    grad: bool = False
    values: tuple[int, ...] | None = None
    limits: tuple[int, int] | None = None
    distinct: bool = False


@dataclass(frozen=True)
class Opaque:
    """An argument that a spec cannot write, such as an object of a class."""

    kind: str


Value = Seen | Opaque | bool | int | float | str | list[Any] | None
"""An argument. A dtype is its name."""


@dataclass(frozen=True)
class Comparison:
    """What a caller compared a result with.

    Attributes:
        output: the path of the result.
        function: the function that made the expected value, `package.module:name`; "" if unknown.
        arguments: its arguments: the name of an argument of the call, or a constant.
        construct: those of the constructor, if it is a method.
        source: a module with the part of the function that makes it; "" for the whole function.
        guessed: whether the two were compared by what the program computes of them.
    """

    output: str
    function: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    construct: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    guessed: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a target.

    Attributes:
        target: `package.module:name`.
        arguments: by parameter, in order; of a factory, those of the kernel.
        construct: arguments of the factory or of the constructor.
        results: the returned tensors by path: `0`, `1`, `lse`, `aux.counts`.
        passed: the paths of arguments among the returned tensors.
        changed: the arguments that the call writes.
        grads: the arguments that get gradients, if that is known.
        names: names of dimensions in the code of kernels, by `tensor.dim`.
        uses: how kernels use the arguments and results.
        inner: whether an operator of the program made it.
        sizes: those of symbolic dimensions that a trace chose; None for a call of a program.
    """

    target: str
    arguments: Mapping[str, Value]
    results: Mapping[str, Seen]
    construct: Mapping[str, Value] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    changed: frozenset[str] = frozenset()
    grads: frozenset[str] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    uses: Uses = field(default_factory=Uses)
    compared: tuple[Comparison, ...] = ()
    inner: bool = False
    sizes: Mapping[str, int] | None = None

    @property
    def tensors(self) -> dict[str, Seen]:
        """The tensors among the arguments."""
        return {name: each for name, each in self.arguments.items() if isinstance(each, Seen)}

    @property
    def opaque(self) -> dict[str, str]:
        """The arguments that a spec cannot write, with their types."""
        every = {**self.construct, **self.arguments}.items()
        return {name: each.kind for name, each in every if isinstance(each, Opaque)}

    @property
    def known(self) -> bool:
        """Whether there is some knowledge of the values of all integer tensors."""
        integers = (each for each in self.tensors.values() if each.dtype in ("int32", "int64"))
        return not any(each.values is each.limits is None for each in integers)

    def form(self) -> tuple[Any, ...]:
        """What calls have in common that one spec can cover: tensors, ranks, kinds of results."""
        given = tuple((name, len(each.shape)) for name, each in self.tensors.items())
        made = tuple((path, len(each.shape)) for path, each in self.results.items())
        return given, made, tuple(self.opaque.items())


def seen_tensor(tensor: torch.Tensor, *, values: bool = True) -> Seen:
    """The record of a tensor, perhaps with the values of a small integer one."""
    dtype = str(tensor.dtype)[6:]
    values = values and tensor.device.type != "meta" and not _is_of_traced(tensor)
    known = values and dtype in ("int32", "int64")
    kept = known and tensor.numel() <= MOST_VALUES
    limits = (int(tensor.min()), int(tensor.max())) if known and not kept else None
    if values and dtype in ("float32", "float16", "bfloat16"):
        limits = _limits_of_sign(tensor.detach())
    return Seen(
        tuple(tensor.shape),
        dtype,
        None if tensor.is_contiguous() else tensor.stride(),
        tensor.requires_grad,
        tuple(tensor.detach().flatten().tolist()) if kept else None,
        limits,
        known and _is_distinct(tensor),
    )


def _is_of_traced(tensor: torch.Tensor) -> bool:
    """Whether a kernel that was only traced was to write a tensor, whose values say nothing."""
    return getattr(tensor.untyped_storage(), "of_traced", False)


def set_of_traced(tensor: torch.Tensor, value: bool) -> None:
    """Set whether the memory of a tensor has what a kernel that was only traced was to write."""
    tensor.untyped_storage().of_traced = value  # type: ignore[attr-defined]


def _is_distinct(tensor: torch.Tensor) -> bool:
    """Whether no number of a row occurs twice but those below 0, and the largest that fills rows.

    The others would be equal by chance if they were not distinct.
    """
    if tensor.ndim == 0:
        return False
    ordered = tensor.sort(-1).values
    same, others = ordered[..., 1:] == ordered[..., :-1], ordered[..., 1:] >= 0
    if not (same & others).any():
        return True
    most = int(tensor.max())
    counts = ((tensor >= 0) & (tensor < most)).sum(-1).double()
    pairs = float((counts * (counts - 1) / 2).sum()) / max(1, most)
    return pairs > BY_CHANCE and not (same & others & (ordered[..., 1:] < most)).any()


def _limits_of_sign(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Powers of two around the first numbers of a tensor, if they are of one sign and differ."""
    if not tensor.numel():
        return None
    some = tensor if tensor.is_contiguous() else tensor[tuple(slice(16) for _ in tensor.shape)]
    least, most = map(float, torch.aminmax(some.flatten()[:MOST_VALUES]))
    if least == most or not 0 <= least * most < math.inf:
        return None
    bound = 2 ** max(0, math.ceil(math.log2(max(-least, most))))
    return (0, bound) if most > 0 else (-bound, 0)


def seen(value: Any) -> Value:
    """The record of an argument."""
    if isinstance(value, torch.Tensor):
        return seen_tensor(value)
    if isinstance(value, torch.dtype):
        return str(value)[6:]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):  # a subclass, as TileLang's dtypes are, as the class itself
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        parts = [seen(each) for each in value]
        if not any(isinstance(each, Seen | Opaque) for each in parts):
            return parts
    return Opaque(type(value).__qualname__)


def flattened(results: object) -> dict[str, torch.Tensor]:
    """The tensors in a returned value by path: `0`, `1`, `lse`, `aux.counts`."""
    if isinstance(results, torch.Tensor):
        return {"0": results}
    if isinstance(results, tuple | list):
        items: list[tuple[str, Any]] = [(str(k), each) for k, each in enumerate(results)]
    elif isinstance(results, dict):
        items = [(str(key), each) for key, each in results.items()]
    elif results is not None and hasattr(results, "__dict__"):
        items = list(vars(results).items())
    else:
        items = []
    found = {}
    for key, each in items:
        if isinstance(each, torch.Tensor):
            found[key] = each
        elif isinstance(each, tuple | list | dict):
            found |= {f"{key}.{path}": tensor for path, tensor in flattened(each).items()}
    return found


def alike(calls: Sequence[Call]) -> list[Call]:
    """The calls of a frequent form, without objects if some have none, and with most tensors.

    A form is frequent if it has half as many calls as any other.
    """
    counts = Counter(call.form() for call in calls)
    most = max(count for form, count in counts.items() if not form[2] or all(f[2] for f in counts))
    form = max(counts, key=lambda e: (not e[2], 2 * counts[e] >= most, len(e[0]), counts[e]))
    return [call for call in calls if call.form() == form]


# Files ----------------------------------------------------------------------------------------


def write_call(file: Any, call: Call) -> None:
    """Append a call as a line of JSON."""
    file.write(json.dumps(_adapter().dump_python(call, mode="json")) + "\n")
    file.flush()


@cache
def _adapter() -> TypeAdapter[Call]:
    return TypeAdapter(Call)


def read_calls(path: Path) -> dict[str, list[Call]]:
    """The calls in a file, by target; alike calls once.

    Raises:
        UsageError: the file does not exist, or a line is not a call.
    """
    found: dict[str, dict[str, Call]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            call = _adapter().validate_json(line)
        except ValueError as error:
            if number == len(lines) > 1:
                continue  # the program was killed while it wrote this line
            why = str(error).splitlines()[0]
            raise UsageError(f"{path}:{number}: not a recorded call: {why}") from error
        of_target = found.setdefault(call.target, {})
        key = signature(call)
        if key in of_target:
            before = of_target[key].compared
            new = (each for each in call.compared if each not in before)
            call = replace(call, compared=(*before, *new))
        of_target[key] = call
    return {target: list(calls.values()) for target, calls in found.items()}


def signature(call: Call) -> str:
    """What distinguishes a call: its arguments, without what was measured or counted."""
    return repr((call.arguments, call.construct))


# FlashInfer's trace definitions ------------------------------------------------------------------


def definition(calls: Iterable[Call]) -> dict[str, Any]:
    """Calls as a definition of FlashInfer's traces, with the sizes of each call as a workload.

    Dimensions that are equal in all calls are one axis; one with the same size in all is constant.
    Schema: https://bench.flashinfer.ai/docs/flashinfer-trace/definition.
    """
    chosen = alike(list(calls))
    axis_of: dict[tuple[int, ...], str] = {}

    def tensors(kind: str) -> dict[str, Any]:
        first: Mapping[str, Seen] = getattr(chosen[0], kind)
        found = {}
        for name, each in first.items():
            columns = zip(*(getattr(call, kind)[name].shape for call in chosen), strict=True)
            shape = [
                axis_of.setdefault(column, chosen[0].names.get(f"{name}.{dim}", f"{name}_{dim}"))
                for dim, column in enumerate(columns)
            ]
            found[name] = {"shape": shape, "dtype": each.dtype}
        return found

    inputs, outputs = tensors("tensors"), tensors("results")
    moving = {name: column for column, name in axis_of.items() if len({*column}) > 1}
    axes = {
        name: {"type": "var"} if name in moving else {"type": "const", "value": column[0]}
        for column, name in axis_of.items()
    }
    return {
        "name": chosen[0].target.rpartition(":")[2].replace(".", "_"),
        "op_type": "op",
        "axes": axes,
        "inputs": inputs,
        "outputs": outputs,
        "workloads": [
            {"axes": {name: column[k] for name, column in moving.items()}}
            for k in range(len(chosen))
        ],
    }


def calls_of_definition(data: Mapping[str, Any], target: str) -> list[Call]:
    """The calls of a definition of FlashInfer's traces: one for each workload in it.

    Raises:
        UsageError: it is not a definition.
    """
    found = []
    try:
        constants = {n: a["value"] for n, a in data["axes"].items() if a["type"] == "const"}
        moving = [name for name in data["axes"] if name not in constants]
        guessed = [{"axes": {n: base + k for k, n in enumerate(moving)}} for base in (5, 37)]
        names = {
            f"{name}.{dim}": axis
            for name, each in data["inputs"].items()
            for dim, axis in enumerate(each["shape"] or ())
        }
        for workload in data.get("workloads") or guessed:
            sizes = {**constants, **workload["axes"]}
            inputs, outputs = (
                {
                    name: Seen(tuple(sizes[axis] for axis in each["shape"] or ()), each["dtype"])
                    for name, each in data[kind].items()
                }
                for kind in ("inputs", "outputs")
            )
            found.append(Call(target, inputs, outputs, names=names))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"not a trace definition: {error!r}") from error
    return found
