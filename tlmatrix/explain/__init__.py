"""Explains one output element of a case: the accesses and values that it was computed from."""
