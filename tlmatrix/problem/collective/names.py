"""The names of collective: axes, tensors, and relations that a spec may name."""

from __future__ import annotations

from tlmatrix.problem.name_table import Document, Name
from tlmatrix.spec.model.sharding import WORLD

__all__ = ["DOCUMENT", "RELATIONS", "ROWS"]

RELATIONS = ("rows_permuted", "ranks_permuted", "doubled")

ROWS = (
    Name(
        "operation",
        ("axis", "name"),
        "what is computed",
        "`all_gather`, `all_reduce`, `reduce_scatter`",
    ),
    Name(WORLD, ("axis", "name"), "number of ranks", "1 or more"),
    Name("rows", ("axis", "name"), "rows of the whole", "0 or more"),
    Name("cols", ("axis", "name"), "columns of the whole", "0 or more"),
    Name("dtype", ("axis", "name"), "of x and y", "floating dtypes"),
    Name(
        "uneven",
        ("axis", "name"),
        "how rows are shared out that do not divide",
        "`balanced`, `ceil`",
        "none",
    ),
    Name(
        "values",
        ("axis", "name"),
        "what inputs hold",
        "[distributions](../../guides/own-problems.md#what-the-inputs-hold)",
        "the seed picks one",
    ),
    Name(
        "storage",
        ("axis",),
        "how inputs lie in memory",
        "`offset`, `sliced`, `transposed`, `ones`",
        "contiguous",
    ),
    Name("device", ("name",), "where the tensors are, a `torch.device`"),
    Name(
        "x",
        ("input",),
        "of `all_gather` the rows, a part for each rank; else the terms, one for each rank",
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
        "the rows, or their sum; of `reduce_scatter` each rank has a part",
        shapes={"": "[rows, cols]"},
        dtype="dtype",
    ),
)

DOCUMENT = Document(
    "collective",
    "The problem `collective`",
    """\
`problem: collective` computes an all-gather, an all-reduce or a reduce-scatter of rows over the
ranks of the axis `world`. Shapes are those of the whole; each rank's entry gets its part, and may
take `rank`, `group` and `context` besides ([several GPUs](../../guides/several-gpus.md)). There
are no gradients. Instead of a layout, shapes go by `operation`.""",
    ROWS,
    "## Relations\n\n" + ", ".join(f"`{name}`" for name in RELATIONS) + ".",
)
