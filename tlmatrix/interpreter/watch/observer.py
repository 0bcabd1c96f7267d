"""What observers share: how they are made, sites by number, code of the elements of accesses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.ownership import last_copy, may_be_misplaced
from tlmatrix.interpreter.analysis.shared import shared_memory, tensor_memory
from tlmatrix.interpreter.emit.access import is_guarded
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.memory import to_dims
from tlmatrix.interpreter.emit.values import Val, is_float
from tlmatrix.interpreter.program import Site, Watch

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access, Buf, Dim
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import Effect
    from tlmatrix.interpreter.ir.nodes import Kernel
    from tlmatrix.interpreter.program import Options

_ACQUIRING = ("acquire", "both", "unsaid")
_RELEASING = ("release", "both", "unsaid")


class Observer(Instrument):
    """The instrument of an observer in the registry.

    Attributes:
        options: the variant that is emitted.
        sites: the sites of the program, which its observers share.
    """

    def __init__(self, kernel: Kernel, options: Options, sites: SiteTable) -> None:
        del kernel
        self.options = options
        self.sites = sites

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Whether a variant has this observer."""
        return cls.name in options.observers


class Watcher(Observer):
    """The instrument of an observer whose other half follows launches and blocks, `watch`."""

    argument = "watch"
    reports_bounds = True
    sees_reads = True

    def plan(self, e: Emitter) -> Watch:
        """The sites, and what analyses found of the kernel."""
        return self.sites.watch(e)

    def grid(self, e: Emitter) -> None:
        """Note a launch."""
        e.w.line("watch.launch()")

    def block(self, e: Emitter, indices: list[Any]) -> None:
        """Note a block."""
        e.w.line(f"watch.enter(({', '.join(e.vars[var].code for var in indices)},))")


class SiteTable:
    """Numbers the sites of a program."""

    def __init__(self) -> None:
        self._numbers: dict[Site, int] = {}

    def number(self, site: Site) -> int:
        """The number of a site."""
        return self._numbers.setdefault(site, len(self._numbers))

    def access(
        self, e: Emitter, buf: Buf, action: str, *, orders: bool = False, kind: str = ""
    ) -> int:
        """The number of the site of an access at the current line."""
        atomic, order = e.atomic, e.atomic.order
        stores = action == "atomic" and atomic.is_access
        rounds = (kind or atomic.kind) == "add" and is_float(buf.dtype) and not atomic.reorderable
        return self.number(
            Site(
                e.w.location,
                buf.name,
                action,
                buf.scope,
                orders=orders,
                acquires=orders and not stores and order in _ACQUIRING,
                releases=action == "atomic" and order in _RELEASING,
                rounds=rounds,
            )
        )

    def arithmetic(self, e: Emitter) -> int:
        """The number of the site of arithmetic at the current line, which has no buffer."""
        return self.number(Site(e.w.location, "", "read"))

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites, by number."""
        return tuple(self._numbers)

    def watch(self, e: Emitter) -> Watch:
        """What the runtime half of a sanitizer needs to know."""
        kernel = e.kernel
        return Watch(
            self.sites,
            global_usage(e),
            misplaced=may_be_misplaced(kernel),
            copied_last=last_copy(kernel) is not None,
            shared=shared_memory(kernel),
            tensor=tensor_memory(kernel),
        )


def global_usage(e: Emitter) -> dict[str, frozenset[str]]:
    """What a kernel does with each global buffer: "read", "write", "atomic"."""
    buffers = ((node, buf) for node, buf in e.buffers.items() if buf.is_global)
    return {buf.name: e.facts.usage.get(node.data, frozenset()) for node, buf in buffers}


def unless(e: Emitter, effect: Effect) -> AbstractContextManager[None]:
    """Inside, lines are of an effect: under its condition, if it has one."""
    return nullcontext() if effect.unless is None else e.w.block(f"if not {effect.unless}")


def is_followed(buf: Buf) -> bool:
    """Whether sanitizers follow accesses to a buffer: not to the memory of an iteration."""
    return not buf.private_axes or buf.per_thread


# The elements that an access covers ----------------------------------------------------------


def loose_dims(e: Emitter, buf: Buf, dims: Sequence[Dim]) -> tuple[int, ...]:
    """The dims of an access that TileLang predicates."""
    guarded = is_guarded(e, buf)
    return tuple(k for k, d in enumerate(dims) if guarded and not d.is_fixed)


def mask_of(e: Emitter, access: Access, mask: Val | None) -> str:
    """A mask in the order of a block's own dims."""
    if mask is None:
        return "None"
    axes = frozenset(d.axis for d in access.dims if d.axis is not None)
    extra = tuple(sorted(mask.axes - axes))
    if extra:
        if not axes:
            return f"bool({mask.code}.any())"
        mask = Val(f"{mask.code}.any({extra}, keepdims=True)", "bool", axes)
    return to_dims(e, mask, access)


def place_of(e: Emitter, access: Access, mask: Val | None, shape: str) -> str:
    """Code of the elements of an access, as a `runtime.elements.Place`; `shape` is the buffer's."""
    if access.block:
        return f"block_of({access.dims_code}, {mask_of(e, access, mask)}, {shape})"
    return f"lanes_of({access.index_code}, {mask.code if mask is not None else 'None'}, {shape})"


def is_whole(e: Emitter, access: Access) -> bool:
    """Whether a store covers a whole local buffer."""
    return (
        not access.buf.is_global
        and access.block
        and e.mask is None
        and all(
            (d.extent is not None and d.base.lit == 0 and d.step == 1 and d.extent.code == n.code)
            or (d.extent is None and n.lit == 1 and d.base.lit == 0)
            for d, n in zip(access.dims, access.shape, strict=True)
        )
    )


def is_injective(e: Emitter, access: Access) -> bool:
    """Whether no two iterations have the same index, as far as affine forms can tell."""
    for dim in access.dims:
        affine = dim.value.affine
        if affine is None or {axis for axis, _ in affine.coefficients} != e.all_axes:
            continue
        reach = 0
        for axis, step in sorted(affine.coefficients, key=lambda c: abs(c[1])):
            extent = e.axis_at(axis).extent.lit
            if extent is None or abs(step) <= reach:
                break
            reach += abs(step) * (extent - 1)
        else:
            return True
    return False
