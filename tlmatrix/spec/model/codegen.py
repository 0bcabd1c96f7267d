"""Codegen expectations: instructions and resources of the machine code of kernels."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tlmatrix.spec.model.fields import INSTRUCTION, ExpressionText, Model, RegularExpression

_Most = Annotated[int, Field(strict=True, ge=0)] | None


class CodegenRule(Model):
    """Expectations of the machine code of kernels; every rule that matches applies."""

    when: ExpressionText | None = Field(
        default=None,
        description="An expression over the axes, `arch` (as in `architectures`) and `backend`: "
        "the cases that the rule applies to. By default all.",
        examples=["arch == 'sm_100a' and head_dim <= 128"],
    )
    kernel: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="The name of a kernel (its PrimFunc), which every matching case must have. By "
        "default every kernel of the case.",
        examples=["dense_forward"],
    )
    instructions: tuple[Annotated[str, Field(pattern=INSTRUCTION)], ...] = Field(
        default=(),
        description="PTX instructions that it must contain; `tcgen05.mma` matches all variants.",
        examples=[["wgmma.mma_async"], ["tcgen05.mma", "tcgen05.ld"]],
    )
    forbidden: tuple[Annotated[str, Field(pattern=INSTRUCTION)], ...] = Field(
        default=(),
        description="PTX instructions that it must not contain; `atom.global.add.v4` matches all "
        "variants.",
        examples=[["atom.global.add.v4.f32"]],
    )
    source: tuple[RegularExpression, ...] = Field(
        default=(),
        description="Regular expressions, each of which must match a line of the CUDA source that "
        "TileLang generates.",
        examples=[[r"tma_store\(dk_desc, "]],
    )
    forbidden_source: tuple[RegularExpression, ...] = Field(
        default=(),
        description="Regular expressions that must match no line of the CUDA source.",
        examples=[[r"Atomic\w+\(\(&\(dk\["]],
    )
    registers: _Most = Field(
        default=None, description="The most registers per thread.", examples=[168]
    )
    spills: _Most = Field(
        default=None,
        description="The most bytes of register spills per thread.",
        examples=[0],
    )
    shared_memory: _Most = Field(
        default=None,
        description="The most bytes of shared memory per block, static and dynamic. The limit of "
        "the architecture always applies.",
        examples=[116736],
    )
    tensor_memory: _Most = Field(
        default=None,
        description="The most columns of tensor memory per block. The limit of 512 always applies.",
        examples=[256],
    )
