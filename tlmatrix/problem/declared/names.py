"""The names of every declared problem, besides those that its spec gives."""

from __future__ import annotations

from tlmatrix.problem.name_table import Document, Name

__all__ = ["DOCUMENT", "ROWS"]

ROWS = (
    Name(
        "values",
        ("axis", "name"),
        "what inputs hold that have no `fill` and no `between`",
        "[distributions](../../guides/own-problems.md#what-the-inputs-hold)",
        "the seed picks one",
    ),
    Name(
        "storage",
        ("axis",),
        "how inputs lie in memory",
        "`offset`, `sliced`, `transposed`, `ones`, `expanded`",
        "contiguous",
    ),
    Name("device", ("name",), "where the tensors are, a `torch.device`"),
)

DOCUMENT = Document(
    "declared",
    "A declared problem",
    """\
A mapping at `problem` declares inputs, outputs and a reference
([spec](../spec.md#a-declared-problem)). All of its names are the spec's own, and the few below. An
entry gets what its parameters name; `call`, `factory_args`, `tile` and `constraints` use the same
names.""",
    ROWS,
    """\
## Names that the spec gives

| written | names | what it is |
| --- | --- | --- |
| `axes: {rows: [1, 8]}` | `rows` | the value of the case; of an axis that a `dtype: $axis` names, \
for an entry and a reference a `torch.dtype` |
| `inputs: {x: {shape: [rows], dtype: float32}}` | `x` | a tensor of that shape and dtype |
| `outputs: [y]` | `y` | what comes back, of the shape and dtype that the reference gives |
| `outputs: {y: {shape: [rows]}}` | `y` | the same of a problem without reference |
| `inputs: {x: {..., grad: true}}` | `dx` | the gradient of `x`, of its shape and dtype |
| an input with `grad`, and an output `y` | `dy` | the cotangent of `y`, which a factory may take |

An axis is read by a shape, a dtype, `between`, `factory_args`, `tile`, a parameter of the entry or
of the reference. One that nothing reads is an error.""",
)
