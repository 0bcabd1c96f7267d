"""Identities of decoding: where keys are kept does not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.attention.values import STORED
from tlmatrix.problem.model import Relation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.attention.build import Attention

__all__ = ["stored_identities"]


def stored_identities(case: Attention) -> Iterator[Relation]:
    """The identities that apply to a case whose keys are stored; none of another's."""
    if case.setting.page_size is not None:
        yield _pages_moved(case)
    if case.setting.stored:
        yield from _other_page_size(case)
        yield from _other_store(case)


def _pages_moved(case: Attention) -> Relation:
    moved = replace(case, placement=case.placement + 1)
    return Relation(
        "pages_moved",
        "relations",
        (moved.problem(),),
        left=lambda mine: mine,
        right=lambda results: results[0],
        exact=True,
        because="the same keys in other pages, with a block table that says so, must change no bit",
    )


def _other_page_size(case: Attention) -> Iterator[Relation]:
    listed = case.frame.spec.axes.get("page_size", ())
    others = [size for size in listed if isinstance(size, int) and size != case.setting.page_size]
    for size in others[case.frame.seed % len(others) :][:1] if others else ():
        if case.setting.page_size is None or not case.frame.allows({"page_size": size}):
            continue
        values = {**case.frame.values, "page_size": size}
        other = case.reformed(replace(case.setting, page_size=size), values, case.operands)
        yield Relation(
            "other_page_size",
            "relations",
            (other.problem(),),
            left=lambda mine: mine,
            right=lambda results: results[0],
            because=f"the same keys in pages of {size} must give the same results",
        )


def _other_store(case: Attention) -> Iterator[Relation]:
    (layout,) = (each for each in STORED if each != case.setting.layout)
    page_size = case.frame.values.get("page_size")
    if not case.frame.allows({"layout": layout}) or not isinstance(page_size, int):
        return
    values = {**case.frame.values, "layout": layout}
    setting = replace(
        case.setting, layout=layout, page_size=page_size if layout == "paged" else None
    )
    other = case.reformed(setting, values, case.operands)
    yield Relation(
        "other_store",
        "relations",
        (other.problem(),),
        left=lambda mine: mine,
        right=lambda results: results[0],
        because=f"the same keys in the layout {layout} must give the same results",
    )
