"""The sanitized variant of a program with roles: the monitor's calls, made where work is done.

The calls that the plain path writes beside every access are written here too. Those of an
asynchronous operation stand in its closure, so that its writes count when it completes. What
threads keep to themselves has a shadow with one entry a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.codegen.sanitized import SanitizedMixin

from .generate import RoleMixin

if TYPE_CHECKING:
    from tlmatrix.interpreter.codegen.bounds import Access
    from tlmatrix.interpreter.codegen.context import Buf
    from tlmatrix.interpreter.codegen.source import Writer
    from tlmatrix.interpreter.codegen.values import Val

__all__ = ["SanitizedRoleMixin"]


class SanitizedRoleMixin(RoleMixin, SanitizedMixin):
    """Overrides what has no place in a program without roles."""

    watching = ", watch"

    def start_roles(self) -> None:
        """Set up, before anything is generated."""
        super().start_roles()
        # Arrays of which every thread of a role has an entry of its own.
        self._of_threads: set[str] = set()

    def _snapshot(self) -> Any:
        return (*super()._snapshot(), dict(self._seen))

    def _restore(self, saved: Any) -> None:
        super()._restore(saved)
        self._seen = dict(saved[-1])

    def followed(self, buf: Buf) -> bool:
        """Whether accesses to a buffer are watched: also those of what a thread has for itself."""
        return super().followed(buf) or buf.code in self._of_threads

    def _allocate_lanes(self, buffer: Any, scope: str) -> None:
        super()._allocate_lanes(buffer, scope)
        assert self.lanes is not None
        buf = self.buffers[buffer]
        self._of_threads.add(buf.code)
        if self.traced or "uninitialised" not in self.sanitizers:
            return
        name = self.w.fresh(f"{buf.code}_seen")
        extents = ", ".join(n.code for n in (*buf.shape, self.lanes.extent))
        self.w.line(f"{name} = watch.local({buf.name!r}, ({extents},))")
        self._seen[buf.code] = name

    def _watch_lanes(self, access: Access, result: Val, site: int) -> None:
        """Threads that store to one element: a finding only where their values differ."""
        if not self.in_lanes:
            super()._watch_lanes(access, result, site)
            return
        buf = access.buf
        if "lanes" not in self.sanitizers or buf.lane_axes or not result.axes:
            return
        if self._injective(access):
            return
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"watch.threads_twice({site}, {access.index_code}, {buf.code}.shape, {mask}, "
            f"{self.shape_of(self.all_axes)}, {result.code})"
        )

    # -- what threads copy and reduce

    def on_rows(
        self,
        body: Writer,
        buf: Buf,
        index: str,
        mask: str,
        *,
        write: bool,
    ) -> None:
        """One element a thread is copied by `T.ptx_cp_async`."""
        site = self._site(buf, "write" if write else "read")
        if self.traced:
            return
        loose = tuple(range(len(buf.shape))) if self.guarded(buf) else ()
        if not loose or "guarded" in self.sanitizers:
            body.line(f"watch.lanes_outside({site}, {index}, {buf.code}.shape, {loose}, {mask})")
        seen = self._seen.get(buf.code)
        if seen is not None:
            body.line(f"{seen}.{'write' if write else 'read'}_lanes({site}, {index}, {mask})")

    def allreduce(self, call: Any) -> None:
        """`T.tvm_thread_allreduce`: every thread's entry of the result is written."""
        super().allreduce(call)
        seen = self._seen.get(self.buffer(call.args[3].buffer).code)
        if seen is not None:
            self.w.line(f"{seen}.full = True")
