"""The memory sanitizers: calls of shadows and of the monitor beside every access.

Shadows of memory keep which agent wrote an element and which read it, and whether it was written
at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tlmatrix.interpreter.emit.access import conditions, is_guarded
from tlmatrix.interpreter.emit.expressions import both
from tlmatrix.interpreter.emit.threads.axis import cluster_of, has_cluster, rank_in_cluster
from tlmatrix.interpreter.emit.values import integer_code, is_float, is_int, parts_of
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.runtime.elements import block_of, lanes_of

from .observer import (
    Watcher,
    is_followed,
    is_injective,
    is_whole,
    loose_dims,
    mask_of,
    place_of,
    unless,
)

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access, Buf, Dim
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import BufferRegion, Effect, TileOperation
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.program import Options

    from .observer import SiteTable

_SYNC = "tirx.tvm_storage_sync"


class MemorySanitizer(Watcher):
    """Writes what the sanitizers that are on look at; `monitor.Monitor` is its other half."""

    name = "sanitized"
    functions: ClassVar = {"block_of": block_of, "lanes_of": lanes_of}

    def __init__(self, kernel: ir.Kernel, options: Options, sites: SiteTable) -> None:
        super().__init__(kernel, options, sites)
        self._on = options.sanitizers
        self._copied: set[ir.Var] = set()
        """Data of the destinations of copies."""
        for call in walk(kernel.body):
            if isinstance(call, ir.Call) and "copy" in call.op:
                operands = call.args[1:] if call.op == "tl.tileop.copy" else call.args
                found = (n for n in walk(*operands) if isinstance(n, ir.Region))
                self._copied.update(region.buffer.data for region in found)
        self._seen: dict[str, str] = {}
        """Names of shadows, by the code of their buffer."""

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """With any sanitizer, unless values are traced in place of it."""
        return bool(options.sanitizers) and "traced" not in options.observers

    def snapshot(self) -> Any:
        """The shadows."""
        return dict(self._seen)

    def restore(self, saved: Any) -> None:
        """Forget shadows made since."""
        self._seen = dict(saved)

    # -- the grid and memory

    def parameters(self, e: Emitter) -> None:
        """Make the shadows of the parameters."""
        for buf in list(e.buffers.values()):
            self._watch_global(e, buf, "parameter")

    def _watch_global(self, e: Emitter, buf: Buf, kind: str) -> None:
        name = self._seen[buf.code] = e.launch_prologue.fresh(f"{buf.code}_seen")
        e.launch_prologue.line(f"{name} = watch.{kind}({buf.name!r}, {buf.code})")

    def allocated(self, e: Emitter, buf: Buf) -> None:
        """Make the shadow of a buffer."""
        if buf.is_global:
            self._watch_global(e, buf, "workspace")
            return
        if "uninitialised" not in self._on or buf.scope == "local.reducer":
            return
        data = next(node.data for node, found in e.buffers.items() if found is buf)
        # What is copied may be uninitialized in part, though it is written whole.
        if e.may_shorten and data in e.facts.initialized and data not in self._copied:
            return
        name = self._seen[buf.code] = e.w.fresh(f"{buf.code}_seen")
        extents = [n.code for n in buf.shape]
        if buf.per_thread:
            extents += [e.axis_at(p).extent.code for p in buf.private_axes]
        shape = "()" if buf.variable else f"({', '.join(extents)},)"
        if (buf.static_shape is not None and not buf.per_thread) or buf.variable:
            e.prologue.line(f"{name} = watch.local({buf.name!r}, {shape})")
            e.w.line(f"{name}.clear()")
        else:
            e.w.line(f"{name} = watch.local({buf.name!r}, {shape})")
        if buf.scope.startswith("shared") and has_cluster(e):
            rank = rank_in_cluster(e)
            e.w.line(f"{cluster_of(e)}.share_shadow({buf.code!r}, {rank}, {name})")

    def viewed(self, e: Emitter, whole: Buf, view: Buf) -> None:
        """A view has the shadow of its buffer; elements of another size are not followed."""
        seen = self._seen.get(whole.code)
        if seen is None:
            return
        if view.dtype == whole.dtype:
            name = self._seen[view.code] = e.w.fresh(f"{view.code}_seen")
            shape = ", ".join(n.code for n in view.shape)
            once = whole.is_global or whole.static_shape
            (e.prologue if once else e.w).line(f"{name} = {seen}.reshaped(({shape},))")
        elif not whole.is_global:
            e.w.line(f"{seen}.full = True")

    def _mark_full(self, e: Emitter, buf: Buf) -> None:
        if buf.code in self._seen:
            e.w.line(f"{self._seen[buf.code]}.full = True")

    def overwritten(self, e: Emitter, buf: Buf) -> None:
        """All elements of a buffer were written."""
        self._mark_full(e, buf)

    def merged_copies(self, e: Emitter, buf: Buf, copies: Buf) -> None:
        """Writes of an iteration to its own memory are not followed; after the loop it is full."""
        del copies
        self._mark_full(e, buf)

    def before_statement(self, e: Emitter, node: Any) -> None:
        """Look at a barrier of all threads, where some threads may not come to it."""
        call = node.value if isinstance(node, ir.Evaluate) else None
        if not isinstance(call, ir.Call) or call.op != _SYNC or "barriers" not in self._on:
            return
        of_block = len(call.args) == 1 and str(call.args[0].value) != "warp"
        # A barrier waits for no threads that have ended.
        if of_block and e.mask is not None and not e.mask.scalar and not e.kernel.ends_early:
            e.w.line(f"watch.partial_barrier({self.sites.arithmetic(e)}, {e.mask.code})")

    def after_statement(self, e: Emitter, node: Any) -> None:
        """A buffer whose address was passed on counts as written."""
        call = node.value if isinstance(node, ir.Evaluate) else None
        if not isinstance(call, ir.Call) or call.op.startswith(("tl.tileop.", "tl.atomic")):
            return
        for child in walk(call):
            if isinstance(child, ir.Region) or (
                isinstance(child, ir.Call) and child.op == "tl.access_ptr"
            ):
                load = child if isinstance(child, ir.Region) else child.args[0]
                buf = e.buffers.get(load.buffer)
                if buf is not None and not buf.is_global:
                    self._mark_full(e, buf)

    # -- bounds

    def _report_bounds(
        self,
        e: Emitter,
        buf: Buf,
        dims: Sequence[Dim],
        unproven: Sequence[str],
        site: int,
        mask: str = "None",
        loose: tuple[int, ...] | None = None,
    ) -> None:
        """Report a block outside; dims that are `loose` are predicated by TileLang."""
        if not unproven:
            return
        loose = loose_dims(e, buf, dims) if loose is None else loose
        if "guarded" not in self._on:
            unproven = [
                text
                for k, (d, n) in enumerate(zip(dims, buf.shape, strict=False))
                if k not in loose
                for text in conditions(d, n)
            ]
            if not unproven:
                return
        code = "(" + ", ".join(d.code for d in dims) + ",)"
        with e.w.block(f"if not ({' and '.join(dict.fromkeys(unproven))})"):
            e.w.line(f"watch.outside({site}, {code}, {buf.code}.shape, {loose}, {mask})")

    def _watch_access(self, e: Emitter, access: Access, site: int) -> None:
        buf = access.buf
        if access.block:
            mask = mask_of(e, access, e.mask) if access.conditions else "None"
            self._report_bounds(e, buf, access.dims, access.conditions, site, mask)
            return
        loose = loose_dims(e, buf, access.dims)
        inside = all(
            d.value.lo is not None
            and d.value.lo >= 0
            and d.value.hi is not None
            and n.lit is not None
            and d.value.hi < n.lit
            for d, n in zip(access.dims, buf.shape, strict=False)
        )
        predicated = len(loose) == len(access.dims) and "guarded" not in self._on
        if not inside and not predicated:
            e.w.line(
                f"watch.lanes_outside({site}, {access.index_code}, {buf.code}.shape, {loose}, "
                f"{e.mask_code})"
            )

    def before_view(self, e: Emitter, region: BufferRegion) -> None:
        """Outside cannot be skipped here: the report, then the error."""
        if region.conditions:
            site = self.sites.access(e, region.buf, "access")
            with e.w.block(f"if not ({' and '.join(region.conditions)})"):
                e.w.line(
                    f"watch.outside({site}, {region.dims_code}, {region.buf.code}.shape, (), None)"
                )

    # -- single elements

    def _see(
        self, e: Emitter, buf: Buf, action: str, site: int, place: str, skips: str = ""
    ) -> None:
        """Tell the shadow of a buffer of an access, unless it needs no look."""
        seen = self._seen.get(buf.code)
        if seen is None:
            return
        calm = "full" if not buf.is_global else "quiet" if action == "read" else "still"
        skips = f"{skips} or " if skips and calm == "quiet" else ""
        e.w.line(f"{seen}.{calm} or {skips}{seen}.{action}({site}, {place})")

    def _see_access(self, e: Emitter, access: Access, action: str, site: int) -> None:
        """The same for an access of iterations."""
        seen = self._seen.get(access.buf.code)
        if seen is not None:
            self._see(e, access.buf, action, site, place_of(e, access, e.mask, f"{seen}.shape"))

    def _see_region(self, e: Emitter, region: BufferRegion, action: str, site: int) -> None:
        """The same for a region of a tile operation."""
        seen = self._seen.get(region.buf.code)
        place = f"block_of({region.dims_code}, None, {seen}.shape)"
        self._see(e, region.buf, action, site, place, f"{seen}.skips({region.dims_code})")

    def read(self, e: Emitter, access: Access) -> None:
        """Iterations are about to read."""
        if not is_followed(access.buf):
            return
        site = self.sites.access(e, access.buf, "read", orders=e.atomic.is_access)
        self._watch_access(e, access, site)
        seen = self._seen.get(access.buf.code)
        if seen is None:
            return
        place = place_of(e, access, e.mask, f"{seen}.shape")
        skips = f"{seen}.skips({access.dims_code})" if access.block and e.mask is None else ""
        if e.stored is not None:
            # Reads of iterations whose value is not stored have no effect.
            every, stored = e.stored
            some = place_of(e, access, both(e, e.mask, stored), f"{seen}.shape")
            place = f"({place} if {every} else {some})" if every else some
            skips = f"({every}) and {skips}" if every and skips else ""
        self._see(e, access.buf, "read", site, place, skips)

    def read_scalar(self, e: Emitter, access: Access, code: str) -> str:
        """A single element is read in the middle of an expression."""
        buf = access.buf
        if not is_followed(buf):
            return code
        index = f"({access.element},)"
        site = self.sites.access(e, buf, "read", orders=e.atomic.is_access)
        seen = self._seen.get(buf.code)
        inside = code if seen is None else f"{seen}.one({site}, {index}, {code})"
        if e.mask is not None and seen is not None:
            inside = f"({inside} if {e.mask.code}.any() else {code})"
        if not access.conditions:
            return inside
        loose = loose_dims(e, buf, access.dims)
        # Of what TileLang predicates, integers count: a table ends where its last entry does.
        table = "tables" in self._on and is_int(buf.dtype) and buf.safe == "0"
        predicated = len(loose) == len(access.dims) and "guarded" not in self._on
        if table or not predicated:
            code = f"watch.one({site}, {index}, {buf.code}.shape, {loose}, {code}, {e.mask_code})"
        return code if code == inside else f"({inside} if {access.inside} else {code})"

    def read_variable(self, e: Emitter, buf: Buf, code: str) -> str:
        """A variable is read in the middle of an expression."""
        seen = self._seen.get(buf.code)
        if seen is None:
            return code
        site = self.sites.access(e, buf, "read")
        text = f"({code} if {seen}.full else {seen}.one({site}, (), {code}))"
        return text if parts_of(code) is None else integer_code(text)

    def before_assignment(self, e: Emitter, buf: Buf, result: Val) -> None:
        """A variable is about to be assigned."""
        del result
        self._mark_full(e, buf)

    def before_write(self, e: Emitter, access: Access, result: Val, value: Any) -> None:
        """A value is about to be stored."""
        del value
        buf, atomic = access.buf, e.atomic.is_access
        if not is_followed(buf):
            return
        site = self.sites.access(e, buf, "atomic" if atomic else "write", orders=atomic)
        self._watch_access(e, access, site)
        self._watch_collisions(e, access, result, site)
        if is_whole(e, access):
            self._mark_full(e, buf)
            return
        self._see_access(e, access, "atomic" if atomic and buf.is_global else "write", site)

    def before_atomic(self, e: Emitter, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done."""
        del result
        buf = access.buf
        if not is_followed(buf):
            return
        site = self.sites.access(e, buf, "atomic", orders=previous)
        self._watch_access(e, access, site)
        self._watch_order(e, access, site)
        if buf.name in e.reducers:
            # A contribution: the reducer has an identity to add it to.
            self._mark_full(e, buf)
            return
        self._see_access(e, access, "atomic", site)

    def copied_element(self, e: Emitter, buf: Buf, index: str, mask: str, *, write: bool) -> None:
        """Each thread is about to copy one element."""
        action = "write" if write else "read"
        site = self.sites.access(e, buf, action)
        loose = tuple(range(len(buf.shape))) if is_guarded(e, buf) else ()
        if not loose or "guarded" in self._on:
            e.w.line(f"watch.lanes_outside({site}, {index}, {buf.code}.shape, {loose}, {mask})")
        self._see(e, buf, action, site, f"lanes_of({index}, {mask}, {buf.code}.shape)")

    def _watch_order(self, e: Emitter, access: Access, site: int) -> None:
        """Iterations that add to one element: the order of threads decides how sums round."""
        adds = e.atomic.kind == "add" and is_float(access.buf.dtype) and not e.atomic.reorderable
        if "atomics" not in self._on or not adds or not e.axes or access.buf.name in e.reducers:
            return
        if not is_injective(e, access):
            e.w.line(
                f"watch.lanes_added({site}, {access.index_code}, {access.buf.code}.shape, "
                f"{e.mask_code}, {e.shape_of(e.all_axes)})"
            )

    # -- iterations that store to one element

    def _watch_collisions(self, e: Emitter, access: Access, result: Val, site: int) -> None:
        buf = access.buf
        if "lanes" not in self._on or not e.axes:
            return
        shape = e.shape_of(e.all_axes)
        if e.agents.in_threads(e):
            # Threads that store to one element: a finding only where their values differ.
            if not buf.private_axes and result.axes and not is_injective(e, access):
                e.w.line(
                    f"watch.threads_twice({site}, {access.index_code}, {buf.code}.shape, "
                    f"{e.mask_code}, {shape}, {result.code})"
                )
            return
        if buf.scope in ("local", "local.var"):
            return
        if not access.block:
            if result.axes and not is_injective(e, access):
                e.w.line(
                    f"watch.lanes_twice({site}, {access.index_code}, {buf.code}.shape, "
                    f"{e.mask_code}, {shape})"
                )
            return
        missing = sorted((e.all_axes - access.axes) & result.axes)
        if any(e.axis_at(p).extent.lit != 1 for p in missing):
            e.w.line(
                f"watch.axes_twice({site}, {access.dims_code}, {buf.code}.shape, "
                f"{tuple(missing)}, {e.mask_code}, {shape})"
            )

    # -- tile operations

    def before_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation is about to access its operands."""
        if op.moves is not None:
            self._watch_copy(e, *op.moves)
        for effect in op.effects:
            if op.moves is None:
                with unless(e, effect):
                    self._watch_region(e, effect)
            elif effect.blocks:
                site = self.sites.access(e, effect.region.buf, effect.action)
                self._see_in_blocks(e, effect, site)

    def _see_in_blocks(self, e: Emitter, effect: Effect, site: int) -> None:
        """Note an access in the shadows that the blocks of a cluster have of a buffer."""
        region, name = effect.region, effect.region.buf.code
        if name not in self._seen:
            return
        place = f"block_of({region.dims_code}, None, seen.shape)"
        with e.w.block(f"for seen in {cluster_of(e)}.shadows({name!r}, {effect.blocks})"):
            e.w.line(f"seen.full or seen.{effect.action}({site}, {place})")

    def _watch_region(self, e: Emitter, effect: Effect) -> None:
        region, action, buf = effect.region, effect.action, effect.region.buf
        site = self.sites.access(e, buf, action, kind=effect.kind)
        self._report_bounds(e, buf, region.dims, region.conditions, site)
        if effect.blocks:
            self._see_in_blocks(e, effect, site)
        elif action != "read" and region.is_whole_local:
            self._mark_full(e, buf)
        else:
            self._see_region(e, region, action, site)

    def _watch_copy(self, e: Emitter, src: BufferRegion, dst: BufferRegion) -> None:
        """Elements that are uninitialized in the source are so in the destination."""
        read = self.sites.access(e, src.buf, "read")
        write = self.sites.access(e, dst.buf, "write")
        for region, site in ((src, read), (dst, write)):
            self._watch_copied(e, region, site)
        source, target = self._seen.get(src.buf.code), self._seen.get(dst.buf.code)
        local = target is not None and not dst.buf.is_global
        if dst.buf.is_global:
            self._see_region(e, dst, "write", write)
        if source is None:
            if local:
                self._mark_copied(e, dst, write)
            return
        copied = (
            f"{source}.copied({read}, {src.dims_code}, {target}, {dst.dims_code}, "
            f"{dst.buf.code}.shape)"
        )
        if not src.buf.is_global:
            if local and dst.is_whole_local:
                with e.w.block(f"if {source}.full"):
                    self._mark_full(e, dst.buf)
                with e.w.block("else"):
                    e.w.line(copied)
            else:
                e.w.line(copied if local else f"{source}.full or {copied}")
            return
        if not local:
            self._see_region(e, src, "read", read)
            return
        with e.w.block(f"if {source}.fresh"):
            e.w.line(copied)
        with e.w.block("else"):
            self._see_region(e, src, "read", read)
            self._mark_copied(e, dst, write)

    def _mark_copied(self, e: Emitter, dst: BufferRegion, site: int) -> None:
        """All of a destination counts as written."""
        if dst.is_whole_local:
            self._mark_full(e, dst.buf)
        else:
            self._see_region(e, dst, "write", site)

    def _watch_copied(self, e: Emitter, region: BufferRegion, site: int) -> None:
        """Bounds of a side of a copy: its ranges are predicated whatever the memory."""
        buf = region.buf
        loose = tuple(
            k
            for k, d in enumerate(region.dims)
            if d.extent is not None or (not d.constant and is_guarded(e, buf))
        )
        self._report_bounds(e, buf, region.dims, region.conditions, site, loose=loose)
