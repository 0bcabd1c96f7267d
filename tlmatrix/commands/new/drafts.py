"""A draft of a spec: what is known of each part, before it is text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tlmatrix.commands.new.references import Reference

__all__ = ["Draft", "Line", "without"]


@dataclass(frozen=True)
class Line:
    """A key and its value as YAML, and a remark where a person must decide."""

    key: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Draft:
    """The parts of a spec.

    Attributes:
        target: what is tested, `package.module:name`.
        factory: whether it makes kernels.
        problem: `attention` or `gemm`; "" for a declared one.
        stub: lines of the reference that is to be written, where there is none.
        call: a mapping (by keyword) or a list; None where names match.
        notes: what to say of it, beside the file.
    """

    name: str
    summary: str
    target: str
    factory: bool
    problem: str = ""
    inputs: tuple[Line, ...] = ()
    outputs: tuple[Line, ...] = ()
    reference: Reference | None = None
    stub: tuple[str, ...] = ()
    factory_args: tuple[Line, ...] = ()
    constructor_args: tuple[Line, ...] = ()
    call: tuple[str, ...] | tuple[Line, ...] | None = None
    returns: tuple[str, ...] | tuple[Line, ...] = ()
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[tuple[str, str], ...] = ()
    tolerance: tuple[Line, ...] = ()
    fuzz: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether it can run: nothing is left for a person to write."""
        return bool(self.problem) or (self.reference is not None and not self.reference.missing)


def without(draft: Draft, dropped: Mapping[str, Collection[str]]) -> Draft:
    """The draft with fewer values of some axes."""
    axes = {
        name: tuple(value for value in values if value not in dropped.get(name, ()))
        for name, values in draft.axes.items()
    }
    return replace(draft, axes=axes)
