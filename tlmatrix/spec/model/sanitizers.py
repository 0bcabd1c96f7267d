"""The key `sanitizers`: options of the interpreter's sanitizers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tlmatrix.spec.model.fields import Identifier, Model, SanitizerName, ShortModel


class PackedRows(ShortModel):
    """The dimension of a kernel's parameter with packed rows, and the sequence boundaries.

    `dk_sum: cu_seqlens_k` is short for `dk_sum: {boundaries: cu_seqlens_k}`.
    """

    short = "boundaries"

    boundaries: Identifier = Field(
        description="The tensor of the problem, or the axis, with the first row of each sequence "
        "and the number of rows.",
        examples=["cu_seqlens_k"],
    )
    dim: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0, description="The dimension of the packed rows.", examples=[1]
    )


class SanitizerOptions(Model):
    """Options of the check `sanitizers`."""

    without: tuple[SanitizerName, ...] = Field(
        default=(),
        description="Sanitizers to disable.",
        examples=[["fragments"]],
    )
    also: tuple[SanitizerName, ...] = Field(
        default=(),
        description="Sanitizers to enable that are off by default: `guarded`, `overreads` and "
        "`atomics`, which report accesses that are harmless by themselves.",
        examples=[["overreads"]],
    )
    sequences: dict[Identifier, PackedRows] = Field(
        default={},
        description="Packed parameters of the kernels, by name. The problem's own tensors, and "
        "tensors of the same shape, need no entry.",
        examples=[{"dk_parts": {"boundaries": "cu_seqlens_k", "dim": 1}}],
    )
