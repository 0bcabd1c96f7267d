"""Checks accesses of lanes against earlier ones to the same memory, and notes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.reports import element_name

from . import findings

if TYPE_CHECKING:
    from tlmatrix.interpreter.runtime.codecs import Array

    from .clocks import Clocks, Shadow
    from .machine import Machine
    from .memory import View


def _noted(m: Machine, view: View) -> tuple[Shadow, Clocks]:
    """The shadow of a view's memory and the clocks, where accesses are noted."""
    assert view.memory.shadow is not None
    return view.memory.shadow, m.noted


def units_of(view: View, places: Array, width: int = 1) -> Array:
    """Units of shared or global memory that accesses touch: [units, *places]."""
    shadow = view.memory.shadow
    assert shadow is not None
    start = places * view.itemsize // shadow.size
    last = (places * view.itemsize + width * view.itemsize - 1) // shadow.size
    count = int((last - start).max()) + 1 if places.size else 1
    found: Array = start + np.arange(count).reshape(-1, *(1,) * places.ndim)
    return found


def rows_of(view: View, start: Array) -> Array:
    """Units that elements in rows of 16 bytes or more touch, each once: [..., elements]."""
    shadow = view.memory.shadow
    assert shadow is not None
    step = max(1, shadow.size // view.itemsize)
    return units_of(view, start[..., ::step] // view.itemsize)


def unit_reads(m: Machine, unit: str, lanes: Array, view: View, start: Array, site: int) -> None:
    """An asynchronous unit reads shared memory for lanes: [lanes, bytes of elements]."""
    shadow, clocks = m.arena.shadow, m.clocks
    if shadow is None or clocks is None:
        return
    units = rows_of(view, start)
    lane_of = np.broadcast_to(lanes[:, None], units.shape).ravel()
    flat = units.ravel()
    check_read(m, view, flat, lane_of, site)
    _check_proxy(m, view, flat, lane_of, site)
    shadow.started_reading(flat, *m.units.running(unit, lane_of), site)


def bulk_read(m: Machine, view: View, at: Array, lanes: Array, site: int) -> None:
    """A bulk copy reads global memory, at bytes for the lanes."""
    shadow, clocks = view.memory.shadow, m.clocks
    if shadow is not None and clocks is not None and len(at):
        units = units_of(view, at // view.itemsize)
        lane_of, flat = np.broadcast_to(lanes, units.shape).ravel(), units.ravel()
        check_read(m, view, flat, lane_of, site)
        shadow.read(clocks, flat, lane_of, site)


def bulk_write(
    m: Machine, view: View, at: Array, lanes: Array, changes: Array, add: bool, site: int
) -> None:
    """A bulk copy writes or adds to global memory; `changes` are elements that differ."""
    shadow, clocks = view.memory.shadow, m.clocks
    if shadow is None or clocks is None or not len(at):
        return
    touched = units_of(view, at // view.itemsize)
    lanes, changes = (np.broadcast_to(each, touched.shape).ravel() for each in (lanes, changes))
    units = touched.ravel()
    after_write = shadow.after_write(clocks, units, lanes)
    if add:  # additions need no order among themselves
        after_write |= shadow.site[units] < 0
    after_reads = shadow.after_reads(clocks, units, lanes)
    for ordered, other in ((after_write, "write"), (after_reads, "read")):
        action = "atomic" if add else "write"
        findings.late_races(m, view, units, lanes, ~ordered & changes, action, site, other)
    shadow.wrote(clocks, units, lanes, -site - 1 if add else site)


def _check_proxy(m: Machine, view: View, units: Array, lanes: Array, site: int) -> None:
    """Report reads by asynchronous units of what threads wrote, without a proxy fence."""
    shadow, clocks = _noted(m, view)
    agent = shadow.agent[units].astype(np.int64)
    by_thread = (agent < clocks.warps) & (shadow.clock[units] > 0)
    known = clocks.proxied[
        clocks.block[lanes], clocks.warp[lanes], np.minimum(agent, clocks.warps - 1)
    ]
    late = by_thread & (shadow.clock[units] > known)
    findings.late_races(m, view, units, lanes, late, "read without a proxy fence", site, "write")


def reads(m: Machine, view: View, places: Array, width: int, mask: Any, site: int) -> None:
    """Check a read against earlier writes, and note it."""
    shadow, clocks = _noted(m, view)
    lanes = m.lanes
    if mask is not None:
        places, lanes = np.broadcast_to(places, lanes.shape)[mask], lanes[mask]
    if not len(places):
        return
    units = units_of(view, places, width)
    spread = np.broadcast_to(lanes, units.shape)
    check_read(m, view, units.ravel(), spread.ravel(), site)
    shadow.read(clocks, units.ravel(), spread.ravel(), site)


def check_read(m: Machine, view: View, units: Array, lanes: Array, site: int) -> None:
    """Report reads that nothing orders after a write, and of what nothing wrote."""
    shadow, clocks = _noted(m, view)
    late = ~shadow.after_write(clocks, units, lanes)
    if site < 0:
        late &= shadow.site[units] >= 0
    findings.late_races(m, view, units, lanes, late, "read", site, "write")
    if view.memory.scope == "shared" and "uninitialised" in m.watched:
        unwritten = shadow.unwritten(units)
        if unwritten.any():
            k = int(np.flatnonzero(unwritten)[0])
            place = findings.element(m, view, units[k])
            findings.report(
                m,
                "uninitialised",
                view.name,
                place,
                int(lanes[k]),
                site,
                f"a read of {element_name(view.name, place)}, which nothing has written",
                int(unwritten.sum()),
            )


def writes(
    m: Machine,
    view: View,
    places: Array,
    lanes: Array,
    width: int,
    raw: Array,
    site: int,
    unit: str = "",
) -> None:
    """Check a write against earlier accesses, and note it, before memory changes."""
    shadow, clocks = _noted(m, view)
    units = units_of(view, places, width)
    spread = np.broadcast_to(lanes, units.shape)
    flat, lane_of = units.ravel(), spread.ravel()
    after_write = shadow.after_write(clocks, flat, lane_of, shadow.by_one_lane(flat))
    after_reads = shadow.after_reads(clocks, flat, lane_of)
    if not (after_write.all() and after_reads.all()):
        # What changes nothing harms nothing: threads often store one value to one place.
        before, after = (np.ascontiguousarray(each) for each in (view.elements(places, width), raw))
        changes = before.view(np.uint8) != after.view(np.uint8)
        changes = changes.reshape(width, len(places), -1).any((0, 2))
        changes = np.broadcast_to(changes, units.shape).ravel()
        for ordered, other in ((after_write, "write"), (after_reads, "read")):
            late = ~ordered & changes
            findings.late_races(m, view, flat, lane_of, late, "write", site, other)
    if unit:
        shadow.started(flat, *m.units.running(unit, lane_of), site, lane_of)
        return
    several = shadow.wrote(clocks, flat, lane_of, site)
    if several.any():
        _written_together(m, view, lanes, view.all_places(places, width), raw, flat, site)


def _written_together(
    m: Machine, view: View, lanes: Array, where: Array, raw: Array, units: Array, site: int
) -> None:
    """Several lanes wrote to some units in one statement: of one value, or a race."""
    shadow, clocks = _noted(m, view)
    elements, values = where.ravel(), np.ascontiguousarray(raw).ravel()
    order = np.argsort(elements, kind="stable")
    elements, values = elements[order], values[order]
    same = elements[1:] == elements[:-1]
    bits = values.view(f"u{values.itemsize}")
    differ = same & (bits[1:] != bits[:-1])
    if differ.any():
        k = int(np.flatnonzero(differ)[0])
        lane_of = np.broadcast_to(lanes, where.shape).ravel()[order]
        element = int(elements[k])
        unit = element * view.itemsize // shadow.size
        shadow.lane[unit] = lane_of[k]
        findings.race(m, view, unit, int(lane_of[k + 1]), "write", site, int(differ.sum()), "write")
    if same.any():
        spread = np.broadcast_to(lanes, (len(units) // len(lanes), len(lanes))).ravel()
        together = np.isin(units, units[shadow.lane[units] != spread])
        shadow.wrote_together(clocks, units[together], spread[together])


def updates(m: Machine, view: View, places: Array, width: int, on: Array, site: int) -> None:
    """Check an atomic against earlier accesses that are not, and note it.

    A negative site is that of an atomic, which needs no order among others.
    """
    shadow, clocks = _noted(m, view)
    places, lanes = places[on], m.lanes[on]
    if not len(places):
        return
    units = units_of(view, places, width)
    spread = np.broadcast_to(lanes, units.shape)
    flat, lane_of = units.ravel(), spread.ravel()
    late = ~shadow.after_write(clocks, flat, lane_of, changed=True) & (shadow.site[flat] >= 0)
    findings.late_races(m, view, flat, lane_of, late, "atomic", site, "write")
    late = ~shadow.after_reads(clocks, flat, lane_of) & (shadow.seen[flat] >= 0)
    findings.late_races(m, view, flat, lane_of, late, "atomic", site, "read")
    shadow.wrote(clocks, flat, lane_of, -site - 1)
