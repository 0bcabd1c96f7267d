"""Identities of attention with a KV cache: the placement of keys must not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.attention.axis_values import CACHE_LAYOUTS
from tlmatrix.problem.model import Relation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.attention.build import Attention


def kv_cache_identities(case: Attention) -> Iterator[Relation]:
    """The identities that apply to a case with a KV cache; none without one."""
    if case.setting.page_size is not None:
        yield _pages_moved(case)
    if case.setting.has_cache:
        yield from _other_page_size(case)
        yield from _other_cache_layout(case)


def _pages_moved(case: Attention) -> Relation:
    moved = replace(case, placement=case.placement + 1)
    return Relation(
        "pages_moved",
        "relations",
        (moved.problem(),),
        exact=True,
        because="the same keys in other pages, with their block table, must change no bit",
    )


def _other_page_size(case: Attention) -> Iterator[Relation]:
    listed = case.setup.spec.axes.get("page_size", ())
    others = [size for size in listed if isinstance(size, int) and size != case.setting.page_size]
    for size in others[case.setup.seed % len(others) :][:1] if others else ():
        if case.setting.page_size is None or not case.setup.covers({"page_size": size}):
            continue
        values = {**case.setup.values, "page_size": size}
        other = case.with_setting(replace(case.setting, page_size=size), values, case.operands)
        yield Relation(
            "other_page_size",
            "relations",
            (other.problem(),),
            because=f"the same keys in pages of {size} must give the same results",
        )


def _other_cache_layout(case: Attention) -> Iterator[Relation]:
    (layout,) = (each for each in CACHE_LAYOUTS if each != case.setting.layout)
    page_size = case.setup.values.get("page_size")
    if not case.setup.covers({"layout": layout}) or not isinstance(page_size, int):
        return
    values = {**case.setup.values, "layout": layout}
    setting = replace(
        case.setting, layout=layout, page_size=page_size if layout == "paged" else None
    )
    other = case.with_setting(setting, values, case.operands)
    yield Relation(
        "other_cache_layout",
        "relations",
        (other.problem(),),
        because=f"the same keys in the layout {layout} must give the same results",
    )
