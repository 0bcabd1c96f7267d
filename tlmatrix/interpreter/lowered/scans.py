"""Inclusive scans of shared memory, as the templates `tl::CumSum1D` to `tl::CumMax2D` make them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.gpu import WARP
from tlmatrix.interpreter.runtime.mathematics import fmax

from .arithmetic import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.interpreter.ir import nodes as ir

    from .emit import Emitter
    from .machine import Machine
    from .memory import View
    from .values import Val

_SCAN = re.compile(
    r"tl::Cum(?P<op>Sum|Max)(?P<rank>[12])D<(?P<threads>\d+)(?:, (?P<axis>[01]))?, "
    r"(?P<reverse>true|false)>::run"
)


def scan(e: Emitter, call: ir.Call) -> Val:
    """`tl::CumSum1D<…>::run(from, to, N)`, `tl::CumSum2D<…>::run(from, to, H, W, strides)`.

    Raises:
        Unsupported: for a call of another function.
    """
    name = str(call.args[0].value)
    found = _SCAN.fullmatch(name)
    if found is None:
        raise e.refuse(f"call_extern {name}")
    parts = []
    for pointer in call.args[1:3]:
        place, dtype, index = e.pointer(pointer)
        parts.append(f"{e.view(place, dtype, writes=True)}, {index.code}")
        e.note_vector(dtype, 1)
    numbers = [e.expr(each).code for each in call.args[3:]]
    if found["rank"] == "1":
        lines, extent, across, along = "1", numbers[0], ("0", "0"), ("1", "1")
    elif found["axis"] == "1":
        lines, extent, across, along = numbers[0], numbers[1], (numbers[2], numbers[3]), ("1", "1")
    else:
        lines, extent, across, along = numbers[1], numbers[0], ("1", "1"), (numbers[2], numbers[3])
    shape = ", ".join((lines, extent, *across, *along))
    e.line(
        f"scanned(m, {found['op']!r}, {', '.join(parts)}, ({shape}), "
        f"{int(found['threads']) // WARP}, {found['reverse'] == 'true'}, {e.mask}, {e.site()})"
    )
    return NOTHING


def scanned(
    m: Machine,
    kind: str,
    source: View,
    start: Any,
    target: View,
    to: Any,
    shape: tuple[Any, ...],
    warps: int,
    backwards: bool,
    mask: Any,
    site: int,
) -> None:
    """Scan lines in shared memory, a line a warp at a time.

    The shape: lines, elements of a line, strides of lines in `source` and `target`, and strides of
    elements in either. `start` and `to` are where the first line begins, `warps` those of a block.
    """
    lines, extent, *steps = (int(np.max(number)) for number in shape)
    combine: Callable[[Any, Any], Any] = np.add if kind == "Sum" else fmax
    lane, warp = m.thread[0] % WARP, m.thread[0] // WARP
    none: Any = 0
    if kind == "Max":
        none = np.iinfo(source.kind).min if source.kind.kind == "i" else 0
        none = -np.inf if source.is_float else none
    for first in range(0, lines, warps):
        line = first + warp
        carry = np.full(m.count, none)
        segments = range(0, extent, WARP)
        for segment in reversed(segments) if backwards else segments:
            index = segment + lane
            on = (line < lines) & (index < extent)
            on = on if mask is None else on & mask
            loaded = source.load(start + line * steps[0] + index * steps[2], 1, on, site)
            value = np.where(on, loaded, none)
            for distance in (1, 2, 4, 8, 16):
                other = lane + distance if backwards else lane - distance
                inside = (other >= 0) & (other < WARP)
                lanes = np.where(inside, m.lanes - lane + other, m.lanes)
                value = np.where(inside, source.rounded(combine(value, value[lanes])), value)
            value = source.rounded(combine(value, carry))
            target.store(to + line * steps[1] + index * steps[3], value, 1, on, site)
            carry = value[m.lanes - lane + (0 if backwards else WARP - 1)]
    m.warp_synchronized(mask)


FUNCTIONS = (scanned,)
