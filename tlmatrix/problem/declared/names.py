"""The names of declared problems, other than those in the spec."""

from __future__ import annotations

from dataclasses import replace

from tlmatrix.problem.name_table import DEVICE, VALUES, Document, storage

ROWS = (
    replace(VALUES, means="distribution of inputs without `fill` and `between`"),
    storage("`offset`, `sliced`, `transposed`, `ones`, `expanded`"),
    DEVICE,
)

DOCUMENT = Document(
    "declared",
    "A declared problem",
    """\
A mapping at `problem` declares inputs, outputs and a reference
([spec](../spec-keys.md#a-declared-problem)). Its names are those in the spec, and the few below.
The parameters of an entry select arguments by name; `call`, `factory_args`, `tile` and
`constraints` use the same names.""",
    ROWS,
    """\
## Names from the spec

| in the spec | name | meaning |
| --- | --- | --- |
| `axes: {rows: [1, 8]}` | `rows` | the value in the case; for an axis in `dtype: $axis`, \
entry and reference get a `torch.dtype` |
| `inputs: {x: {shape: [rows], dtype: float32}}` | `x` | a tensor of that shape and dtype |
| `outputs: [y]` | `y` | a result, with the shape and dtype of the reference |
| `outputs: {y: {shape: [rows]}}` | `y` | a result of a problem without reference |
| `inputs: {x: {..., grad: true}}` | `dx` | the gradient of `x`, of its shape and dtype |
| an input with `grad`, and an output `y` | `dy` | the cotangent of `y`, which a factory may take |

Every axis must be used: by a shape, a dtype, `between`, `factory_args`, `tile`, or a parameter of
the entry or the reference.""",
)
