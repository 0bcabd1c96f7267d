"""The sanitized variant of a program: calls of the runtime's monitor beside every access.

Two variants are made. The watched one keeps shadows of memory: who wrote an element, who read
it, whether it was written at all. The traced one runs again a launch that ended with NaN or
infinity, and looks at what every operation reads and writes, to name the first that made one.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .elements import ATOMICS
from .expressions import op_name
from .grids import GridMixin
from .values import Val, is_float

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .bounds import Access, Dim
    from .context import Buf, Dest
    from .source import Location
    from .tileops import Region

__all__ = ["SanitizedMixin", "Site", "Watch", "kernel_usage"]

_REGIONS = ("tl.region", "tl.tileop.region")
_SITE_OF_ONE = re.compile(r"\b(\w+_seen\.one|watch\.one)\(\d+, ")
_ACQUIRING = ("acquire", "both", "unsaid")
_RELEASING = ("release", "both", "unsaid")
# Tile operations whose methods are overridden here.
_WATCHED = frozenset(
    {"copy", "async_copy", "fill", "gemm", "reduce", "cumsum", "cummax", "transpose"}
    | {"atomicadd", "atomicmax", "atomicmin", "finalize_reducer_v2"}
)


@dataclass(frozen=True)
class Site:
    """A place in the user's source that accesses a buffer.

    Attributes:
        location: the user's line, if it is known.
        buffer: the user's name of the buffer.
        action: "read", "write" or "atomic".
        local: whether the buffer is a fragment or local.
        is_global: whether it lies in global memory.
        orders: whether it may order blocks: an atomic load or store, or an atomic whose old
            value is used.
        acquires: whether who does it comes after those whose atomics it has seen.
        releases: whether those who see it come after who does it.
    """

    location: Location | None
    buffer: str
    action: str
    local: bool
    is_global: bool
    orders: bool = False
    acquires: bool = False
    releases: bool = False


@dataclass(frozen=True)
class Watch:
    """What a monitor needs to know of a sanitized program.

    Attributes:
        sites: by number, as the generated source names them.
        usage: per global buffer what the kernel does with it: "read", "write", "atomic".
    """

    sites: tuple[Site, ...]
    usage: dict[str, frozenset[str]]


class SanitizedMixin(GridMixin):
    """Overrides the hooks and the tile operations."""

    sanitizers: frozenset[str]
    traced: bool

    def start_watching(self, func: Any, sanitizers: frozenset[str], *, traced: bool) -> None:
        """Set up, before anything is generated."""
        self.sanitizers = sanitizers
        self.traced = traced
        self.sites: list[Site] = []
        self._site_numbers: dict[Site, int] = {}
        self._seen: dict[str, str] = {}
        self._ordering = False
        self._memory_order = ""
        self._unwatched = False
        self._mattering: Val | None = None
        self.usage_of_data = kernel_usage(func)
        self.w.reserve("watch")

    def watch_parameters(self) -> None:
        """Make the shadows of the parameters."""
        for buffer, buf in list(self.buffers.items()):
            self._watch_global(buffer, buf, f"watch.parameter({buf.name!r}, {buf.code})")

    def watch_plan(self) -> Watch:
        """What the program's monitor needs to know."""
        usage = {
            buf.name: frozenset(self._usage(buffer))
            for buffer, buf in self.buffers.items()
            if buf.is_global
        }
        return Watch(tuple(self.sites), usage)

    def _usage(self, buffer: Any) -> set[str]:
        return next((v for k, v in self.usage_of_data.items() if k.same_as(buffer.data)), set())

    def _watch_global(self, buffer: Any, buf: Buf, code: str) -> None:
        del buffer
        if self.traced:
            return
        name = self.prologue.fresh(f"{buf.code}_seen")
        self.prologue.line(f"{name} = {code}")
        self._seen[buf.code] = name

    def _site(self, buf: Buf, action: str, *, orders: bool = False) -> int:
        local = buf.scope not in ("global", "shared", "shared.dyn", "shared.tmem")
        stores = action == "atomic" and self._ordering
        acquires = orders and not stores and self._memory_order in _ACQUIRING
        releases = action == "atomic" and self._memory_order in _RELEASING
        site = Site(
            self.w.location, buf.name, action, local, buf.is_global, orders, acquires, releases
        )
        if site not in self._site_numbers:
            self._site_numbers[site] = len(self.sites)
            self.sites.append(site)
        return self._site_numbers[site]

    # -- the grid and memory

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """What is read inside is nothing that the kernel reads."""
        self._unwatched = True
        yield
        self._unwatched = False

    @contextmanager
    def mattering(self, where: Val | None) -> Iterator[None]:
        """Of what lanes read inside, what others than those of `where` read has no effect."""
        outer = self._mattering
        self._mattering = where
        yield
        self._mattering = outer

    @property
    def remembers(self) -> bool:
        """What a block reads is noted where it reads it, and not ahead."""
        return True

    @staticmethod
    def same(code: str) -> str:
        """Without the sites that read: the first in a block is noted for all."""
        return _SITE_OF_ONE.sub(r"\1(", code)

    def on_grid(self) -> None:
        """The monitor learns of a launch."""
        self.w.line("watch.launch()")

    def on_block(self, indices: list[Any]) -> None:
        """The monitor learns of a block."""
        names = ", ".join(self.vars[var].code for var in indices)
        self.w.line(f"watch.enter(({names},))")
        super().on_block(indices)

    def allocate(self, buffer: Any) -> None:
        """Make a buffer and its shadow."""
        super().allocate(buffer)
        buf = self.buffers[buffer]
        if buf.is_global:
            self._watch_global(buffer, buf, f"watch.workspace({buf.name!r}, {buf.code})")
            return
        if self.traced or "uninitialised" not in self.sanitizers or buf.scope == "local.reducer":
            return
        name = self.w.fresh(f"{buf.code}_seen")
        shape = "()" if buf.variable else f"({', '.join(n.code for n in buf.whole or buf.shape)},)"
        if buf.static_shape is not None or buf.variable:
            self.prologue.line(f"{name} = watch.local({buf.name!r}, {shape})")
            self.w.line(f"{name}.clear()")
        else:
            self.w.line(f"{name} = watch.local({buf.name!r}, {shape})")
        self._seen[buf.code] = name

    def _reshaped(self, node: Any) -> Buf:
        whole = next((b for k, b in self.buffers.items() if k.data.same_as(node.data)), None)
        found = super()._reshaped(node)
        if whole is not None and whole.code in self._seen and found.dtype == whole.dtype:
            name = self.w.fresh(f"{found.code}_seen")
            shape = ", ".join(n.code for n in found.shape)
            line = f"{name} = {self._seen[whole.code]}.reshaped(({shape},))"
            (self.prologue if whole.is_global or whole.static_shape else self.w).line(line)
            self._seen[found.code] = name
        elif whole is not None and whole.code in self._seen and not whole.is_global:
            # Elements of another size are not followed: from here on all count as written.
            self.w.line(f"{self._seen[whole.code]}.full = True")
        return found

    # -- bounds

    def skips(self, buf: Buf) -> bool:
        """Every access outside is skipped here, once it is reported."""
        del buf
        return True

    def check_constants(self, access: Access) -> None:
        """Constant indices are watched like the rest."""

    def _check_region_constants(self, region: Region) -> None:
        pass

    def _watch_bounds(
        self, buf: Buf, dims: tuple[Dim, ...], conditions: tuple[str, ...], site: int, mask: str
    ) -> None:
        """Report a block outside; `dims` may be predicated whatever the memory."""
        guarded = self.guarded(buf)
        loose = tuple(k for k, d in enumerate(dims) if guarded and not self._fixed(d))
        if self.traced or not conditions:
            return
        if "guarded" not in self.sanitizers:
            conditions = tuple(
                text
                for k, (d, n) in enumerate(zip(dims, buf.shape, strict=False))
                if k not in loose
                for text in self.conditions(d, n)
            )
            if not conditions:
                return
        code = "(" + ", ".join(d.code for d in dims) + ",)"
        with self.w.block(f"if not ({' and '.join(dict.fromkeys(conditions))})"):
            self.w.line(f"watch.outside({site}, {code}, {buf.code}.shape, {loose}, {mask})")

    @staticmethod
    def _fixed(dim: Dim) -> bool:
        return dim.constant and dim.extent is None

    # -- single elements

    def followed(self, buf: Buf) -> bool:
        """Whether a buffer is watched: not what lanes of a loop have for themselves."""
        return not buf.lane_axes

    def _mask_of(self, access: Access) -> str:
        """The mask in force, in the order of a block's own dims."""
        mask = self.mask
        if mask is None:
            return "None"
        axes = frozenset(d.axis for d in access.dims if d.axis is not None)
        extra = tuple(sorted(mask.axes - axes))
        if extra:
            if not axes:
                return f"bool({mask.code}.any())"
            mask = Val(f"{mask.code}.any({extra}, keepdims=True)", "bool", axes)
        return self.to_dims(mask, access)

    def _place(self, access: Access) -> str:
        """Which elements: arguments of a shadow's methods."""
        if access.block:
            return f"{access.dims_code}, {self._mask_of(access)}"
        return f"{access.index_code}, {self.mask.code if self.mask is not None else 'None'}"

    def _watch_access(self, access: Access, site: int) -> None:
        buf = access.buf
        if access.block:
            mask = self._mask_of(access) if access.conditions else "None"
            self._watch_bounds(buf, access.dims, access.conditions, site, mask)
            return
        loose = tuple(
            k for k, d in enumerate(access.dims) if self.guarded(buf) and not self._fixed(d)
        )
        inside = all(
            d.value.lo is not None
            and d.value.lo >= 0
            and d.value.hi is not None
            and n.lit is not None
            and d.value.hi < n.lit
            for d, n in zip(access.dims, buf.shape, strict=False)
        )
        whole = len(loose) == len(access.dims) and "guarded" not in self.sanitizers
        if self.traced or inside or whole:
            return
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"watch.lanes_outside({site}, {access.index_code}, {buf.code}.shape, {loose}, {mask})"
        )

    def on_read(self, access: Access) -> None:
        """Lanes are about to read."""
        buf = access.buf
        if not self.followed(buf):
            return
        site = self._site(buf, "read", orders=self._ordering)
        if self.traced:
            self._trace_read(access)
            return
        with self.of_whole_tiles(reads=True):
            self._watch_access(access, site)
            seen = self._seen.get(buf.code)
            if seen is not None:
                lanes = "" if access.block else "_lanes"
                mask = self.mask
                if self._mattering is not None:
                    self.mask = self.both(mask, self._mattering)
                place = self._place(access)
                self.mask = mask
                self.w.line(f"{self._calm(buf)} or {seen}.read{lanes}({site}, {place})")

    def _calm(self, buf: Buf) -> str:
        """Code of a test that a read needs no look."""
        return f"{self._seen[buf.code]}.{'quiet' if buf.is_global else 'full'}"

    def on_scalar(self, access: Access, code: str) -> str:
        """A single element read in the middle of an expression."""
        buf = access.buf
        if not self.followed(buf) or self._unwatched:
            return code
        index = "(" + ", ".join(d.base.code for d in access.dims) + ",)"
        if self.traced:
            return f"watch.saw_one({code})" if is_float(buf.dtype) else code
        site = self._site(buf, "read", orders=self._ordering)
        loose = tuple(
            k for k, d in enumerate(access.dims) if self.guarded(buf) and not self._fixed(d)
        )
        whole = len(loose) == len(access.dims) and "guarded" not in self.sanitizers
        if access.conditions and not whole:
            code = f"watch.one({site}, {index}, {buf.code}.shape, {loose}, {code})"
        seen = self._seen.get(buf.code)
        return code if seen is None else f"{seen}.one({site}, {index}, {code})"

    def on_variable(self, buf: Buf, code: str) -> str:
        """A variable read in the middle of an expression."""
        if self.traced:
            return f"watch.saw_one({code})" if is_float(buf.dtype) else code
        seen = self._seen.get(buf.code)
        if seen is None:
            return code
        return f"{seen}.one({self._site(buf, 'read')}, (), {code})"

    def on_variable_write(self, buf: Buf, result: Val) -> None:
        """A variable is about to be assigned."""
        if self.traced:
            if is_float(buf.dtype):
                site = self._site(buf, "write")
                self.w.line(
                    f"watch.born({site}, {result.code}, (), None, False, {self._limit(buf)})"
                )
            return
        seen = self._seen.get(buf.code)
        if seen is not None:
            self.w.line(f"{seen}.full = True")

    def on_write(self, access: Access, result: Val, value: Any) -> None:
        """A value is about to be stored."""
        buf = access.buf
        if not self.followed(buf):
            return
        site = self._site(buf, "atomic" if self._ordering else "write", orders=self._ordering)
        if self.traced:
            if is_float(buf.dtype):
                self._trace_value(access, result, value, site)
            return
        with self.of_whole_tiles():
            self._watch_access(access, site)
            self._watch_lanes(access, result, site)
            self._watch_write(access, site)

    def _watch_write(self, access: Access, site: int) -> None:
        buf = access.buf
        seen = self._seen.get(buf.code)
        if seen is None:
            return
        if self._whole(access):
            self.w.line(f"{seen}.full = True")
            return
        lanes = "" if access.block else "_lanes"
        quiet = f"{seen}.still or " if buf.is_global else f"{seen}.full or "
        action = "atomic" if self._ordering and buf.is_global else "write"
        self.w.line(f"{quiet}{seen}.{action}{lanes}({site}, {self._place(access)})")

    def _whole(self, access: Access) -> bool:
        """Whether a store covers a whole local buffer."""
        buf = access.buf
        return (
            not buf.is_global
            and access.block
            and self.mask is None
            and all(
                (
                    d.extent is not None
                    and d.base.lit == 0
                    and d.step == 1
                    and d.extent.code == n.code
                )
                or (d.extent is None and n.lit == 1 and d.base.lit == 0)
                # Of what every thread has for itself the last dim is the thread.
                for d, n in zip(access.dims, buf.shape, strict=not buf.lane_axes)
            )
        )

    def on_atomic(self, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done."""
        buf = access.buf
        if not self.followed(buf):
            return
        site = self._site(buf, "atomic", orders=previous)
        if self.traced:
            if is_float(buf.dtype):
                self._trace_value(access, result, None, site)
            return
        with self.of_whole_tiles():
            self._watch_access(access, site)
            self._watch_atomic(access, site)

    def _watch_atomic(self, access: Access, site: int) -> None:
        buf = access.buf
        seen = self._seen.get(buf.code)
        if seen is None:
            return
        if buf.name in self.reducers:
            # A contribution: what it is added to is the reducer's own business.
            self.w.line(f"{seen}.full = True")
            return
        lanes = "" if access.block else "_lanes"
        quiet = f"{seen}.still or " if buf.is_global else ""
        self.w.line(f"{quiet}{seen}.atomic{lanes}({site}, {self._place(access)})")

    def _expr_Call(self, node: Any) -> Val:
        outer = self._ordering, self._memory_order
        name = op_name(node)
        if name == "tl.atomic_load_elem_op" or name in ATOMICS:
            self._ordering = outer[0] or name not in ATOMICS
            self._memory_order = _memory_order(node, name)
        value = super()._expr_Call(node)
        self._ordering, self._memory_order = outer
        return value

    def _stmt_Evaluate(self, node: Any) -> None:
        call = node.value
        named = type(call).__name__ == "Call"
        name = op_name(call) if named else ""
        self._ordering = name == "tl.atomic_store_elem_op"
        self._memory_order = _memory_order(call, name) if self._ordering else ""
        super()._stmt_Evaluate(node)
        self._ordering, self._memory_order = False, ""
        if named and name not in ATOMICS and not name.startswith(("tl.tileop.", "tl.atomic")):
            self._give_away(call)

    def _give_away(self, call: Any) -> None:
        """What an operation that is not watched gets the address of counts as written."""
        from tilelang import tvm

        def visit(node: Any) -> None:
            if isinstance(node, tvm.tirx.Call) and op_name(node) in ("tl.access_ptr", *_REGIONS):
                buf = self.buffers.get(node.args[0].buffer)
                if buf is not None and not buf.is_global and buf.code in self._seen:
                    self.w.line(f"{self._seen[buf.code]}.full = True")

        tvm.tirx.stmt_functor.post_order_visit(call, visit)

    # -- lanes of one parallel loop

    def _with_lanes(self, node: Any, expanded: dict[Any, tuple[int, ...]]) -> None:
        """What lanes write to their own memory is not followed; after the loop it is written."""
        super()._with_lanes(node, expanded)
        for buffer in expanded:
            seen = self._seen.get(self.buffer(buffer).code)
            if seen is not None:
                self.w.line(f"{seen}.full = True")

    def _watch_lanes(self, access: Access, result: Val, site: int) -> None:
        buf = access.buf
        if "lanes" not in self.sanitizers or not self.axes or buf.scope in ("local", "local.var"):
            return
        mask = self.mask.code if self.mask is not None else "None"
        shape = self.shape_of(self.all_axes)
        if not access.block:
            if result.axes and not self._injective(access):
                self.w.line(
                    f"watch.lanes_twice({site}, {access.index_code}, {buf.code}.shape, "
                    f"{mask}, {shape})"
                )
            return
        missing = sorted((self.all_axes - access.axes) & result.axes)
        extents = [self.axis_at(p).extent for p in missing]
        if any(n.lit != 1 for n in extents):
            self.w.line(
                f"watch.axes_twice({site}, {access.dims_code}, {buf.code}.shape, "
                f"{tuple(missing)}, {mask}, {shape})"
            )

    def _injective(self, access: Access) -> bool:
        """Whether no two lanes have the same index, as far as affine forms can tell."""
        for dim in access.dims:
            affine = dim.value.affine
            if affine is None or {axis for axis, _ in affine.coefficients} != self.all_axes:
                continue
            reach = 0
            for axis, step in sorted(affine.coefficients, key=lambda c: abs(c[1])):
                extent = self.axis_at(axis).extent.lit
                if extent is None or abs(step) <= reach:
                    break
                reach += abs(step) * (extent - 1)
            else:
                return True
        return False

    # -- tile operations

    def _read_region(self, region: Region) -> None:
        buf = region.buf
        site = self._site(buf, "read")
        if self.traced:
            if is_float(buf.dtype):
                self.w.line(f"watch.saw({buf.code}, {buf.codec}, {region.dims_code}, None)")
            return
        with self.of_whole_tiles():
            self._watch_bounds(buf, region.dims, region.conditions, site, "None")
            seen = self._seen.get(buf.code)
            if seen is not None:
                self.w.line(f"{self._calm(buf)} or {seen}.read({site}, {region.dims_code}, None)")

    def _write_region(self, region: Region, action: str = "write") -> None:
        buf = region.buf
        if self.traced:
            return
        site = self._site(buf, action)
        with self.of_whole_tiles():
            self._watch_bounds(buf, region.dims, region.conditions, site, "None")
            seen = self._seen.get(buf.code)
            if seen is not None and self._covers(region):
                self.w.line(f"{seen}.full = True")
            elif seen is not None:
                quiet = f"{seen}.{'still' if buf.is_global else 'full'} or "
                self.w.line(f"{quiet}{seen}.{action}({site}, {region.dims_code}, None)")

    @staticmethod
    def _covers(region: Region) -> bool:
        return not region.buf.is_global and all(
            (d.extent is not None and d.base.lit == 0 and d.extent.code == n.code)
            or (n.lit == 1 and d.base.lit == 0)
            for d, n in zip(region.dims, region.buf.shape, strict=True)
        )

    def _made(self, regions: Iterable[Region]) -> None:
        """Trace: look at what a tile operation has written."""
        for region in regions:
            buf = region.buf
            if self.traced and is_float(buf.dtype):
                site = self._site(buf, "write")
                self.w.line(f"watch.made({site}, {buf.code}, {buf.codec}, {region.dims_code})")

    def _tile_op(self, call: Any, name: str) -> None:
        """Operations that are not watched one by one: their regions say what they do."""
        if name not in _WATCHED:
            for argument in call.args:
                if type(argument).__name__ == "Call" and op_name(argument) in _REGIONS:
                    mode = int(argument.args[1])
                    if mode & 1:
                        self._read_region(self.region(argument, keep_units=True))
                    if mode & 2:
                        self._write_region(self.region(argument, keep_units=True))
        super()._tile_op(call, name)

    def tile_copy(self, node: Any) -> None:
        """`T.copy`: what is unwritten in the source is unwritten in the destination."""
        src, dst = self._matched(self.region(node.args[0]), self.region(node.args[1]))
        if self.traced:
            self._read_region(src)
            super().tile_copy(node)
            self._made([dst])
            return
        with self.of_whole_tiles():
            self._watch_copy(src, dst)
        super().tile_copy(node)

    def _watch_copy(self, src: Region, dst: Region) -> None:
        read, write = self._site(src.buf, "read"), self._site(dst.buf, "write")
        for region, site in ((src, read), (dst, write)):
            self._watch_copied(region, site)
        source, target = self._seen.get(src.buf.code), self._seen.get(dst.buf.code)
        ranges = f"{src.dims_code}, {target}, {dst.dims_code}, {dst.buf.code}.shape"
        if dst.buf.is_global and target is not None:
            self.w.line(f"{target}.still or {target}.write({write}, {dst.dims_code}, None)")
        if src.buf.is_global and source is not None:
            if target is None or dst.buf.is_global:
                self.w.line(f"{source}.quiet or {source}.read({read}, {src.dims_code}, None)")
            else:
                with self.w.block(f"if {source}.fresh"):
                    self.w.line(f"{source}.copied({read}, {ranges})")
                with self.w.block("else"):
                    self.w.line(f"{source}.quiet or {source}.read({read}, {src.dims_code}, None)")
                    self._mark_copied(dst, target, write)
        elif source is not None:
            if self._covers(dst) and target is not None and not dst.buf.is_global:
                with self.w.block(f"if {source}.full"):
                    self.w.line(f"{target}.full = True")
                with self.w.block("else"):
                    self.w.line(f"{source}.copied({read}, {ranges})")
            else:
                calm = f"{source}.full or " if target is None or dst.buf.is_global else ""
                self.w.line(f"{calm}{source}.copied({read}, {ranges})")
        elif target is not None and not dst.buf.is_global:
            self._mark_copied(dst, target, write)

    def _mark_copied(self, dst: Region, target: str, site: int) -> None:
        """All of a destination counts as written."""
        if self._covers(dst):
            self.w.line(f"{target}.full = True")
        else:
            self.w.line(f"{target}.full or {target}.write({site}, {dst.dims_code}, None)")

    def _watch_copied(self, region: Region, site: int) -> None:
        """Bounds of a side of a copy: its ranges are predicated whatever the memory."""
        buf = region.buf
        strict = [
            (k, d)
            for k, d in enumerate(region.dims)
            if d.extent is None and (d.constant or not self.guarded(buf))
        ]
        loose = tuple(k for k in range(len(region.dims)) if k not in {k for k, _ in strict})
        conditions = [c for k, d in strict for c in self.conditions(d, buf.shape[k])]
        if "guarded" in self.sanitizers:
            conditions = list(region.conditions)
        if conditions:
            with self.w.block(f"if not ({' and '.join(dict.fromkeys(conditions))})"):
                self.w.line(
                    f"watch.outside({site}, {region.dims_code}, {buf.code}.shape, {loose}, None)"
                )

    def tile_fill(self, node: Any) -> None:
        """`T.fill` and `T.clear`."""
        self._write_region(self.region(node.args[0]))
        super().tile_fill(node)

    def tile_gemm(self, node: Any) -> None:
        """`T.gemm`: reads the accumulator too, unless it clears it."""
        a, b, c = (self._matrix(arg) for arg in node.args[:3])
        clear = self.scalar(node.args[9], "clear_accum")
        self._read_region(a)
        self._read_region(b)
        if clear.lit is None:
            with self.w.block(f"if not {clear.code}"):
                self._read_region(c)
        elif not clear.lit:
            self._read_region(c)
        self._write_region(c)
        super().tile_gemm(node)
        self._made([c])

    def tile_reduce(self, node: Any) -> None:
        """`T.reduce_*`."""
        src = self.region(node.args[0], keep_units=True)
        dst = self.region(node.args[1], keep_units=True)
        self._read_region(src)
        if not self.scalar(node.args[4], "clear").lit:
            self._read_region(dst)
        self._write_region(dst)
        super().tile_reduce(node)
        self._made([dst])

    def _moved(self, node: Any) -> tuple[Region, Region]:
        src = self.region(node.args[0], keep_units=True)
        dst = self.region(node.args[1], keep_units=True)
        self._read_region(src)
        self._write_region(dst)
        return src, dst

    def reducer_init(self, node: Any) -> None:
        """A reducer starts with a value."""
        self._write_region(self.region(node.args[0]))
        super().reducer_init(node)

    def tile_scan(self, node: Any, kind: str) -> None:
        """`T.cumsum` and `T.cummax`."""
        _, dst = self._moved(node)
        super().tile_scan(node, kind)
        self._made([dst])

    def tile_transpose(self, node: Any) -> None:
        """`T.transpose`."""
        self._moved(node)
        super().tile_transpose(node)

    def tile_atomic(self, node: Any, kind: str) -> None:
        """Tile atomics."""
        dst = self.region(node.args[1])
        value = node.args[0]
        named = op_name(value) if type(value).__name__ == "Call" else ""
        if named in ("tl.region", "tl.tileop.region"):
            src, dst = self._matched_atomic(self.region(value), dst)
            self._read_region(src)
        self._write_region(dst, "atomic")
        if self.traced:
            self._read_region(dst)
        super().tile_atomic(node, kind)
        self._made([dst])

    def checked_view(self, region: Region) -> str:
        """Outside cannot be skipped here: the report, then the error."""
        if region.conditions and not self.traced:
            site = self._site(region.buf, "access")
            with (
                self.of_whole_tiles(),
                self.w.block(f"if not ({' and '.join(region.conditions)})"),
            ):
                self.w.line(
                    f"watch.outside({site}, {region.dims_code}, {region.buf.code}.shape, (), None)"
                )
        return super().checked_view(region)

    # -- the traced variant

    def _destination(
        self, buf: Buf, nodes: list[Any], access: Access, value: Any, ir: Any
    ) -> Dest | None:
        if self.traced:
            return None
        return super()._destination(buf, nodes, access, value, ir)

    def _trace_read(self, access: Access) -> None:
        buf = access.buf
        if not is_float(buf.dtype):
            return
        lanes = "" if access.block else "_lanes"
        self.w.line(f"watch.saw{lanes}({buf.code}, {buf.codec}, {self._place(access)})")

    def _trace_value(self, access: Access, result: Val, value: Any, site: int) -> None:
        mask = self.mask.code if self.mask is not None else "None"
        meant = value is not None and _names_infinity(value)
        self.w.line(
            f"watch.born({site}, {result.code}, {access.index_code}, {mask}, {meant}, "
            f"{self._limit(access.buf)})"
        )

    @staticmethod
    def _limit(buf: Buf) -> str:
        """From where on a value rounds to infinity in a buffer's dtype."""
        return "65520.0" if buf.dtype == "float16" else "INF"


def _memory_order(call: Any, name: str) -> str:
    """What an atomic orders: "acquire", "release", "both", "neither"; "unsaid" if it does not say.

    T.atomic_max and T.atomic_min give the weakest order where the user gives none.
    """
    position = 1 if name == "tl.atomic_load_elem_op" else 2
    if len(call.args) <= position or type(call.args[position]).__name__ != "IntImm":
        return "unsaid"
    order = int(call.args[position].value)
    if order == 0 and ("atomic_max" in name or "atomic_min" in name):
        return "unsaid"
    return ("neither", "acquire", "acquire", "release", "both", "both")[order]


def _names_infinity(value: Any) -> bool:
    """Whether an expression has an infinity of its own."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, tvm.tirx.FloatImm):
            found = found or abs(float(node.value)) == float("inf")
        elif isinstance(node, tvm.tirx.Call):
            found = found or op_name(node) in ("tl.infinity", "tirx.infinity")

    tvm.tirx.stmt_functor.post_order_visit(value, visit)
    return found


def kernel_usage(func: Any) -> dict[Any, set[str]]:
    """What a kernel does with each memory: by the data of its buffers."""
    from tilelang import tvm

    found: dict[Any, set[str]] = {}
    addressed: set[int] = set()

    def note(buffer: Any, *actions: str) -> None:
        found.setdefault(buffer.data, set()).update(actions)

    def visit_call(node: Any) -> None:
        name = op_name(node)
        atomic = "atomic" in name
        for k, argument in enumerate(node.args):
            if type(argument).__name__ != "Call":
                continue
            inner = op_name(argument)
            if inner in ("tl.region", "tl.tileop.region"):
                load = argument.args[0]
                addressed.add(hash(load))
                mode = int(argument.args[1])
                if atomic and k == 1:
                    note(load.buffer, "atomic")
                else:
                    note(
                        load.buffer,
                        *(["read"] if mode & 1 else []),
                        *(["write"] if mode & 2 else []),
                    )
            elif inner == "tl.access_ptr" and atomic and k == 0:
                load = argument.args[0]
                addressed.add(hash(load))
                note(load.buffer, "atomic", *(["ordered"] if "_ret_" in name else []))
        if name in ("tl.atomic_load_elem_op", "tl.atomic_store_elem_op"):
            load = node.args[0].args[0]
            note(load.buffer, "ordered", "atomic")
        if name == "tirx.address_of" and type(node.args[0]).__name__ == "BufferLoad":
            # A flag, or what a function of the user's gets: followed where that is modelled.
            addressed.add(hash(node.args[0]))
            note(node.args[0].buffer, "ordered")

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.Call):
            visit_call(node)
        elif isinstance(node, tvm.tirx.BufferStore):
            note(node.buffer, "write")

    def visit_loads(node: Any) -> None:
        if isinstance(node, tvm.tirx.BufferLoad) and hash(node) not in addressed:
            note(node.buffer, "read")

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    tvm.tirx.stmt_functor.post_order_visit(func.body, visit_loads)
    return found
