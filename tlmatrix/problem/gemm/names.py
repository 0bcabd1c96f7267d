"""The names of gemm problems: axes, tensors, and relations that a spec may list."""

from __future__ import annotations

from tlmatrix.problem.name_table import DEVICE, VALUES, Document, Name, storage

RELATIONS = ("rows_permuted", "transposed", "scale_doubled")

ROWS = (
    Name("m", ("axis", "name"), "rows of the result", "0 or more"),
    Name("n", ("axis", "name"), "columns of the result", "0 or more"),
    Name("k", ("axis", "name"), "terms of each sum", "0 or more"),
    Name(
        "dtype",
        ("axis", "name"),
        "of a and b; as a name, that of a",
        "dtypes",
        "required without `a_dtype` and `b_dtype`",
    ),
    Name("a_dtype", ("axis", "name"), "of a", "dtypes, `same`", "`dtype`"),
    Name("b_dtype", ("axis", "name"), "of b", "dtypes, `same`", "`dtype`"),
    Name("out_dtype", ("axis", "name"), "of c", "dtypes, `same`", "`a_dtype`"),
    Name("transpose_a", ("axis", "name"), "whether a is stored as [k, m]", "booleans", "`false`"),
    Name("transpose_b", ("axis", "name"), "whether b is stored as [n, k]", "booleans", "`false`"),
    Name("accumulate", ("axis", "name"), "whether to add to c", "booleans", "`false`"),
    Name(
        "scaled",
        ("axis", "name"),
        "whether `scale` multiplies columns",
        "booleans",
        "`false`",
    ),
    VALUES,
    storage("`offset`, `sliced`, `transposed`, `ones`"),
    DEVICE,
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
        optional="an input only with `accumulate`",
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
`problem: gemm` computes c = op(a) @ op(b), or c += op(a) @ op(b). The
parameters of an entry select arguments by name; `call`, `factory_args`, `tile` and
`constraints` use the same names, and all axes. An axis that neither the problem nor the entry takes
is an error. There are no gradients.""",
    ROWS,
    relations=RELATIONS,
)
