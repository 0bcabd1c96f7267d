"""The names of collectives: axes, tensors, and relations that a spec may list."""

from __future__ import annotations

from tlmatrix.problem.name_table import DEVICE, VALUES, Document, Name, storage
from tlmatrix.spec.model.sharding import WORLD

RELATIONS = ("rows_permuted", "ranks_permuted", "doubled")

ROWS = (
    Name(
        "operation",
        ("axis", "name"),
        "the collective",
        "`all_gather`, `all_reduce`, `reduce_scatter`",
    ),
    Name(WORLD, ("axis", "name"), "number of ranks", "1 or more"),
    Name("rows", ("axis", "name"), "rows of the global tensor", "0 or more"),
    Name("cols", ("axis", "name"), "columns of the global tensor", "0 or more"),
    Name("dtype", ("axis", "name"), "of x and y", "floating dtypes"),
    Name(
        "uneven",
        ("axis", "name"),
        "how rows are sharded if ranks do not divide them",
        "`balanced`, `ceil`",
        "none",
    ),
    VALUES,
    storage("`offset`, `sliced`, `transposed`, `ones`"),
    DEVICE,
    Name(
        "x",
        ("input",),
        "for `all_gather` the rows, sharded over ranks; else the terms, one per rank",
        shapes={
            "all_gather": "[rows, cols]",
            "all_reduce": "[world, rows, cols]",
            "reduce_scatter": "[world, rows, cols]",
        },
        dtype="dtype",
    ),
    Name(
        "y",
        ("output",),
        "the rows, or the sum; for `reduce_scatter` sharded over ranks",
        shapes={"": "[rows, cols]"},
        dtype="dtype",
    ),
)

DOCUMENT = Document(
    "collective",
    "The problem `collective`",
    """\
`problem: collective` computes an all-gather, an all-reduce or a reduce-scatter of rows over the
ranks of the axis `world`. Shapes are global; the entry of each rank gets its shard, and may also
take `rank`, `group` and `context` ([several GPUs](../../guides/several-gpus.md)). There
are no gradients. Shapes depend on `operation`, not on a layout.""",
    ROWS,
    relations=RELATIONS,
)
