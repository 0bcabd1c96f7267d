"""Metamorphic relations between the results of two calls, which need no reference.

`attention`, `gemm`, `collective` and `declared` have the relations of built-in families, `user`
those that a spec lists under `relations:`, and `forms` what they share.
"""
