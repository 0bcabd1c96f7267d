"""Metamorphic relations: results of two calls that must match, with no reference needed.

`attention`, `gemm`, `collective` and `declared` make the relations of a built-in family,
`user` those that a spec lists under `relations:`, from the forms in `forms`.
"""
