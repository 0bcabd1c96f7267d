"""Code of the elements that an access covers, for the calls of instruments beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.access import is_guarded
from tlmatrix.interpreter.emit.memory import to_dims
from tlmatrix.interpreter.emit.values import Val

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.emit.access import Access, Buf, Dim
    from tlmatrix.interpreter.emit.emitter import Emitter


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


def where(e: Emitter, access: Access, mask: Val | None) -> tuple[str, str]:
    """Suffix of a shadow's method for an access, and its arguments: which elements."""
    if access.block:
        return "", f"{access.dims_code}, {mask_of(e, access, mask)}"
    return "_lanes", f"{access.index_code}, {mask.code if mask is not None else 'None'}"


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
