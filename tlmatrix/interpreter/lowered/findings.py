"""What is reported about the lanes of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tlmatrix.interpreter.gpu import REGISTERS, WARP, WARP_GROUP
from tlmatrix.interpreter.reports import (
    ALL_ARRIVE,
    ALL_WARPS,
    Party,
    Report,
    element_name,
    overtaken_wait,
    registers_of_a_part,
    source_line,
    too_many_registers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.runtime.codecs import Array

    from .clocks import Shadow
    from .machine import Machine
    from .memory import View

_BETWEEN_THREADS = (
    "threads of one block run in any order: order them with T.sync_threads(), or let one thread do "
    "it; if the source is right, TileLang lowers it wrongly"
)


def element(m: Machine, view: View, unit: int) -> tuple[int, ...]:
    """The element of a view that a unit begins with."""
    shadow = view.memory.shadow
    assert shadow is not None
    at = int(unit) * shadow.size
    if view.memory.scope == "shared":
        at = at % m.stride
    elif view.memory.shape is not None:
        place = np.unravel_index(at // view.itemsize, view.memory.shape)
        return tuple(int(i) for i in place)
    return (max(0, at - view.offset) // view.itemsize,)


def race(
    m: Machine, view: View, unit: int, lane: int, action: str, site: int, count: int, other: str
) -> None:
    """Report an access by a lane that nothing orders with the last other one to its unit."""
    if "races" not in m.watched:
        return
    shadow = view.memory.shadow
    assert shadow is not None
    if other == "write":
        before, their, agent = shadow.site[unit], shadow.lane[unit], int(shadow.agent[unit])
    else:
        before, their, agent = shadow.seen[unit], shadow.reader[unit], 0
    mine = thread_name(m, lane)
    within = view.memory.scope == "shared" or _in_block(m, shadow, unit, lane, other)
    asynchronous = other == "write" and agent >= m.noted.warps
    if asynchronous:
        theirs = _unit_name(m, agent)
    elif their == lane:  # it accessed the unit after the access that the report is about
        theirs = "another thread"
    else:
        theirs = thread_name(m, int(their))
    party = Party(m.place(lane), *source_line(m.site(int(before))), other, theirs)
    place = element(m, view, unit)
    report(
        m,
        "races",
        view.name,
        place,
        lane,
        site,
        f"{action} of {element_name(view.name, place)} by {mine}, "
        f"which nothing orders with a {other} by {theirs}",
        int(count),
        party,
        _BETWEEN_THREADS if within else "",
    )


def late_races(
    m: Machine,
    view: View,
    units: Array,
    lanes: Array,
    late: Array,
    action: str,
    site: int,
    other: str,
) -> None:
    """Report the first of the accesses of which `late` says that nothing orders them."""
    if late.any():
        k = int(np.flatnonzero(late)[0])
        race(m, view, int(units[k]), int(lanes[k]), action, site, int(late.sum()), other)


def _in_block(m: Machine, shadow: Shadow, unit: int, lane: int, other: str) -> bool:
    """Whether the other access to a unit of global memory is of the same block."""
    blocks = shadow.writers if other == "write" else shadow.readers
    return blocks is None or int(blocks[unit]) == int(m.noted.number[lane])


def thread_name(m: Machine, lane: int) -> str:
    """A lane by its number in its block; negative for what is no thread, or several."""
    if lane < -1:
        return "several threads"
    if lane < 0:
        return "an asynchronous copy"
    return f"thread {lane % m.threads}"


def _unit_name(m: Machine, agent: int) -> str:
    if agent >= m.noted.barriers:
        return "a copy that an mbarrier completes"
    if agent >= m.noted.copies:
        return "cp.async"
    return "an asynchronous unit"


def outside(
    m: Machine, view: View, index: Array, bad: Array, width: int, site: int, action: str
) -> None:
    """Report accesses out of bounds, which are not made."""
    size = (view.memory.size - view.offset) // view.itemsize
    vector = f" of {width} elements" if width > 1 else ""
    message = f"{action}{vector} at {{}}, outside its {size} elements"
    _first_access(m, "bounds", view, index, bad, site, message)


def misaligned(
    m: Machine,
    view: View,
    index: Array,
    bad: Array,
    size: int,
    site: int,
    action: str,
    unit: int = 0,
) -> None:
    """Report vector accesses that the device refuses, or copies of whole units of bytes."""
    what = "of which the size or the place" if unit else "which"
    message = f"{action} of {size} bytes at {{}}, {what} is not a multiple of {unit or size} bytes"
    _first_access(m, "alignment", view, index, bad, site, message)


def _first_access(
    m: Machine, sanitizer: str, view: View, index: Array, bad: Array, site: int, message: str
) -> None:
    """Report the first bad access of lanes; its element and its lane are in place of {}."""
    if sanitizer not in m.watching.sanitizers:
        return
    lane = int(np.flatnonzero(bad)[0])
    place = (int(index[lane]),)
    message = message.format(f"{element_name(view.name, place)} by {thread_name(m, lane)}")
    report(m, sanitizer, view.name, place, lane, site, message, int(bad.sum()))


def outside_local(m: Machine, name: str, first: int, width: int, size: int, site: int) -> None:
    """Report an access to memory of the lanes themselves, past its end."""
    if "bounds" in m.watching.sanitizers:
        what = f"access of {width} elements at {element_name(name, (first,))}, outside its {size}"
        report(m, "bounds", name, (first,), 0, site, what)


def unordered_registers(
    m: Machine, name: str, low: int, groups: Array, late: Array, site: int, action: str, other: str
) -> None:
    """Report the first late access to registers of `wgmma`: [elements from `low`, groups]."""
    if "races" in m.watched:
        row, k = (int(each[0]) for each in np.nonzero(late))
        block, number = divmod(int(groups[k]), m.noted.groups)
        place = (low + row,)
        message = (
            f"{action} of {element_name(name, place)}, in registers of warp group {number}, which "
            f"nothing orders with {other}"
        )
        lane = block * m.threads + number * WARP_GROUP
        report(m, "races", name, place, lane, site, message, int(late.sum()))


def finish(m: Machine) -> None:
    """Report waits that may last for ever, and asynchronous work that outlives the blocks."""
    if m.clocks is None or "barriers" not in m.watching.sanitizers:
        return
    if m.barriers.overtaken is not None:
        block, barrier, warp, site = m.barriers.overtaken
        lane = block * m.threads + warp * WARP
        what = overtaken_wait(thread_name(m, lane), f"mbarrier {barrier}")
        report(m, "barriers", "", (), lane, site, what, hint=ALL_ARRIVE)
    if m.register_counts is not None:
        _registers(m, *m.register_counts)
    blocks, warps = m.units.unfinished("stores")
    if len(blocks):
        lane = int(blocks[0]) * m.threads + int(warps[0]) * WARP
        what = (
            f"a bulk store of {thread_name(m, lane)} may read shared memory after its block has "
            "ended: nothing waits for it"
        )
        report(m, "barriers", "", (), lane, 0, what, len(blocks))


def _registers(m: Machine, counts: Array, sites: Array) -> None:
    """Report warp groups whose warps have set other registers, and more than there are."""
    total, block = 0, 0
    for first in range(0, m.threads, WARP_GROUP):
        last = min(first + WARP_GROUP, m.threads) - 1
        warps = slice(first // WARP, last // WARP + 1)
        group = counts[:, warps]
        differs = np.flatnonzero((group != group[:, :1]).any(1))
        if len(differs):
            block = int(differs[0])
            warp = first // WARP + int(group[block].argmax())
            lane = block * m.threads + warp * WARP
            what = registers_of_a_part(f"threads {warp * WARP}..{warp * WARP + 31}", first, last)
            report(m, "barriers", "", (), lane, int(sites[block, warp]), what, hint=ALL_WARPS)
        total += int(group.max()) * (last + 1 - first)
    if total > REGISTERS:
        what = too_many_registers(total, REGISTERS)
        report(m, "barriers", "", (), 0, int(sites.max()), what)


def report(
    m: Machine,
    sanitizer: str,
    name: str,
    place: Sequence[int],
    lane: int,
    site: int,
    message: str,
    count: int = 1,
    other: Party | None = None,
    hint: str = "",
) -> None:
    """Add a report about an element, of the block of a lane."""
    found = Report(
        sanitizer,
        m.watching.kernel,
        *source_line(m.site(site)),
        name,
        tuple(place),
        m.place(lane),
        message,
        other,
        count,
        hint=hint,
    )
    m.watching.reports.add(found)
