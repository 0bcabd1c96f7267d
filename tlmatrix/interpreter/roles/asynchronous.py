"""Barriers, asynchronous tile operations, and notes of every access, in generated programs."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.codegen.expressions import op_name
from tlmatrix.interpreter.codegen.source import Writer
from tlmatrix.interpreter.codegen.statements import StatementMixin

from .proxies import fenced_statements
from .sharing import Uses, shared_uses

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tlmatrix.interpreter.codegen.bounds import Access
    from tlmatrix.interpreter.codegen.context import Buf
    from tlmatrix.interpreter.codegen.tileops import Region
    from tlmatrix.interpreter.codegen.values import Val

__all__ = ["AsynchronousMixin"]

_ASYNCHRONOUS = frozenset(
    {
        "tl.tileop.tma_copy",
        "tl.tileop.wgmma_gemm",
        "tl.tileop.tcgen05_gemm",
        "tl.tileop.async_copy",
    }
)
# They order what hardware might reorder within a thread; TileLang puts those of tcgen05 itself.
_FENCES = frozenset(
    {
        "tl.warpgroup_arrive",
        "tl.warpgroup_commit_batch",
        "tl.warpgroup_fence_operand",
        "tl.tcgen05_before_thread_sync",
        "tl.tcgen05_after_thread_sync",
        "tl.deallocate_tmem",
        "tl.ptx_fence_barrier_init",
    }
)
_SYNCHRONIZING = frozenset(
    {
        "tl.mbarrier_wait_parity",
        "tirx.ptx_arrive_barrier",
        "tirx.ptx_arrive_barrier_expect_tx",
        "tl.mbarrier_expect_tx",
        "tl.wait_wgmma",
        "tl.tma_store_arrive",
        "tl.tma_store_wait",
        "tirx.ptx_wait_group",
        "tl.tcgen05_mma_arrive",
        "tl.named_barrier_arrive",
        "tl.sync_grid",
    }
)
# What waits for groups of asynchronous work, and of which kind.
_GROUP_WAITS = {
    "tl.wait_wgmma": "wgmma",
    "tl.warpgroup_wait": "wgmma",
    "tirx.ptx_wait_group": "cp.async",
    "tl.tma_store_wait": "TMA store",
}
_COMMITS = {"tirx.ptx_commit_group": "cp.async", "tl.tma_store_arrive": "TMA store"}
_REGIONS = ("tl.region", "tl.tileop.region")
_BYTES = re.compile(r"(\d+)$")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"^\s*(?:for )?([A-Za-z_]\w*)(?: =| in) ")


def _synchronizes(name: str) -> bool:
    return name in _SYNCHRONIZING or name in _COMMITS or name == "tirx.tvm_storage_sync"


class AsynchronousMixin(StatementMixin):
    """Overrides what waits, arrives, or completes later."""

    role: int
    group: tuple[int, ...]
    intervals: list[tuple[int, int]]
    arrivals: dict[str, list[tuple[int, str]]]
    threads: Any
    lanes: Any

    def start_asynchronous(self) -> None:
        """Set up, before anything is generated."""
        self.tracking = False
        self.track_fragments = False
        self.written: set[Any] = set()
        # Statements before which TileLang puts a fence between the proxies.
        self.fenced: set[Any] = set()
        # Buffers that the generated source calls otherwise than the user.
        self.renamed: dict[str, str] = {}
        self._untracked = 0
        self._assigned: set[str] = set()
        self._scanned = 0
        # Whether the user frees tensor memory where he wants it freed.
        self._deallocates = False

    def start_role(self) -> None:
        """Begin the body of a role."""
        self._assigned = set()
        self._scanned = 0

    def finish_role(self) -> None:
        """End the body of a role: the first warp of a block frees tensor memory when it is here.

        TileLang puts the deallocation there, with no barrier before it.
        """
        if self.intervals[self.role][0] == 0 and not self._deallocates:
            for buf in self.buffers.values():
                if buf.scope == "shared.tmem" and self._tracked(buf):
                    self.w.line(f"me.frees({buf.code!r}, {buf.code}.shape)")

    def without_lanes(self) -> Any:
        """Leave the lane axis; see `RoleMixin`."""
        raise NotImplementedError

    def is_collective(self, node: Any) -> bool:
        """Whether a statement has anything that threads do together."""
        from tilelang import tvm

        found = False

        def visit(child: Any) -> None:
            nonlocal found
            if isinstance(child, tvm.tirx.Call):
                name = op_name(child)
                found = found or name.startswith("tl.tileop.") or name in _SYNCHRONIZING
            elif isinstance(child, tvm.tirx.For):
                found = found or int(child.kind) == 1

        tvm.tirx.stmt_functor.post_order_visit(node, visit)
        return found

    def shared_uses(self, node: Any) -> Uses:
        """What a statement accesses itself of shared memory."""
        return shared_uses(node, _ASYNCHRONOUS)

    def prepare_tracking(self, body: Any, roles: int) -> None:
        """Find out whether accesses can race, and of which buffers."""
        from tilelang import tvm

        asynchronous: set[str] = set()

        def visit(node: Any) -> None:
            if isinstance(node, tvm.tirx.BufferStore):
                self.written.add(node.buffer)
            elif isinstance(node, tvm.tirx.Call):
                name = op_name(node)
                if name in _ASYNCHRONOUS or name == "tl.ptx_cp_async":
                    asynchronous.add(name)
                elif name == "tl.deallocate_tmem":
                    self._deallocates = True
                elif (
                    name in ("tl.region", "tl.tileop.region") and int(node.args[1]) & 2
                ) or name == "tl.access_ptr":
                    self.written.add(node.args[0].buffer)

        tvm.tirx.stmt_functor.post_order_visit(body, visit)
        self.tracking = roles > 1 or bool(asynchronous)
        self.fenced = fenced_statements(body)
        self.track_fragments = "tl.tileop.wgmma_gemm" in asynchronous

    # -- accesses

    @contextmanager
    def untracked(self) -> Iterator[None]:
        """Accesses that race with nothing: atomics."""
        self._untracked += 1
        yield
        self._untracked -= 1

    def _tracked(self, buf: Buf) -> bool:
        if not self.tracking or self._untracked or self.threads is None or buf.variable:
            return False
        if buf.code != buf.name:
            self.renamed[buf.code] = buf.name
        if buf.is_global:
            return any(self.buffers.get(b) is buf for b in self.written)
        if buf.scope.startswith("shared"):
            return True
        return self.track_fragments and buf.scope == "local.fragment"

    def _note(self, access: Access, *, write: bool) -> None:
        buf = access.buf
        if not self._tracked(buf):
            return
        masked = self.mask is not None and not self.mask.scalar
        if access.block and not masked:
            verb = "writes" if write else "reads"
            more = ", ordinary=True" if write and self._ordinary(buf) else ""
            self.w.line(f"me.{verb}({buf.code!r}, {access.dims_code}, {buf.code}.shape{more})")
            return
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"me.touches({buf.code!r}, {access.index_code}, {mask}, "
            f"{buf.code}.shape, write={write}, ordinary={write and self._ordinary(buf)})"
        )

    def on_read(self, access: Access) -> None:
        """Lanes are about to read."""
        super().on_read(access)
        self._note(access, write=False)

    def on_scalar(self, access: Access, code: str) -> str:
        """A single element is read."""
        self._note(access, write=False)
        return super().on_scalar(access, code)

    def on_write(self, access: Access, result: Val, value: Any) -> None:
        """Lanes are about to write."""
        super().on_write(access, result, value)
        self._note(access, write=True)

    def _regions(self, call: Any, name: str) -> list[tuple[Region, bool]]:
        """The regions a tile operation touches, and whether it writes each."""
        found = []
        for arg in call.args:
            if type(arg).__name__ != "Call" or op_name(arg) not in (
                "tl.region",
                "tl.tileop.region",
            ):
                continue
            flags = int(arg.args[1])
            if name.startswith("atomic"):
                flags &= 1
            region = self.region(arg)
            if flags & 1 and not (flags & 2):
                found.append((region, False))
            if flags & 2:
                found.append((region, True))
        return found

    @staticmethod
    def _ordinary(buf: Buf) -> bool:
        """Whether stores to a buffer count for the asynchronous proxy only after a fence."""
        return buf.scope in ("shared", "shared.dyn")

    def _note_regions(self, call: Any, name: str) -> None:
        regions = self._regions(call, name)
        # A copy of global memory may be TMA, which needs no fence: that is TileLang's choice.
        loads = name == "copy" and any(r.buf.is_global for r, _ in regions)
        for region, write in regions:
            if self._tracked(region.buf):
                verb = "writes" if write else "reads"
                code = region.buf.code
                more = ""
                if write and self._ordinary(region.buf) and not loads:
                    more = ", ordinary=True"
                self.w.line(f"me.{verb}({code!r}, {region.dims_code}, {code}.shape{more})")

    # -- barriers

    def _bar(self, node: Any) -> str:
        """Code of the mbarrier that an argument names; notes where it is."""
        from tilelang import tvm

        if isinstance(node, tvm.tirx.BufferLoad):
            buf, index = self.buffer(node.buffer), self.scalar(node.indices[0], "a barrier")
            return f"{buf.code}[{index.code}]"
        name = op_name(node) if isinstance(node, tvm.tirx.Call) else type(node).__name__
        if name == "tl.access_ptr":
            return self._bar(node.args[0])
        if name == "tirx.tvm_access_ptr":
            for buffer, buf in self.buffers.items():
                if buffer.data.same_as(node.args[1]):
                    index = self.scalar(node.args[2], "a barrier")
                    return f"{buf.code}[{index.code}]"
        raise self.refuse(f"a barrier given as {name}")

    def _arrives(self, bar: str) -> None:
        """Note, for reports, that this role arrives at a barrier here."""
        name = next(
            b.name for b in self.buffers.values() if b.code == bar.split("[", maxsplit=1)[0]
        )
        found = self.arrivals.setdefault(name, [])
        entry = (self.role, str(self.w.location or "an unknown line"))
        if entry not in found:
            found.append(entry)

    def _active(self) -> str:
        """Code of how many threads of the role are here."""
        low, high = self.intervals[self.role]
        if self.mask is None:
            return str(high - low)
        if self.mask.scalar:
            return f"{high - low} * {self.mask.code}"
        return f"np.broadcast_to({self.mask.code}, ({high - low},)).sum()"

    def _stmt_Evaluate(self, node: Any) -> None:
        call = node.value
        if self.threads is None or type(call).__name__ != "Call":
            super()._stmt_Evaluate(node)
            return
        name = op_name(call)
        if name == "tl.fence_proxy_async":
            if self.tracking:
                self.w.line("me.fence()")
            return
        if name in _FENCES:
            return
        if self.mask is None or self.mask.scalar or not _synchronizes(name):
            self._evaluate(node, name)
            return
        # Where no thread comes nobody waits, and nothing arrives.
        with self.w.block(f"if np.any({self.mask.code})"):
            start = len(self.w.lines)
            self._evaluate(node, name)
            if len(self.w.lines) == start:
                self.w.line("pass")

    def _evaluate(self, node: Any, name: str) -> None:
        """Write what synchronizes, and every other call as always."""
        call = node.value
        if name == "tirx.tvm_storage_sync":
            self._sync(call)
        elif name == "tl.sync_grid":
            if self.mask is not None and not self.mask.scalar:
                raise self.refuse("T.sync_grid of some threads")
            self.w.line("yield me.sync_grid()")
        elif name in _GROUP_WAITS:
            left = self.scalar(call.args[0], "a wait")
            reads = ""
            if name == "tl.tma_store_wait" and len(call.args) > 1 and int(call.args[1].value):
                reads = ", reads=True"
            self.w.line(f"yield me.wait_groups({_GROUP_WAITS[name]!r}, {left.code}{reads})")
        elif name in _COMMITS:
            self.w.line(f"me.commit({_COMMITS[name]!r})")
        elif name == "tl.named_barrier_arrive":
            identity, count = (self.scalar(a, "a barrier").code for a in call.args)
            self.w.line(f"me.named_arrive({identity}, {count})")
        elif name in _SYNCHRONIZING:
            self._mbarrier(call, name)
        elif name == "tl.ptx_cp_async":
            self.cp_async(call)
        elif name == "tl.ptx_cp_async_barrier_noinc":
            bar = self._bar(call.args[0])
            self._arrives(bar)
            self.w.line(f"me.arrive_later('cp.async', {bar}, {self._active()})")
            self.w.line("yield")
        elif name == "tirx.tvm_thread_allreduce":
            self.allreduce(call)
        elif name == "tl.atomic_store_elem_op":
            with self.untracked():
                super()._stmt_Evaluate(node)
        else:
            super()._stmt_Evaluate(node)

    def _sync(self, call: Any) -> None:
        if str(call.args[0].value) == "warp" or not self.tracking:
            return
        arguments = ", ".join(self.scalar(a, "a barrier").code for a in call.args[1:])
        self.w.line(f"yield me.sync({arguments})")

    def _mbarrier(self, call: Any, name: str) -> None:
        bar = self._bar(call.args[0])
        if name == "tl.mbarrier_wait_parity":
            parity = self.scalar(call.args[1], "the parity of a wait")
            self.w.line(f"yield me.wait({bar}, {parity.code})")
            return
        if name == "tl.tcgen05_mma_arrive":
            if call.annotations is not None and dict(call.annotations.items()).get("arrive_2cta"):
                raise self.refuse("T.tcgen05_mma_arrive over two blocks")
            self._arrives(bar)
            self.w.line(f"me.commit_to('tcgen05 MMA', {bar})")
            self.w.line("yield")
            return
        threads = self._active()
        if name != "tirx.ptx_arrive_barrier":
            size = self.scalar(call.args[1], "a number of bytes")
            self.w.line(f"me.expect({bar}, {size.code} * {threads})")
        if name != "tl.mbarrier_expect_tx":
            self._arrives(bar)
            self.w.line(f"me.arrive({bar}, {threads})")
            self.w.line("yield")

    # -- tile operations

    def _tile_op(self, call: Any, name: str) -> None:
        if self.threads is None:
            super()._tile_op(call, name)
            return
        with self.without_lanes():
            if name == "tma_copy":
                self._tma_copy(call)
            elif name == "wgmma_gemm":
                self._issue("wgmma", call, name, self.tile_gemm, "ordered=True")
                self.w.line("me.commit('wgmma')")
            elif name == "tcgen05_gemm":
                self._tcgen05(call, name)
            elif name == "async_copy":
                self._issue("cp.async", call, name, self.tile_copy, "")
                self.w.line("me.commit('cp.async')")
            else:
                self._note_regions(call, name)
                with self.untracked():
                    super()._tile_op(call, name)
                if name == "gemm" and type(call.args[10]).__name__ != "IntImm":
                    # TileLang waits for its own product: the barrier gets its one arrival.
                    self.w.line(f"me.arrive({self._bar(call.args[10])}, 1)")

    def check_gemm_barrier(self, node: Any) -> None:
        """A matrix product may name a barrier here."""

    def _tcgen05(self, call: Any, name: str) -> None:
        extra = "ordered=True"
        if type(call.args[10]).__name__ != "IntImm":
            bar = self._bar(call.args[10])
            self._arrives(bar)
            extra += f", arrive={bar}"
        self._issue("tcgen05 MMA", call, name, self.tile_gemm, extra)

    def _tma_copy(self, call: Any) -> None:
        annotations = dict(call.annotations.items()) if call.annotations is not None else {}
        for key in ("cluster_mask", "dst_block", "is_gather4", "is_scatter4"):
            if key in annotations:
                raise self.refuse(f"T.tma_copy with {key}")
        src, dst = self.region(call.args[0]), self.region(call.args[1])
        if dst.buf.is_global:
            self._issue("TMA store", call, "tma_copy", self.tile_copy, "")
            self.w.line("me.commit('TMA store')")
            return
        if "barrier" not in annotations:
            raise self.refuse("T.tma_copy into shared memory without a barrier")
        bar = self._bar(annotations["barrier"])
        match = _BYTES.search(dst.buf.dtype)
        width = int(match.group(1)) if match is not None else 8
        if dst.buf.dtype.startswith("float8"):
            width = 8
        extents = " * ".join(d.extent.code for d in (dst.ranges or src.ranges) if d.extent)
        size = f"({extents or '1'}) * {width} // 8"
        self._issue("TMA load", call, "tma_copy", self.tile_copy, f"bar={bar}, size={size}")

    def tracks(self, buf: Buf) -> bool:
        """Whether accesses to a buffer can race."""
        return self._tracked(buf)

    def cp_async(self, call: Any) -> None:
        """A copy that every thread issues; see `PrivateMixin`."""
        raise NotImplementedError

    def allreduce(self, call: Any) -> None:
        """A reduction over threads; see `PrivateMixin`."""
        raise NotImplementedError

    def _issue(
        self, kind: str, call: Any, name: str, write: Callable[[Any], None], extra: str
    ) -> None:
        """Issue a tile operation whose work is done when the scheduler says."""
        accesses = [
            f"({region.buf.code!r}, {written}, {region.dims_code}, {region.buf.code}.shape)"
            for region, written in self._regions(call, name)
            if self._tracked(region.buf)
        ]
        body = Writer(_names=self.w._names, location=self.w.location)  # noqa: SLF001
        outer, self.w = self.w, body
        with self.untracked():
            write(call)
        self.w = outer
        worked_on = {region.buf.code for region, _ in self._regions(call, name)}
        self.issue_lines(kind, body, accesses, extra, worked_on)

    def issue_lines(
        self,
        kind: str,
        body: Writer,
        accesses: list[str],
        extra: str,
        worked_on: Collection[str] | None = None,
    ) -> None:
        """Issue work given as lines: they become a closure.

        Of the buffers that the lines name, those of the block that are not `worked_on` (None: all
        are) say where to work: what they hold is read when the work is issued.
        """
        bound = {n: n for n in self._captured(body)}
        if worked_on is not None:
            used = {n for text in body.lines for n in _NAME.findall(text)} - set(worked_on)
            bound |= {
                buf.code: f"{buf.code}.copy()"
                for buf in self.buffers.values()
                if buf.code in used
                and not buf.is_global
                and not buf.variable
                and buf.scope != "shared.barrier"
            }
        captured = ", ".join(f"{name}={value}" for name, value in sorted(bound.items()))
        action = self.temp("action")
        with self.w.block(f"def {action}({captured})"):
            for text in body.lines or ["pass"]:
                self.w.line(text)
        arguments = f"{kind!r}, {action}, ({''.join(a + ', ' for a in accesses)})"
        self.w.line(f"me.issue({arguments}{', ' + extra if extra else ''})")
        self.w.line("yield")

    def _captured(self, body: Writer) -> list[str]:
        """Names of the role that an operation uses: it sees their values of the time of issue."""
        for text in self.w.lines[self._scanned :]:
            match = _ASSIGNED.match(text)
            if match is not None:
                self._assigned.add(match.group(1))
        self._scanned = len(self.w.lines)
        used = {name for text in body.lines for name in _NAME.findall(text)}
        return sorted(used & self._assigned)
