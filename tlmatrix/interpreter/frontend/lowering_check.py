"""Compares what a kernel's source computes with what TileLang lowers it to.

Both run on the same arguments. They must write the same elements, and the same values where sums
are exact: of integers, and of floating-point numbers that are whole. A difference is a fault in
TileLang's lowering; it is located between the passes after which the code still gives the values
of the source, and those after which it does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tlmatrix.dtypes import is_float8
from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.lowered.execution import run
from tlmatrix.interpreter.lowered.lowering import lower, stage_kernel
from tlmatrix.interpreter.lowered.machine import Watching
from tlmatrix.interpreter.reports import Report, ReportSet, element_name

from .programs import written_at

_STEPS = 8
"""Whole numbers are compared where a dtype has so many numbers between two of them: there rounding
does not make one of what is none."""
FOLDER = Path(".tlmatrix") / "lowering"
"""Where scripts that show a fault are written."""


@dataclass(frozen=True)
class Difference:
    """An element that the lowered code leaves with another value than the source.

    Attributes:
        name: of the parameter.
        index: of the element.
        source, lowered: the values.
        before: the value before the launch.
        count: how many elements of the parameter differ.
    """

    name: str
    index: tuple[int, ...]
    source: float
    lowered: float
    before: float
    count: int


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel, as its source runs it.

    Attributes:
        func: the PrimFunc, which TileLang lowers for `arch` under `configs`.
        names: of the parameters.
        before, source: the arguments before the launch and after it.
    """

    func: Any
    arch: str
    configs: Mapping[str, Any]
    names: Sequence[str]
    before: Sequence[Any]
    source: Sequence[Any]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor's elements, as integers."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(kinds[tensor.element_size()])


def difference(
    name: str,
    before: torch.Tensor,
    source: torch.Tensor,
    lowered: torch.Tensor,
    *,
    float8: bool = False,
) -> Difference | None:
    """The first element of a parameter in which the two differ, though both are exact.

    Sums of `float8` products are not, even if they are whole: tensor cores keep some of their bits.
    """
    if source.dtype == getattr(torch, "float4_e2m1fn_x2", None):  # PyTorch does not compute with it
        before, source, lowered = (each.view(torch.uint8) for each in (before, source, lowered))
    old, one, other = (bits_of(each) for each in (before, source, lowered))
    bad = (one != old) != (other != old)
    if source.is_floating_point():
        # Only of a NaN, which fills what is unwritten, a change of bits is a write for sure:
        # sums that are 0 in one order of additions are next to it in another.
        bad &= before.isnan()
        ours, theirs = source.float(), lowered.float()
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        largest = 1 / (torch.finfo(source.dtype).eps * _STEPS)
        whole = (ours == ours.round()) & (ours.abs() < largest)
        whole &= (theirs == theirs.round()) & (theirs.abs() < largest)
        bad = (bad if float8 else bad | whole) & ~same
        # Registers that lowered code has not written are NaN.
        bad |= theirs.isnan() & ours.isfinite()
    else:
        bad |= one != other
    places = bad.nonzero()
    if not len(places):
        return None
    index = tuple(int(i) for i in places[0])
    values = [float(each[index]) for each in (source, lowered, before)]
    return Difference(name, index, values[0], values[1], values[2], len(places))


def first_difference(launch: Launch, lowered: Sequence[Any]) -> Difference | None:
    """The first parameter that `lowered` code leaves with another value, and where."""
    arguments = launch.names, launch.before, launch.source, lowered
    tensors = [each for each in launch.before if isinstance(each, torch.Tensor)]
    float8 = any(is_float8(each.dtype) for each in tensors)
    for name, *values in zip(*arguments, strict=True):
        if isinstance(values[0], torch.Tensor) and values[0].numel():
            found = difference(name, *values, float8=float8)
            if found is not None:
                return found
    return None


def copies(values: Sequence[Any]) -> list[Any]:
    """The arguments of a launch with tensors of their own; those that are one stay one."""
    made: dict[int, torch.Tensor] = {}
    found = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            found.append(value)
            continue
        storage = value.untyped_storage()
        if storage.data_ptr() not in made:
            made[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage).clone()
        bytes_ = made[storage.data_ptr()].untyped_storage()
        twin = torch.empty(0, dtype=value.dtype)
        found.append(twin.set_(bytes_, value.storage_offset(), value.shape, value.stride()))
    return found


def responsible(launch: Launch) -> tuple[str, str]:
    """The last pass after which the code gives what the source does, and the first it does not.

    Of passes in which tiles are not yet threads the last one stands for all: "" for the first.
    """
    last, text = "", ""
    for name, module in lower(launch.func, launch.arch, launch.configs, stages=True).stages:
        if str(module) == text:
            continue
        text = str(module)
        try:
            kernel = stage_kernel(module)
            after = copies(launch.before)
            run(kernel, after, Watching(frozenset(), ReportSet(), kernel.kernel.name))
        except (Unsupported, InterpreterError):
            continue
        if first_difference(launch, after) is not None:
            return last, name
        last = name
    return last, ""


_SCRIPT = '''"""Shows a difference between a kernel's source and what TileLang lowers it to.

It needs TileLang {version}, PyTorch and a GPU ({arch}). {summary}
"""

from pathlib import Path

import tilelang
import torch
from tilelang import tvm

folder = Path(__file__).parent
kernel = tilelang.compile(
    tvm.ir.load_json((folder / "kernel.json").read_text()),
    target={{"kind": "cuda", "arch": "{arch}"}},
    pass_configs={configs!r},
)
saved = torch.load(folder / "tensors.pt")
arguments = [a.cuda() if isinstance(a, torch.Tensor) else a for a in saved["arguments"]]
kernel(*arguments)
torch.cuda.synchronize()
name, position, index = {name!r}, {position}, {index!r}
got, expected = arguments[position][index].item(), saved["expected"][position][index].item()
print(f"{{name}}{{list(index)}}: {{got}}, and the source gives {{expected}}")
assert got == expected or (got != got and expected != expected)
'''


def write_script(launch: Launch, found: Difference, summary: str) -> Path:
    """Write a script that shows a difference with TileLang alone; returns its path."""
    import tilelang
    from tilelang import tvm

    text, arch = str(tvm.ir.save_json(launch.func)), launch.arch
    digest = hashlib.sha256(f"{arch} {text}".encode()).hexdigest()[:8]
    folder = FOLDER / f"{launch.func.attrs['global_symbol']}-{arch}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text(text)
    detached = [
        [v.detach() if isinstance(v, torch.Tensor) else v for v in values]
        for values in (launch.before, launch.source)
    ]
    torch.save({"arguments": detached[0], "expected": detached[1]}, folder / "tensors.pt")
    script = folder / "show.py"
    script.write_text(
        _SCRIPT.format(
            version=tilelang.__version__,
            arch=arch,
            summary=summary,
            configs=dict(launch.configs),
            name=found.name,
            position=list(launch.names).index(found.name),
            index=found.index,
        )
    )
    return script


def report(launch: Launch, lowered: Sequence[Any]) -> Report | None:
    """The finding about a launch of which source and lowered code differ; None if they agree."""
    found = first_difference(launch, lowered)
    if found is None:
        return None
    last, first = responsible(launch)
    where = (
        f"the pass {first} brings it in" if first else f"it comes in after the pass {last or '?'}"
    )
    if first and not last:
        where = f"it is there as soon as tiles are threads ({first})"
    element = element_name(found.name, found.index)
    summary = f"{element} is {found.lowered:g} and the source gives {found.source:g}."
    script = write_script(launch, found, summary)
    file, _, line = written_at(launch.func).rpartition(":")
    message = (
        f"lowered for {launch.arch}, {element} is {found.lowered:g}, and the source gives "
        f"{found.source:g} (before {found.before:g}): {where}"
    )
    hint = f"a fault in TileLang's lowering; {script} shows it with TileLang alone, on a GPU"
    return Report(
        "lowering",
        str(launch.func.attrs["global_symbol"]),
        file,
        int(line or 0),
        found.name,
        found.index,
        None,
        message,
        None,
        found.count,
        hint=hint,
    )
