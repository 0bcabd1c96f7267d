"""Codegen expectations: instructions and resources of the machine code of kernels."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tlmatrix.spec.model.fields import INSTRUCTION, ExpressionText, Model

__all__ = ["CodegenRule"]

_Most = Annotated[int, Field(strict=True, ge=0)] | None


class CodegenRule(Model):
    """What the machine code of a kernel must satisfy; every matching rule applies."""

    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` and `backend`: which cases, and which "
        "architecture, named as in `architectures`. By default all.",
        examples=["arch == 'sm_100a' and head_dim <= 128"],
    )
    kernel: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="The name of the kernel (its PrimFunc). A case that the rule fits must have "
        "it. By default every kernel of the case.",
        examples=["dense_forward"],
    )
    instructions: tuple[Annotated[str, Field(pattern=INSTRUCTION)], ...] = Field(
        default=(),
        description="PTX instructions that it must use; `tcgen05.mma` stands for all its forms.",
        examples=[["wgmma.mma_async"], ["tcgen05.mma", "tcgen05.ld"]],
    )
    registers: _Most = Field(
        default=None, description="The most registers a thread may use.", examples=[168]
    )
    spills: _Most = Field(
        default=None,
        description="The most bytes a thread may store and load because registers ran out.",
        examples=[0],
    )
    shared_memory: _Most = Field(
        default=None,
        description="The most bytes of shared memory a block may use, static and dynamic. In any "
        "case no more than the architecture has.",
        examples=[116736],
    )
    tensor_memory: _Most = Field(
        default=None,
        description="The most columns of tensor memory a block may allocate. In any case 512.",
        examples=[256],
    )
