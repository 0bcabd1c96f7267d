"""The monitor of a sanitized launch, `watch` in generated source, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import torch_dtype
from tlmatrix.interpreter.reports import (
    Checks,
    Party,
    Report,
    ReportSet,
    element_name,
    source_line,
)
from tlmatrix.interpreter.sync import context
from tlmatrix.interpreter.sync.flags import atomic
from tlmatrix.interpreter.sync.races import Access

from .bounds import Bounds, Collisions, Overflows
from .crossings import Crossings
from .order import BlockOrder, Running
from .packed import Packed, boundaries_of
from .repeats import Repeats
from .shadows import GlobalShadow, LocalShadow

if TYPE_CHECKING:
    import torch

    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.program import Program, Site
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Place
    from tlmatrix.interpreter.sync.accesses import View
    from tlmatrix.interpreter.sync.agents import Clock

    Tensors = Mapping[str, torch.Tensor]


class Findings:
    """Findings of one launch: the first of each cause, and a count.

    Attributes:
        sanitizers: those that are on.
        sites: by number the places in the user's source that access buffers.
    """

    def __init__(
        self,
        program: Program,
        sites: tuple[Site, ...],
        sanitizers: frozenset[str],
        tensors: Tensors,
        order: BlockOrder,
    ) -> None:
        self.sanitizers = sanitizers
        self.sites = sites
        self._kernel = program.name
        self._tensors = tensors
        self._order = order
        self._found = ReportSet()
        self._of_agents: list[Report] = []

    def report(
        self,
        name: str,
        site: int,
        index: tuple[int, ...],
        message: str,
        other: int = 0,
        hint: str = "",
        axis: int = 0,
    ) -> None:
        """Keep a finding of sanitizer `name`, or count it if its site and `axis` have one.

        `message` may have `{buffer}` and `{action}`; `other` is the code of the other access;
        `hint` replaces the advice that goes with all findings of the sanitizer.
        """
        if name not in self.sanitizers:
            return
        party, number = None, -1
        if other:
            block, number = self._order.party(other)
            by = self.sites[number]
            party = Party(block, *source_line(by.location), by.action)
        key = (name, site, number, axis)
        if self._found.again(key):
            return
        at = self.sites[site]
        index = tuple(int(i) for i in index)
        text = message.format(buffer=element_name(at.buffer, index), action=at.action)
        report = self.about(name, at.location, at.buffer, index, self._order.block, text)
        tensor = report.tensor if at.is_global else None
        self._found.add(replace(report, other=party, tensor=tensor, hint=hint), key)

    def add(self, reports: Iterable[Report]) -> None:
        """Keep reports about the agents of a block: races between them, barriers."""
        self._of_agents += [r for r in reports if r.sanitizer in self.sanitizers]

    def reports(self) -> list[Report]:
        """All findings, in order."""
        return [*self._of_agents, *self._found.reports()]

    def about(
        self,
        name: str,
        location: Location | None,
        buffer: str,
        index: tuple[int, ...],
        block: tuple[int, ...] | None,
        message: str,
    ) -> Report:
        """A report about an element of a buffer."""
        at = source_line(location)
        tensor = self._tensors.get(buffer)
        return Report(name, self._kernel, *at, buffer, index, block, message, tensor=tensor)


class Monitor(Bounds, Collisions, Crossings, Overflows, Repeats):
    """One launch of a sanitized program.

    Attributes:
        sanitizers: the sanitizers that are on.
        order: which accesses of other blocks are ordered before the current one.
        findings: what was found.
        shadows: of global buffers, by name.
        usage: what the kernel does with each: "read", "write", "atomic". Parameters that are
            one tensor have one shadow and one usage.
        aliases: the first name of such a tensor, by each of its names.
    """

    traced = False

    def __init__(
        self,
        program: Program,
        checks: Checks,
        tensors: Mapping[str, torch.Tensor],
        outputs: frozenset[str],
        confirmed: Callable[[str, int, bool], bool],
    ) -> None:
        assert program.watch is not None
        self._sites = program.watch.sites
        self._kernel = program.name
        self._tensors = tensors
        self._checks = checks
        self._outputs = outputs
        self.confirmed = confirmed
        self.sanitizers = on = checks.sanitizers
        self.order = BlockOrder(self._sites)
        self.findings = Findings(program, self._sites, on, tensors, self.order)
        self.shadows: dict[str, GlobalShadow] = {}
        self.aliases = aliases_of(tensors)
        self.usage = merged_usage(program.watch.usage, self.aliases)
        packed = on & {"sequences", "overreads"}
        declared = {n: checks.sequences(n, t) for n, t in tensors.items()} if packed else {}
        self._declared = {n: found for n, found in declared.items() if found is not None}
        self._boundaries = boundaries_of(tensors, self._declared)
        self._blank = {}
        if checks.poison and on & {"uninitialised", "unwritten"}:
            self._blank = blank_elements(tensors, checks, program.layouts)
        self._rank_accesses: dict[tuple[int, str, int, int], Access] = {}
        self.add = self.findings.add
        self.reports = self.findings.reports
        self.launch = self.order.launch

    # -- shadows

    def parameter(self, name: str, array: Array | None) -> GlobalShadow:
        """The shadow of a parameter."""
        first = self.aliases.get(name)
        if first in self.shadows:
            self.shadows[name] = self.shadows[first]
            return self.shadows[name]
        shape = tuple(array.shape) if array is not None else ()
        blank = self._blank.get(name)
        if blank is None and name in self._outputs:
            blank = np.ones(shape, bool)
        self.shadows[name] = GlobalShadow(
            self,
            name,
            shape,
            blank=blank,
            packed=self._packed(name, shape),
            boundaries=self._boundaries.get(name),
            ranks=self._ranks(name),
        )
        return self.shadows[name]

    def workspace(self, name: str, array: Array) -> GlobalShadow:
        """The shadow of global memory that the kernel allocates."""
        return GlobalShadow(self, name, array.shape, blank=np.ones(array.shape, bool))

    def local(self, name: str, shape: tuple[int, ...]) -> LocalShadow:
        """The shadow of a block's buffer."""
        return LocalShadow(self.findings, name, shape)

    def _packed(self, name: str, shape: tuple[int, ...]) -> Packed | None:
        declared = self._declared.get(name)
        if (
            declared is None
            or declared.axis >= len(shape)
            or shape[declared.axis] < declared.boundaries[-1]
        ):
            return None
        readers = [b for b in self._boundaries.values() if b.values == declared.boundaries]
        if not readers and declared.of_block is None:
            return None
        return Packed(self.findings, self.order, declared, readers)

    # -- blocks

    def enter(self, block: tuple[int, ...]) -> Running:
        """A block starts."""
        read: dict[str, set[int]] = {}
        for name, found in self._boundaries.items():
            found.read = read[name] = set()
        return self.order.enter(block, read)

    def resume(self, running: Running) -> None:
        """A block that has started before goes on."""
        if running.number != self.order.current:
            self.order.resume(running)
            for name, found in self._boundaries.items():
                found.read = running.read[name]

    def work_as(self, running: Running, clock: Clock, agent: int, time: int) -> None:
        """Accesses from now on are an agent's of a block, with its clock, at a time of it."""
        self.resume(running)
        self.order.work_as(clock, agent, time)

    # -- flags, streams and ranks

    def is_flag(self, site: int) -> bool:
        """Whether an access is to a flag: an atomic load or store, or one whose value is used."""
        return self._sites[site].orders

    def rounds(self, site: int) -> bool:
        """Whether a site's order must be reported: an atomic addition of floats."""
        return "atomics" in self.sanitizers and self._sites[site].rounds

    def flag(self, site: int, name: str, place: Place, shape: tuple[int, ...]) -> None:
        """An atomic access acquires from a flag, releases to it, or both."""
        how = self._sites[site]
        if not (how.acquires or how.releases) or "ordered" not in self.usage.get(name, ()):
            return
        memory, mask = place
        selected = np.arange(int(np.prod(shape))).reshape(shape)[memory]
        if mask is not None:
            selected = selected[np.broadcast_to(mask, np.shape(selected))]
        offsets = np.atleast_1d(selected).ravel().tolist()
        if context.world() is not None and name in self._tensors:
            self._flag_of_ranks(how, name, offsets)
        elements = [(name, offset) for offset in offsets]
        self.order.flag(elements, acquires=how.acquires, releases=how.releases)

    def _flag_of_ranks(self, how: Site, name: str, offsets: list[int]) -> None:
        """The same for other launches and ranks: T.atomic_* have device scope."""
        tensor = self._tensors[name]
        at = source_line(how.location)
        for offset in offsets if not tensor.dtype.is_floating_point else ():
            index = tuple(int(i) for i in np.unravel_index(offset, tensor.shape))
            atomic(tensor.numpy(), index, name, at, how.acquires, how.releases)

    def _ranks(self, name: str) -> View | None:
        """Accesses of a parameter's memory by simulated ranks and streams."""
        world = context.world()
        if world is None or world.accesses is None or name not in self._tensors:
            return None
        return world.accesses.view(self._tensors[name])

    def is_shared(self, name: str) -> bool:
        """Whether other simulated ranks or streams reach a parameter's memory."""
        return self._ranks(name) is not None

    def note_for_ranks(self, view: View, site: int, place: Place, name: str, action: str) -> None:
        """Note an access of memory that other simulated ranks and streams reach."""
        world = context.world()
        if world is None or world.running is None:
            return
        agent = world.running
        key = site, action, agent.agent, agent.clock.get(agent.agent, 0)
        access = self._rank_accesses.get(key)
        if access is None:
            how = self._sites[site]
            scope = "gpu" if action == "atomic" or how.orders else ""
            at = source_line(how.location)
            access = Access.of(agent, action, *at, f"kernel {self._kernel}", scope)
            self._rank_accesses[key] = access
        view.note(place, access, agent, name)

    # -- the end of a launch

    def finish(self) -> list[Report]:
        """The launch is over: what it found, and outputs that are not written."""
        found = self.reports()
        if "unwritten" in self.sanitizers:
            for name, shadow in self.shadows.items():
                if name not in self._checks.partial and self._is_output(name):
                    found += self._unwritten(name, shadow.blank)
        return found

    def _unwritten(self, name: str, blank: Array | None) -> list[Report]:
        if blank is None:
            return []
        count = int(np.count_nonzero(blank))
        where = tuple(int(i) for i in np.argwhere(blank)[0])
        site = next((s for s in self._sites if s.buffer == name and s.action != "read"), None)
        element = element_name(name, where)
        message = f"output {element} is never written, and {count - 1} other elements"
        location = site.location if site is not None else None
        return [self.findings.about("unwritten", location, name, where, None, message)]

    def _is_output(self, name: str) -> bool:
        """Whether a kernel should write the whole of a parameter, as far as can be told."""
        usage = self.usage.get(name, frozenset())
        if self._checks.poison and name not in self._outputs:
            return name in self._blank and bool(usage & {"write", "atomic"})
        return name in self._outputs or ("write" in usage and not usage & {"read", "atomic"})


def blank_elements(
    tensors: Tensors, checks: Checks, layouts: Mapping[str, Any]
) -> dict[str, Array]:
    """Which elements of parameters hold the caller's poison; only parameters that have some."""
    found = {}
    for name, tensor in tensors.items():
        poison = checks.poison.get(tensor.dtype)
        # A layout puts elements elsewhere, and has gaps between them.
        if poison is None or name in layouts:
            continue
        # numpy looks through a few thousand elements in a third of torch's time.
        blank = tensor.view(torch_dtype(f"int{8 * tensor.element_size()}")).numpy() == poison
        if np.count_nonzero(blank):
            found[name] = blank
    return found


def aliases_of(tensors: Tensors) -> dict[str, str]:
    """Of parameters that are one tensor the first one's name, by each name."""
    addresses: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        addresses.setdefault(tensor.data_ptr(), []).append(name)
    addresses.pop(0, None)  # of empty tensors
    aliases = {}
    for names in addresses.values():
        if len(names) == 1:
            continue
        first: dict[Any, str] = {}
        for name in names:
            tensor = tensors[name]
            known = first.setdefault((tensor.shape, tensor.stride(), tensor.dtype), name)
            if known != name:
                aliases[name] = aliases[known] = known
    return aliases


def merged_usage(
    usage: Mapping[str, frozenset[str]], aliases: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """What a kernel does with each buffer; the same for parameters that are one tensor."""
    merged = dict(usage)
    for first in set(aliases.values()):
        names = [name for name, of in aliases.items() if of == first]
        together = frozenset().union(*(usage.get(name, frozenset()) for name in names))
        merged.update(dict.fromkeys(names, together))
    return merged
