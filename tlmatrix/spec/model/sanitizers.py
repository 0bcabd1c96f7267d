"""What a spec says to the interpreter's sanitizers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tlmatrix.spec.model.fields import Identifier, Model, SanitizerName, ShortModel

__all__ = ["PackedRows", "SanitizerOptions"]


class PackedRows(ShortModel):
    """Which rows of a kernel's parameter belong to which sequence.

    `dk_sum: cu_seqlens_k` is short for `dk_sum: {boundaries: cu_seqlens_k}`.
    """

    short = "boundaries"

    boundaries: Identifier = Field(
        description="The name of what holds the first row of each sequence and the number of "
        "rows: a tensor of the problem, or an axis.",
        examples=["cu_seqlens_k"],
    )
    dim: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0, description="The dimension that counts the rows.", examples=[1]
    )


class SanitizerOptions(Model):
    """How the check `sanitizers` watches the kernels of a case."""

    without: tuple[SanitizerName, ...] = Field(
        default=(),
        description="Sanitizers to leave out.",
        examples=[["fragments"]],
    )
    also: tuple[SanitizerName, ...] = Field(
        default=(),
        description="Sanitizers that are off unless they are asked for: `guarded` and "
        "`overreads`, which report accesses that do no harm by themselves.",
        examples=[["overreads"]],
    )
    sequences: dict[Identifier, PackedRows] = Field(
        default={},
        description="Packed parameters of the kernels, by name. The problem's own tensors, and "
        "tensors of the same shape, need no entry.",
        examples=[{"dk_parts": {"boundaries": "cu_seqlens_k", "dim": 1}}],
    )
