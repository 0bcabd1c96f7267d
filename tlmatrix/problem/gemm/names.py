"""The names of gemm: axes, tensors, and relations that a spec may name."""

from __future__ import annotations

from tlmatrix.problem.name_table import Document, Name

__all__ = ["DOCUMENT", "RELATIONS", "ROWS"]

RELATIONS = ("rows_permuted", "transposed", "scale_doubled")

ROWS = (
    Name("m", ("axis", "name"), "rows of the result", "0 or more"),
    Name("n", ("axis", "name"), "columns of the result", "0 or more"),
    Name("k", ("axis", "name"), "terms of each sum", "0 or more"),
    Name(
        "dtype",
        ("axis", "name"),
        "of a and b; the name is that of a",
        "dtypes",
        "required without `a_dtype` and `b_dtype`",
    ),
    Name("a_dtype", ("axis", "name"), "of a", "dtypes, `same`", "`dtype`"),
    Name("b_dtype", ("axis", "name"), "of b", "dtypes, `same`", "`dtype`"),
    Name("out_dtype", ("axis", "name"), "of c", "dtypes, `same`", "`a_dtype`"),
    Name("transpose_a", ("axis", "name"), "a is stored as [k, m]", "booleans", "`false`"),
    Name("transpose_b", ("axis", "name"), "b is stored as [n, k]", "booleans", "`false`"),
    Name("accumulate", ("axis", "name"), "c is added to", "booleans", "`false`"),
    Name("scaled", ("axis", "name"), "columns are multiplied by `scale`", "booleans", "`false`"),
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
        "a",
        ("input",),
        "left factor; [k, m] with `transpose_a`",
        shapes={"": "[m, k]"},
        dtype="a_dtype",
    ),
    Name(
        "b",
        ("input",),
        "right factor; [n, k] with `transpose_b`",
        shapes={"": "[k, n]"},
        dtype="b_dtype",
    ),
    Name(
        "c",
        ("input", "output"),
        "the product",
        shapes={"": "[m, n]"},
        dtype="out_dtype",
        optional="an input with `accumulate` alone",
    ),
    Name(
        "scale",
        ("input",),
        "factor of each column",
        shapes={"": "[n]"},
        dtype="float32",
        optional="with `scaled`",
    ),
)

DOCUMENT = Document(
    "gemm",
    "The problem `gemm`",
    """\
`problem: gemm` computes c = op(a) @ op(b), or c += op(a) @ op(b). An entry gets what its
parameters name; `call`, `factory_args`, `tile` and `constraints` use the same names, and axes
besides. An axis that neither the problem nor the entry takes is an error. There are no
gradients.""",
    ROWS,
    "## Relations\n\n" + ", ".join(f"`{name}`" for name in RELATIONS) + ".",
)
