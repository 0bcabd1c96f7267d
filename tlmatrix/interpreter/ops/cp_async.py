"""`T.ptx_cp_async`: every thread, or iteration of `T.Parallel`, copies some elements in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.emit.access import skips_outside
from tlmatrix.interpreter.emit.arrays import named
from tlmatrix.interpreter.emit.logic import both
from tlmatrix.interpreter.emit.masks import keep_mask
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.issue import issue_lines, writing_to
from tlmatrix.interpreter.emit.values import numpy_name

from .atomic import pointed_to

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.buffers import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call


def _cp_async(e: Emitter, call: Call) -> None:
    """The copy, issued; where the predicate does not hold it reads nothing and writes zeros."""
    t = threads_of(e, "T.ptx_cp_async")
    if t.in_threads(e) or not e.axes:
        t.thread_axis(e, "T.ptx_cp_async")
    copies = e.shape_of(e.all_axes)
    count = e.scalar(call.args[2], "a number of elements").code
    (dst, dst_index), (src, src_index) = (_row(e, arg) for arg in call.args[:2])
    mask = reads = e.mask_code
    test = None
    if len(call.args) > 3:
        test = e.expr(call.args[3])
        test = keep_mask(e, named(e, f"({test.code} != 0)", "bool", (test,)))
        reads = keep_mask(e, both(e, e.mask, test)).code
    element = e.temp("e")
    source, target = _at(src_index, element), _at(dst_index, element)
    loaded = (
        f"gather({src.code}, {src.codec}, {source}, {reads}, {src.safe}, "
        f"{src.name!r}, {skips_outside(e, src)})"
    )
    if test is not None:
        loaded = f"np.where({test.code}, {loaded}, 0).astype(np.{numpy_name(src.dtype)})"
    with (
        writing_to(e, e.w.sharing_names(e.w.location)) as body,
        body.block(f"for {element} in range({count})"),
    ):
        for instrument in e.instruments:
            instrument.copied_element(e, src, source, reads, write=False)
            instrument.copied_element(e, dst, target, mask, write=True)
        body.line(
            f"scatter({dst.code}, {dst.codec}, {target}, {loaded}, {mask}, "
            f"{dst.name!r}, {skips_outside(e, dst)})"
        )
    accesses = [
        f"({buf.code!r}, {written}, row_cells(({', '.join(index)},), {count}, "
        f"{active}, {copies}, {buf.code}.shape), {buf.code}.shape)"
        for buf, index, active, written in (
            (src, src_index, reads, False),
            (dst, dst_index, mask, True),
        )
        if t.can_race(e, buf)
    ]
    issue_lines(e, "cp.async", body, accesses)


def _row(e: Emitter, pointer: Any) -> tuple[Buf, list[str]]:
    load = pointed_to(e, pointer, "T.ptx_cp_async")
    index = []
    for node in load.indices:
        name = e.temp("at")
        e.w.line(f"{name} = {e.expr(node).code}")
        index.append(name)
    return buffer(e, load.buffer), index


def _at(index: list[str], element: str) -> str:
    return f"({', '.join([*index[:-1], f'{index[-1]} + {element}'])},)"


EFFECTS = {"tl.ptx_cp_async": _cp_async}
